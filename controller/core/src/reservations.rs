//! Turns a policy's decision into an attempt with a placement.

use crate::attempt_changes::AttemptChanges;
use crate::commands::JobStateChange;
use crate::memory_requests::memory_request;
use crate::predicting::predict_colocation;
use crate::round::RoundEffect;
use crate::rows::transitions::Reservation;
use crate::state::attempts::{LiveAttempt, TimeLimitNotice};
use crate::state::inventory::{GpuState, capacity, slice_at};
use crate::state::queue::WaitingJob;
use std::sync::Arc;
use tessera_frames::cluster::MigReport;
use tessera_model::life::JobState;
use tessera_model::mig::Slot;
use tessera_model::mig::compute::{ComputeSlot, memory_share};
use tessera_model::share::{ComputeShare, SliceShare};
use tessera_model::sizing::SizeSource;
use tessera_model::spec::GpuRequest;
use tessera_model::{AttemptId, Bytes, DecisionId, JobId};
use tessera_placement::{ClusterView, Explanation, InstanceState, JobPlacement, SharingRequest};
use uuid::Uuid;

/// A policy's decision about one member of a gang.
pub(crate) type PlacedMember = (JobId, JobPlacement, Explanation);

/// Returns whether the placement was free in the policy's view.
fn is_free_in(view: &ClusterView, place: &JobPlacement) -> bool {
    let free = |state: &InstanceState| match (state, place.part) {
        (InstanceState::Cut(compute), Some(part)) => compute.free().any(|free| free == part),
        (InstanceState::Idle | InstanceState::Shared(_), None) => true,
        _ => false,
    };
    !place.steps.is_empty()
        || view
            .gpus
            .iter()
            .filter(|gpu| gpu.id == place.gpu)
            .all(|gpu| gpu.instances.iter().any(|i| i.slot == place.slot && free(&i.state)))
}

/// Returns the memory slices of a slot, and its profile as text.
fn memory_slices(gpu: &GpuState, slot: Option<Slot>) -> Option<(Vec<u8>, String)> {
    match (&gpu.report.mig, slot) {
        (MigReport::On { geometry }, Some(slot)) => {
            let profile = geometry.profile(slot.profile)?;
            let end = slot.start.saturating_add(profile.memory_slices);
            Some(((slot.start..end).collect(), profile.name.to_string()))
        }
        _ => Some((vec![0], "whole GPU".to_owned())),
    }
}

/// Returns the memory that an attempt may use. Compute instances share the memory of their GPU
/// instance.
fn memory_given(share: Option<&SharingRequest>, capacity: Bytes) -> Bytes {
    let limit = share.filter(|sharer| sharer.share.compute().is_none());
    limit.map_or(capacity, |sharer| sharer.share.memory())
}

/// Returns the share of a job that gets a compute instance, with its part of the memory.
fn compute_share(
    gpu: &GpuState,
    slot: Option<Slot>,
    part: ComputeSlot,
    user: Arc<str>,
) -> SharingRequest {
    let whole = slot.and_then(|slot| gpu.mig.as_ref()?.geometry.profile(slot.profile));
    let compute_slices = whole.map_or(part.slices, |profile| profile.compute_slices);
    let memory = memory_share(capacity(gpu, slot), compute_slices, part.slices);
    SharingRequest::new(user, SliceShare::Compute(ComputeShare { slot: part, memory }))
}

