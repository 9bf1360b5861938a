//! From a decision of the policy to an attempt with a placement.

use crate::commands::JobStateChange;
use crate::round::{Round, RoundEffect};
use crate::rows::transitions::Reservation;
use crate::state::ClusterState;
use crate::state::attempts::LiveAttempt;
use crate::state::inventory::{capacity, slice_at};
use std::sync::Arc;
use tessera_frames::cluster::MigReport;
use tessera_model::life::JobState;
use tessera_model::mig::compute::memory_share;
use tessera_model::share::{ComputeShare, SliceShare};
use tessera_model::spec::GpuRequest;
use tessera_model::{AttemptId, DecisionId, JobId};
use tessera_placement::{ClusterView, Explanation, InstanceState, JobPlacement, SharingRequest};
use uuid::Uuid;

fn free_in(view: &ClusterView, place: &JobPlacement) -> bool {
    let free = |state: &InstanceState| match (state, place.part) {
        (InstanceState::Cut(seats), Some(part)) => seats.free().any(|free| free == part),
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

impl ClusterState {
    pub(crate) fn reserve(
        &mut self,
        job: JobId,
        place: JobPlacement,
        why: Explanation,
        view: &ClusterView,
        new_id: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        if let Some(reservation) = self.reservation(job, place, why, view, new_id) {
            self.take_place(reservation, round);
        }
    }

    /// Returns the reservation of a placement for a waiting job; `None` if it is not possible.
    pub(crate) fn reservation(
        &self,
        job: JobId,
        place: JobPlacement,
        why: Explanation,
        view: &ClusterView,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Option<Reservation> {
        let gpu = self.inventory.gpus.get(&place.gpu)?;
        let node = self.inventory.nodes.get(&gpu.node)?;
        let (slots, profile) = match (&gpu.report.mig, place.slot) {
            (MigReport::On { geometry }, Some(slot)) => {
                let profile = geometry.profile(slot.profile)?;
                let end = slot.start.saturating_add(profile.memory_slices);
                ((slot.start..end).collect(), profile.name.to_string())
            }
            _ => (vec![0], "whole GPU".to_owned()),
        };
        // An instance that is destroyed by this very decision doesn't stand ready.
        let slice = match place.steps.is_empty() {
            true => slice_at(&gpu.report, place.slot, place.part),
            false => None,
        };
        debug_assert!(free_in(view, &place), "policies only give away what is free");
        let waiting = self.queue.queued(job);
        let mut share = waiting.and_then(|waiting| waiting.asked.share.clone());
        let mut profile = profile;
        if let (Some(part), Some(waiting)) = (place.part, waiting) {
            // Only what stands is given away: no plan makes compute instances for a job.
            slice.as_ref()?;
            let whole =
                place.slot.and_then(|slot| gpu.mig.as_ref()?.geometry.profile(slot.profile));
            let compute_slices = whole.map_or(part.slices, |profile| profile.compute_slices);
            let memory = memory_share(capacity(gpu, place.slot), compute_slices, part.slices);
            let user = Arc::clone(&waiting.asked.user);
            share = Some(SharingRequest::new(
                user,
                SliceShare::Compute(ComputeShare { slot: part, memory }),
            ));
            profile = format!("{}c.{profile}", part.slices);
        }
        let floor = waiting.and_then(|waiting| {
            // What was foretold last: runs that changed nothing of what it asks for count, too.
            waiting.floor.and_then(|_| self.memory_request(&GpuRequest::Unknown, &waiting.facts))
        });
        let beside = waiting.zip(share.as_ref()).and_then(|(waiting, sharer)| {
            self.predict_colocation(&waiting.facts, sharer, &place.gpu, place.slot)
        });
        let foretold = waiting.filter(|_| share.is_none()).and_then(|waiting| {
            self.predict_attempt(job, &waiting.facts, waiting.done, &place.gpu, place.slot)
        });
        let capacity = capacity(gpu, place.slot);
        Some(Reservation {
            job,
            gang: waiting.and_then(|waiting| waiting.asked.gang).map(|member| member.gang),
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
            beside,
            memory: floor.filter(|_| foretold.is_some()).map(|asked| asked.floor),
            foretold,
        })
    }

    pub(crate) fn take_place(&mut self, mut reservation: Reservation, round: &mut Round) {
        let job = reservation.job;
        let Some(waiting) = self.queue.dequeue(job) else { return };
        reservation.number = waiting.attempts + 1;
        let state =
            if reservation.slice.is_some() { JobState::Starting } else { JobState::Placing };
        let share = reservation.share.as_ref().map(|sharer| sharer.share);
        let weight =
            self.inventory.usage_weight(&reservation.place.gpu, reservation.place.slot, share);
        self.accounting.charge(&waiting.asked.user, weight, self.clock.round_at);
        let live = LiveAttempt {
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
            sheet: None,
            traceparent: None,
            sent: None,
            acknowledged: false,
            limit: crate::state::attempts::TimeLimitNotice::AsLaunched,
            user: waiting.asked.user,
            asked: waiting.asked.gpu,
            facts: waiting.facts,
            submitted: waiting.asked.submitted,
            began: None,
            done: waiting.done,
            foretold: reservation.foretold.clone(),
            memory: reservation.memory,
            peak: None,
            gang: waiting.asked.gang,
            over: None,
        };
        self.attempts.by_job.insert(job, reservation.attempt);
        self.attempts.live.insert(reservation.attempt, live);
        round.effects.push(RoundEffect::Moved(JobStateChange {
            job,
            attempt: Some(reservation.attempt),
            state,
        }));
        round.reservations.push(reservation);
    }
}
