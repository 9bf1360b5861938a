//! When the slices of GPUs are expected to be free: what backfill and deadlines plan with.

use std::cmp::Reverse;

use tessera_model::mig::{PlanStep, Profile, Slot, select_instances_to_destroy};
use tessera_model::number::clamped;
use tessera_model::{JobId, Millis};

use tessera_placement::decision::{Decision, Explanation, JobPlacement};
use tessera_placement::policy::planned_gpu::PlannedGpu;
use tessera_placement::predictor::Knowledge;
use tessera_placement::request::SliceRequest;
use tessera_placement::view::{GpuView, MigView, QueuedJob};
use tessera_placement::working_state::WorkingGpu;

/// How long a job is planned to run of which neither a run time nor a limit is known: a year, as Slurm plans a job
/// with an unlimited time. Nothing is then started before a reservation in its place.
pub(crate) const UNLIMITED: Millis = Millis::from_secs(365 * 86_400);

/// How long a job that outlived its prediction is expected to run on.
///
/// Source: Tsafrir, Etsion and Feitelson, TPDS 2007: the first correction of a prediction is a minute.
const CORRECTION: Millis = Millis::from_secs(60);

/// The most work of a job, in the unit of [`tessera_placement::JobFacts::done`].
const WHOLE_JOB: u64 = 1_000_000;

/// Expected times, from predictions and time limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedTimes<'k> {
    pub(crate) knowledge: Knowledge<'k>,
    pub(crate) now: Millis,
}

impl ExpectedTimes<'_> {
    /// Returns how long a waiting job would run on such an instance: by its prediction, or else until its limit, or
    /// else for [`UNLIMITED`].
    pub(crate) fn run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Millis {
        let facts = self.knowledge.jobs.facts(job);
        match self.knowledge.predictor.time_alone(job, gpu, profile) {
            Some(whole) => remaining(whole, facts.done),
            None => facts.limit.unwrap_or(UNLIMITED),
        }
    }

    /// Returns how long a job that runs on such an instance is expected to stay there; at least a millisecond.
    pub(crate) fn rest(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Millis {
        let facts = self.knowledge.jobs.facts(job);
        let elapsed = facts.since.map_or(Millis::ZERO, |since| self.now.minus(since));
        let until = |end: Millis| match end.minus(elapsed) {
            Millis::ZERO => CORRECTION,
            rest => rest,
        };
        let rest = match (self.knowledge.predictor.time_alone(job, gpu, profile), facts.done) {
            (Some(whole), Some(done)) => remaining(whole, Some(done)),
            (Some(whole), None) => until(whole),
            (None, _) => facts.limit.map_or_else(|| until(UNLIMITED), until),
        };
        rest.max(Millis::new(1))
    }
}

fn remaining(whole: Millis, done: Option<u32>) -> Millis {
    let left = WHOLE_JOB.saturating_sub(done.map_or(0, u64::from));
    let rest = (u128::from(whole.get()) * u128::from(left)).div_ceil(u128::from(WHOLE_JOB));
    Millis::new(clamped(rest))
}

/// A slot that is in use for a time, by a job that runs or by one that has a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupied {
    pub(crate) slot: Slot,
    pub(crate) from: Millis,
    pub(crate) until: Millis,
}

/// One GPU with the times in which its slots are in use.
#[derive(Debug)]
pub(crate) struct GpuTimeline<'c> {
    pub(crate) planned: PlannedGpu<'c>,
    working: WorkingGpu<'c>,
    occupied: Vec<Occupied>,
}

/// A slot of one GPU and when a job could start there, in the order of choice. That is the earliest start, the least
/// memory, the first GPU, and there the last slot.
///
/// The order depends on nothing that changes while jobs run. So a job keeps its reservation from round to round, as
/// long as jobs end when they are expected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StartOption {
    pub(crate) start: Millis,
    /// Whether it is free now, but can't be created while the GPU's layout is changing.
    is_blocked: bool,
    memory: tessera_model::Bytes,
    pub(crate) gpu: usize,
    last_first: Reverse<(u8, u8)>,
    pub(crate) slot: Slot,
}

impl<'c> GpuTimeline<'c> {
    /// Reads a GPU with the jobs that run there. GPUs with MIG off, with instances of others, or without a known
    /// layout are left out.
    pub(crate) fn new(working: WorkingGpu<'c>, times: &ExpectedTimes<'_>) -> Option<Self> {
        let planned = PlannedGpu::new(working.view)?;
        working.layout?;
        let occupied = planned.placements.iter().filter_map(|placed| {
            let slot = placed.slot?;
            let rest = times.rest(placed.job, planned.view, planned.profile(slot)?);
            Some(Occupied { slot, from: times.now, until: times.now.plus(rest) })
        });
        let occupied = occupied.collect();
        Some(Self { planned, working, occupied })
    }