impl AttemptChanges<'_> {
    /// Reserves the placements of a whole gang, or none.
    pub(crate) fn reserve_gang(
        &mut self,
        placements: Vec<PlacedMember>,
        view: &ClusterView,
        new_id: &mut dyn FnMut() -> Uuid,
    ) {
        let waits = placements.iter().all(|(job, _, _)| self.queue.ranks.contains_key(job));
        let found: Option<Vec<_>> = placements
            .into_iter()
            .map(|(job, place, why)| self.make_reservation(job, place, why, view, new_id))
            .collect();
        for reservation in found.filter(|_| waits).into_iter().flatten() {
            self.take_place(reservation);
        }
    }

    /// Reserves a placement for a waiting job, if that is possible.
    pub(crate) fn reserve_place(
        &mut self,
        job: JobId,
        place: JobPlacement,
        why: Explanation,
        view: &ClusterView,
        new_id: &mut dyn FnMut() -> Uuid,
    ) {
        if let Some(reservation) = self.make_reservation(job, place, why, view, new_id) {
            self.take_place(reservation);
        }
    }

    /// Returns the reservation of a placement for a waiting job; `None` if it is not possible.
    pub(crate) fn make_reservation(
        &self,
        job: JobId,
        place: JobPlacement,
        why: Explanation,
        view: &ClusterView,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Option<Reservation> {
        let gpu = self.inventory.gpus.get(&place.gpu)?;
        let node = self.inventory.nodes.get(&gpu.node)?;
        let (slots, profile) = memory_slices(gpu, place.slot)?;
        // An instance that this decision destroys is not available.
        let slice = match place.steps.is_empty() {
            true => slice_at(&gpu.report, place.slot, place.part),
            false => None,
        };
        let waiting = self.queue.queued(job);
        if cfg!(test) {
            let is_free = is_free_in(view, &place) || self.joins_promised_instance(&place, waiting);
            assert!(is_free, "policies only give away what is free, not {place:?} to job {job}");
        }
        let mut share = waiting.and_then(|waiting| waiting.job.share.clone());
        if let (Some(chosen), Some(waiting)) = (place.share, waiting) {
            share = self.chosen_share(chosen, waiting);
        }
        let mut profile = profile;
        if let (Some(part), Some(waiting)) = (place.part, waiting) {
            // Only existing compute instances are placed: no plan creates them for a job.
            slice.as_ref()?;
            let user = Arc::clone(&waiting.job.user);
            share = Some(compute_share(gpu, place.slot, part, user));
            profile = format!("{}c.{profile}", part.slices);
        }
        let capacity = capacity(gpu, place.slot);
        let gpu_memory = memory_given(share.as_ref(), capacity);
        let size_source = waiting.map_or(SizeSource::Unknown, WaitingJob::size_source);
        let reservation = Reservation {
            job,
            gang: waiting.and_then(|waiting| waiting.job.gang).map(|member| member.gang),
            attempt: AttemptId::from_uuid(new_id()),
            number: 0,
            node: gpu.node,
            generation: node.generation,
            gpu_index: gpu.report.index,
            profile,
            slots,
            share,
            capacity,
            slice,
            decision: DecisionId::from_uuid(new_id()),
            why,
            place,
            colocation: None,
            memory: None,
            gpu_memory,
            size_source,
            waited_for: waiting.map_or_else(Vec::new, |waiting| {
                waiting.reasons.iter().map(|reason| reason.word()).collect()
            }),
            run_prediction: None,
        };
        Some(match waiting {
            Some(waiting) => self.with_predictions(reservation, waiting),
            None => reservation,
        })
    }

    /// Returns the request of a job with the share that the round chose for it.
    fn chosen_share(&self, chosen: SliceShare, waiting: &WaitingJob) -> Option<SharingRequest> {
        let apart = waiting.job.share.as_ref().is_some_and(|share| share.apart);
        let request =
            SharingRequest { apart, ..SharingRequest::new(Arc::clone(&waiting.job.user), chosen) };
        let priority = waiting.job.queue_rank.priority;
        self.predictions.with_service_order(Some(request), &waiting.facts, priority)
    }

    /// Returns whether a job joins an instance that doesn't exist yet, because another sharing job
    /// got it in the same round. The view is older than that.
    fn joins_promised_instance(&self, place: &JobPlacement, waiting: Option<&WaitingJob>) -> bool {
        let is_promised = |live: &LiveAttempt| {
            let is_there = live.gpu == place.gpu && live.slot == place.slot;
            is_there && live.share.is_some() && live.slice.is_none()
        };
        let shares = |waiting: &WaitingJob| waiting.job.share.is_some() || place.share.is_some();
        waiting.is_some_and(shares) && self.attempts.live.values().any(is_promised)
    }

    /// Adds the predictions about the attempt: its speed next to co-runners, or its run time and
    /// its memory if it has its slice to itself.
    fn with_predictions(&self, mut reservation: Reservation, waiting: &WaitingJob) -> Reservation {
        let (gpu, slot) = (&reservation.place.gpu, reservation.place.slot);
        if let Some(sharer) = &reservation.share {
            let at = (gpu, slot);
            reservation.colocation = predict_colocation(
                self.predictions,
                self.inventory,
                self.attempts,
                &waiting.facts,
                sharer,
                at,
            );
            return reservation;
        }
        reservation.run_prediction = self.inventory.slice_kind(gpu, slot).map(|on| {
            self.predictions.predict_attempt(reservation.job, &waiting.facts, waiting.done, on)
        });
        if reservation.run_prediction.is_some() && waiting.declared == GpuRequest::Unknown {
            // The newest estimate: it also counts runs that didn't change the request.
            let (declared, facts, own) = (&waiting.declared, &waiting.facts, waiting.own);
            let (predictions, inventory) = (&*self.predictions, self.inventory);
            let gang = waiting.job.gang;
            let newest = memory_request(predictions, inventory, declared, facts, own, gang);
            reservation.memory = newest.and_then(|request| request.learned());
        }
        reservation
    }

    /// Turns a waiting job into a live attempt.
    pub(crate) fn take_place(&mut self, mut reservation: Reservation) {
        let job = reservation.job;
        let Some(waiting) = self.queue.dequeue(job) else { return };
        reservation.number = waiting.attempts + 1;
        let state =
            if reservation.slice.is_some() { JobState::Starting } else { JobState::Placing };
        let share = reservation.share.as_ref().map(|sharer| sharer.share);
        let weight =
            self.inventory.usage_weight(&reservation.place.gpu, reservation.place.slot, share);
        self.accounting.charge(&waiting.job.user, weight, self.round_at);
        let live = LiveAttempt {
            requeue: false,
            weight,
            job,
            state,
            number: reservation.number,
            node: reservation.node,
            generation: reservation.generation,
            gpu: reservation.place.gpu.clone(),
            slot: reservation.place.slot,
            share: reservation.share.clone(),
            slice: reservation.slice.clone(),
            decision: reservation.decision,
            launch_spec: None,
            traceparent: None,
            sent: None,
            acknowledged: false,
            limit: TimeLimitNotice::AsLaunched,
            user: waiting.job.user,
            request: waiting.job.gpu,
            facts: waiting.facts,
            submitted: waiting.job.submitted,
            placed: self.round_at,
            began: None,
            done: waiting.done,
            run_prediction: reservation.run_prediction.clone(),
            memory: reservation.memory,
            gpu_memory: reservation.gpu_memory,
            refused: Bytes::ZERO,
            peak: None,
            gang: waiting.job.gang,
            end: None,
        };
        self.attempts.insert(reservation.attempt, live);
        let change = JobStateChange { job, attempt: Some(reservation.attempt), state };
        self.effects.push(RoundEffect::Moved(change));
        self.jobs.reservations.push(reservation);
    }
}
