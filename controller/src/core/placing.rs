//! From a policy's decisions to attempts, plans and launches.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::compute::memory_share;
use tessera_model::mig::{self, Layout, Occupant, Slot, Step};
use tessera_model::share::{ComputeShare, Part};
use tessera_model::spec::GpuAsk;
use tessera_model::{AttemptId, Bytes, DecisionId, GpuId, JobId, Member, Millis, PlanId};
use tessera_placement::record::{Asked, Draft};
use tessera_placement::{
    ClusterView, Decision, Explanation, InstanceState, Place, QueuedJob, Sharer, WaitReason, ask,
};
use tessera_wire::frames::{InstanceReport, MigReport};
use uuid::Uuid;

use super::foresight::Foresight;
use super::gangs::Seated;
use super::view::slice_at;
use super::{Cluster, Effect, Live, Round, STARTS_MAX, Waiting};
use crate::ports::JobMoved;
use crate::store::moves::{Ready, Reservation, WaitRow, record_without_exit};
use crate::store::nodes::PlanRow;

impl Cluster {
    /// Moves attempts on whose slices stand now.
    pub(super) fn make_ready(&mut self, round: &mut Round) {
        let standing: Vec<_> = self
            .live
            .iter()
            .filter(|(_, live)| live.state == JobState::Placing && live.over.is_none())
            .filter_map(|(attempt, live)| Some((*attempt, self.standing_slice(live)?)))
            .collect();
        for (attempt, slice) in standing {
            let Some(live) = self.live.get_mut(&attempt) else { continue };
            live.state = JobState::Starting;
            live.slice = Some(slice.clone());
            live.sent = None;
            round.ready.push(Ready { job: live.job, attempt, slice });
            round.effects.push(Effect::Moved(JobMoved {
                job: live.job,
                attempt: Some(attempt),
                state: JobState::Starting,
            }));
        }
    }

    /// Sends the attempts back whose instances can't be made any more: their GPU is gone, is no
    /// longer partitioned, or somebody else's instance came in the way.
    pub(super) fn give_up_impossible(&mut self, round: &mut Round) {
        let hopeless: Vec<_> = self
            .live
            .iter()
            .filter(|(_, live)| live.state == JobState::Placing && live.over.is_none())
            .filter_map(|(attempt, live)| Some((*attempt, self.impossible(live)?)))
            .collect();
        for (attempt, reason) in hopeless {
            let detail = format!("its slice could not be made: {reason}");
            self.end(attempt, record_without_exit(Outcome::NotStarted, detail), round);
        }
    }