    pub(crate) const fn mig(&self) -> &'c MigView {
        self.planned.mig
    }

    pub(crate) const fn view(&self) -> &'c GpuView {
        self.planned.view
    }

    /// Returns whether new jobs may use its slots.
    pub(crate) fn is_usable(&self) -> bool {
        self.planned.view.available && self.planned.view.operator.pinned.is_none()
    }

    fn is_free(&self, slot: Slot, from: Millis, until: Millis) -> bool {
        let space = self.mig().all();
        let apart = |occupied: &Occupied| {
            occupied.until <= from
                || occupied.from >= until
                || !excludes(space, occupied.slot, slot)
        };
        self.occupied.iter().all(apart)
    }

    /// Returns when a slot is first free for so long.
    fn first_free(&self, slot: Slot, duration: Millis, now: Millis) -> Option<Millis> {
        let space = self.mig().all();
        let in_the_way = |occupied: &&Occupied| excludes(space, occupied.slot, slot);
        let mut starts: Vec<Millis> =
            self.occupied.iter().filter(in_the_way).map(|occupied| occupied.until).collect();
        starts.push(now);
        starts.sort_unstable();
        let mut starts = starts.into_iter().filter(|start| *start >= now);
        starts.find(|start| self.is_free(slot, *start, start.plus(duration)))
    }

    /// Returns the layout steps after which a job could have a slot at once; `None` if it can't have it now.
    pub(crate) fn steps_to(&self, slot: Slot) -> Option<Vec<PlanStep>> {
        let standing = self.working.layout.as_ref()?;
        let space = standing.mig.all();
        space.allocate(standing.busy, slot)?;
        if space.free(standing.all, slot).is_some() {
            return self.planned.view.available.then(Vec::new);
        }
        if !self.planned.open {
            return None;
        }
        if space.allocate(standing.all, slot).is_some() {
            return Some(vec![PlanStep::Create(slot)]);
        }
        let busy = space.layout(standing.busy);
        let idle: Vec<Slot> =
            space.layout(standing.all).into_iter().filter(|other| !busy.contains(other)).collect();
        let gone = select_instances_to_destroy(space, standing.all, &idle, slot)?;
        Some(gone.into_iter().map(PlanStep::Destroy).chain([PlanStep::Create(slot)]).collect())
    }

    /// Gives a job a slot at once, and plans that it stays until then.
    pub(crate) fn start(
        &mut self,
        job: &QueuedJob,
        occupied: Occupied,
        why: Explanation,
    ) -> Option<Decision> {
        let steps = self.steps_to(occupied.slot)?;
        self.working.take(job.id, job.share.as_ref(), Some(occupied.slot), &steps);
        self.occupied.push(occupied);
        let place = JobPlacement {
            gpu: self.planned.view.id.clone(),
            slot: Some(occupied.slot),
            steps,
            part: None,
            share: None,
        };
        Some(Decision::Start { job: job.id, place, why })
    }

    /// Keeps a slot for a job for a later time.
    pub(crate) fn reserve(&mut self, occupied: Occupied) {
        self.occupied.push(occupied);
    }

    /// Returns the slots that fit a request tightly, each with its profile: the smallest memory that suffices.
    pub(crate) fn tight_slots(
        &self,
        request: &SliceRequest,
    ) -> impl Iterator<Item = (Slot, &'c Profile)> {
        let profiles = request.tight(self.mig()).into_iter();
        profiles.flat_map(|profile| {
            let slot = move |start: &u8| (Slot { start: *start, profile: profile.id }, profile);
            profile.starts.iter().map(slot)
        })
    }

    /// Returns when and how a job could start in a slot.
    pub(crate) fn option(
        &self,
        gpu: usize,
        (slot, profile): (Slot, &Profile),
        duration: Millis,
        now: Millis,
    ) -> Option<StartOption> {
        let start = self.first_free(slot, duration, now)?;
        let is_blocked = start == now && self.steps_to(slot).is_none();
        let last_first = Reverse((slot.start, profile.compute_slices));
        Some(StartOption { start, is_blocked, memory: profile.memory, gpu, last_first, slot })
    }
}

/// Returns whether two slots can't be in use at once.
fn excludes(space: &tessera_model::mig::StateSpace, a: Slot, b: Slot) -> bool {
    a == b || space.exclude(a, b)
}