    /// Tells why an attempt's instance can't be made, if its node has told all that stands.
    fn impossible(&self, live: &Live) -> Option<&'static str> {
        let node = self.nodes.get(&live.node)?;
        node.session.as_ref().filter(|session| session.ready)?;
        let gpu = self.gpus.get(&live.gpu).filter(|gpu| gpu.node == live.node && gpu.fresh);
        let Some(gpu) = gpu else { return Some("the GPU is gone") };
        let MigReport::On { geometry } = &gpu.report.mig else {
            return Some("the GPU is not partitioned any more");
        };
        let slot = live.slot?;
        if gpu.open_plan.is_some() {
            return None;
        }
        let troubled = |i: &InstanceReport| i.slot == slot && i.trouble.is_some();
        if gpu.report.instances.iter().any(troubled) {
            return Some("somebody else uses the instance");
        }
        if live.part().is_some() {
            return Some("its compute instance is gone");
        }
        let steps = steps_to(geometry, gpu, &[slot], |slot| self.must_stay(&live.gpu, slot));
        steps.is_none().then_some("an instance is in the way that can't be destroyed")
    }

    /// Asks the policy, and turns what it says into reservations. Returns what it was asked and
    /// said, if it was asked.
    pub(super) fn place(
        &mut self,
        now: Millis,
        mint: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) -> Option<Draft> {
        if self.queue.is_empty() && !self.reviews(now) {
            return None;
        }
        if now < self.hold_until {
            self.hold_all(now, mint, round);
            return None;
        }
        let view = self.view(now);
        let (decisions, draft) = self.ask_policy(&view, now);
        let mut reshapes = Vec::new();
        let mut gangs: BTreeMap<JobId, Vec<Seated>> = BTreeMap::new();
        for decision in decisions {
            match decision {
                Decision::Start { job, place, why } => {
                    let why = self.with_floor(job, why);
                    match self.gang_of(job) {
                        Some(member) => {
                            gangs.entry(member.gang).or_default().push((job, place, why));
                        }
                        None => self.reserve(job, place, why, &view, mint, round),
                    }
                }
                Decision::Wait { job, reason, why } => {
                    let why = self.with_floor(job, why);
                    self.note_wait(job, reason, why, mint, round);
                }
                Decision::Reshape { reshape, why } => reshapes.push((reshape, why)),
            }
        }
        for seats in gangs.into_values() {
            self.reserve_gang(seats, &view, mint, round);
        }
        if !reshapes.is_empty() {
            self.reshape(reshapes, &view, now, mint, round);
        }
        self.note_promises(now, mint, round);
        Some(draft)
    }

    /// Asks the policy about the head of the queue, and writes down what it heard and said.
    fn ask_policy(&self, view: &ClusterView, now: Millis) -> (Vec<Decision>, Draft) {
        let look_at = match view.gpus.iter().any(|gpu| gpu.available) {
            true => LOOK_AT_MAX,
            false => LOOK_AT_WITHOUT_GPUS,
        };
        let queue = self.shown(look_at);
        let foresight = Foresight::new(self, now);
        let heard = self.recorder.listen(&foresight, view, now);
        let policy = self.policy.as_ref();
        let mut shown = queue.iter().copied();
        let decisions = ask(policy, view, &heard, &mut shown, now, STARTS_MAX);
        let asked = Asked { cluster: view, queue: &queue, now, starts_max: STARTS_MAX };
        let draft = self.recorder.draft(policy, asked, heard, &decisions);
        (decisions, draft)
    }

    /// Whether what accounts have had counts in the order of service.
    pub(super) fn serves_fairly(&self) -> bool {
        self.accounts.fair() && self.policy.shares_fairly() && self.lines.len() > 1
    }

    /// Returns the jobs that a round looks at, in service order: the head of the queue, or, where accounts
    /// share, as many of each user's as leave room for the others'.
    pub(super) fn shown(&self, most: usize) -> Vec<&QueuedJob> {
        let open = |job: &&QueuedJob| !self.moving.promised(job.id);
        if !self.serves_fairly() || self.queue.len() <= most {
            return self.queue.values().map(|w| &w.asked).filter(open).take(most).collect();
        }
        let mut lines: Vec<_> = self.lines.values().collect();
        lines.sort_by_key(|line| line.len());
        let (mut left, mut keys) = (most, Vec::with_capacity(most));
        for (at, line) in lines.iter().enumerate() {
            let part = left.div_ceil(lines.len() - at).min(line.len());
            keys.extend(line.iter().take(part).copied());
            left -= part;
        }
        keys.sort_unstable();
        let waiting = keys.iter().filter_map(|key| self.queue.get(key));
        waiting.map(|waiting| &waiting.asked).filter(open).collect()
    }

    /// Whether a policy that moves jobs is asked although nobody waits: those who run may have it
    /// better elsewhere by now.
    fn reviews(&mut self, now: Millis) -> bool {
        let due = self.reviewed.is_none_or(|last| now >= last.plus(REVIEW_EVERY));
        let asks = due && self.policy.moves() && !self.live.is_empty();
        if asks {
            self.reviewed = Some(now);
        }
        asks
    }

    /// Tells those for whom a place is kept what they wait for.
    fn note_promises(&mut self, now: Millis, mint: &mut dyn FnMut() -> Uuid, round: &mut Round) {
        for job in self.moving.waiting() {
            if let Some(why) = self.why_promised(job, now) {
                self.note_wait(job, WaitReason::AwaitingRepartition, why, mint, round);
            }
        }
    }

    /// Tells the first of the queue that nothing is placed, and until when.
    fn hold_all(&mut self, now: Millis, mint: &mut dyn FnMut() -> Uuid, round: &mut Round) {
        let jobs: Vec<_> =
            self.queue.keys().map(|(_, job)| *job).take(LOOK_AT_WITHOUT_GPUS).collect();
        for job in jobs {
            let why = self.why_held(now);
            self.note_wait(job, WaitReason::PlacementHeld, why, mint, round);
        }
    }

    pub(super) fn why_held(&self, now: Millis) -> Explanation {
        let left = self.held_for(now).get().div_ceil(1_000);
        Explanation {
            policy: self.policy.name().to_owned(),
            summary: "the database was set back to an earlier state: what ran since is unknown, \
                      so nothing starts until every node that ran it must have stopped it"
                .to_owned(),
            would_start_if: Some(format!("{left} s pass")),
            ..Explanation::default()
        }
    }

    pub(super) fn reserve(
        &mut self,
        job: JobId,
        place: Place,
        why: Explanation,
        view: &ClusterView,
        mint: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        if let Some(reservation) = self.reservation(job, place, why, view, mint) {
            self.take_place(reservation, round);
        }
    }

    /// Works out what reserving a place for a waiting job takes; `None` if it can't be had.
    pub(super) fn reservation(
        &self,
        job: JobId,
        place: Place,
        why: Explanation,
        view: &ClusterView,
        mint: &mut dyn FnMut() -> Uuid,
    ) -> Option<Reservation> {
        let gpu = self.gpus.get(&place.gpu)?;
        let node = self.nodes.get(&gpu.node)?;
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
        let waiting = self.queued(job);
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
            share = Some(Sharer::new(user, Part::Compute(ComputeShare { slot: part, memory })));
            profile = format!("{}c.{profile}", part.slices);
        }
        let floor = waiting.and_then(|waiting| {
            // What was foretold last: runs that changed nothing of what it asks for count, too.
            waiting.floor.and_then(|_| self.floor(&GpuAsk::Unknown, &waiting.facts))
        });
        let beside = waiting.zip(share.as_ref()).and_then(|(waiting, sharer)| {
            self.foretell_beside(&waiting.facts, sharer, &place.gpu, place.slot)
        });
        let foretold = waiting.filter(|_| share.is_none()).and_then(|waiting| {
            self.foretell(job, &waiting.facts, waiting.done, &place.gpu, place.slot)
        });
        let capacity = capacity(gpu, place.slot);
        Some(Reservation {
            job,
            gang: waiting.and_then(|waiting| waiting.asked.gang).map(|member| member.gang),
            attempt: AttemptId::from_uuid(mint()),
            number: 0,
            node: gpu.node,
            generation: node.generation,
            gpu_index: gpu.report.index,
            profile,
            slots,
            share,
            capacity,
            slice,
            decision: DecisionId::from_uuid(mint()),
            why,
            place,
            beside,
            memory: floor.filter(|_| foretold.is_some()).map(|asked| asked.floor),
            foretold,
        })
    }

    pub(super) fn take_place(&mut self, mut reservation: Reservation, round: &mut Round) {
        let job = reservation.job;
        let Some(waiting) = self.dequeue(job) else { return };
        reservation.number = waiting.attempts + 1;
        let state =
            if reservation.slice.is_some() { JobState::Starting } else { JobState::Placing };
        let share = reservation.share.as_ref().map(|sharer| sharer.share);
        let worth = self.worth(&reservation.place.gpu, reservation.place.slot, share);
        self.charge(&waiting.asked.user, worth, self.stepped);
        let live = Live {
            worth,
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
            limit: super::LimitWord::AsLaunched,
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
        self.attempts.insert(job, reservation.attempt);
        self.live.insert(reservation.attempt, live);
        round.effects.push(Effect::Moved(JobMoved {
            job,
            attempt: Some(reservation.attempt),
            state,
        }));
        round.reservations.push(reservation);
    }

    fn note_wait(
        &mut self,
        job: JobId,
        reason: WaitReason,
        why: Explanation,
        mint: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        let Some(priority) = self.ranks.get(&job) else { return };
        let Some(waiting) = self.queue.get_mut(&(*priority, job)) else { return };
        // Recorded when it changes: a job that waits an hour is one row, not a row a round.
        if waiting.reason == Some(reason) {
            return;
        }
        waiting.reason = Some(reason);
        let decision = DecisionId::from_uuid(mint());
        round.waits.push(WaitRow { job, decision, reason: reason.word(), why });
    }

    /// Orders one plan for each GPU on which attempts wait for instances that don't stand.
    pub(super) fn order_plans(
        &mut self,
        now: Millis,
        mint: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        let mut wanted: BTreeMap<GpuId, Vec<(AttemptId, Slot)>> = BTreeMap::new();
        for (attempt, live) in &self.live {
            if let (JobState::Placing, Some(slot), None, None) =
                (live.state, live.slot, live.part(), &live.over)
            {
                wanted.entry(live.gpu.clone()).or_default().push((*attempt, slot));
            }
        }
        for (gpu, mut attempts) in wanted {
            // Attempt ids are ordered by time: the oldest names the plan.
            attempts.sort();
            if let Some(plan) = self.plan_for(&gpu, &attempts, now, mint) {
                self.unsent_plans.push(plan.clone());
                round.orders.push(plan);
            }
        }
    }

    fn plan_for(
        &mut self,
        id: &GpuId,
        attempts: &[(AttemptId, Slot)],
        now: Millis,
        mint: &mut dyn FnMut() -> Uuid,
    ) -> Option<PlanRow> {
        let gpu = self.gpus.get(id)?;
        let ready = self
            .nodes
            .get(&gpu.node)
            .is_some_and(|n| n.session.as_ref().is_some_and(|session| session.ready));
        if !ready || !gpu.fresh || gpu.open_plan.is_some() || now < gpu.paused_until {
            return None;
        }
        let MigReport::On { geometry } = &gpu.report.mig else { return None };
        let slots: Vec<_> = attempts.iter().map(|(_, slot)| *slot).collect();
        let steps = steps_to(geometry, gpu, &slots, |slot| self.must_stay(id, slot))?;
        if steps.is_empty() {
            return None;
        }
        let (attempt, _) = *attempts.first()?;
        let live = self.live.get(&attempt)?;
        let plan = PlanRow {
            plan: PlanId::from_uuid(mint()),
            gpu: id.clone(),
            node: gpu.node,
            layout_gen: gpu.layout_gen + 1,
            steps_text: steps.iter().map(|step| in_words(geometry, *step)).collect(),
            steps,
            job: Some(live.job),
            attempt: Some(attempt),
            decision: Some(live.decision),
            asked: None,
        };
        let gpu = self.gpus.get_mut(id)?;
        gpu.layout_gen = plan.layout_gen;
        gpu.open_plan = Some(plan.plan);
        Some(plan)
    }

    /// Whether an instance may not be destroyed: a live attempt has it, or an operator said so.
    pub(super) fn must_stay(&self, gpu: &GpuId, slot: Slot) -> bool {
        let held = self.live.values().any(|live| live.gpu == *gpu && live.slot == Some(slot));
        held || self.is_quarantined(gpu, slot)
    }

    pub(super) fn is_quarantined(&self, gpu: &GpuId, slot: Slot) -> bool {
        let Some(MigReport::On { geometry }) = self.gpus.get(gpu).map(|gpu| &gpu.report.mig) else {
            return false;
        };
        self.quarantined(gpu).any(|place| geometry.overlap(place, slot))
    }

    /// The oldest job for whose place the GPU is being changed.
    pub(super) fn placing_on(&self, gpu: &GpuId) -> Option<JobId> {
        let placing = self.live.values().filter(|l| l.gpu == *gpu && l.state == JobState::Placing);
        placing.map(|live| live.job).min().or(self.moving.first_on(gpu))
    }

    /// Returns a job that waits.
    pub(super) fn queued(&self, job: JobId) -> Option<&Waiting> {
        self.queue.get(&(*self.ranks.get(&job)?, job))
    }

    pub(super) fn gang_of(&self, job: JobId) -> Option<Member> {
        self.queued(job)?.asked.gang
    }

    /// Returns a waiting job with the others of its gang, as if they asked for the same.
    pub(super) fn with_gang(&self, job: &QueuedJob) -> Vec<QueuedJob> {
        let Some(member) = job.gang else { return vec![job.clone()] };
        let one = |id: JobId| {
            let rank = self.gang_of(id)?.rank;
            Some(QueuedJob { id, gang: Some(Member { rank, ..member }), ..job.clone() })
        };
        member.all().filter_map(one).collect()
    }
}

/// How often a policy that moves jobs is asked although nobody waits.
const REVIEW_EVERY: Millis = Millis::from_secs(2);
/// Most waiting jobs that one round looks at.
pub(super) const LOOK_AT_MAX: usize = 5_000;
/// As many as anyone reads the reasons of, while nothing can start.
const LOOK_AT_WITHOUT_GPUS: usize = 64;

/// Returns the memory of an instance, or of the whole GPU.
pub(super) fn capacity(gpu: &super::Gpu, slot: Option<Slot>) -> Bytes {
    let profile = slot.and_then(|slot| gpu.mig.as_ref()?.geometry.profile(slot.profile));
    profile.map_or(gpu.report.memory, |profile| profile.memory)
}

fn free_in(view: &ClusterView, place: &Place) -> bool {
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

/// Returns the steps that make the slots stand, computed from what stands now: idle instances
/// in the way are destroyed. `None` if a busy one is in the way.
pub(super) fn steps_to(
    geometry: &mig::Geometry,
    gpu: &super::Gpu,
    slots: &[Slot],
    held: impl Fn(Slot) -> bool,
) -> Option<Vec<Step>> {
    let wanted_mask = slots.iter().filter_map(|s| geometry.mask(*s).ok()).fold(0, |a, b| a | b);
    let standing: Vec<Occupant> = gpu
        .report
        .instances
        .iter()
        // Its creation completes an instance that is half made.
        .filter(|i| i.slice.is_some() || !slots.contains(&i.slot))
        .map(|i| Occupant {
            slot: i.slot,
            busy: held(i.slot) || i.trouble.is_some() || i.slice.is_none(),
        })
        .collect();
    let in_the_way = |o: &Occupant| {
        !slots.contains(&o.slot) && geometry.mask(o.slot).is_ok_and(|mask| mask & wanted_mask != 0)
    };
    let mut wanted: Layout =
        standing.iter().filter(|o| o.busy || !in_the_way(o)).map(|o| o.slot).collect();
    wanted.extend(slots);
    mig::plan(geometry, &standing, &wanted).ok()
}

pub(super) fn in_words(geometry: &mig::Geometry, step: Step) -> String {
    let name = |slot: Slot| {
        geometry.profile(slot.profile).map_or_else(String::new, |p| p.name.to_string())
    };
    match step {
        Step::Destroy(slot) => format!("destroy {}@{}", name(slot), slot.start),
        Step::Create(slot) => format!("create {}@{}", name(slot), slot.start),
        Step::Cut(slot, cut) => format!("cut {}@{} into {cut}", name(slot), slot.start),
    }
}
