//! A round in which some jobs can be moved and others stay where they start.
//!
//! A job is **weighed** if times of its task are known and it can be moved again. Then a slice that turns out
//! too large or too small later can be replaced, and the exact search places it. All others are placed for
//! their whole run by [`stay`].
//!
//! - Who runs and can't be moved stays where it is: the search plans around it.
//! - Where others wait since the slices are taken, the search may free space: weighed jobs that run
//!   shrink or go elsewhere, if that pays.
//! - While a job that stays waits, all jobs that wait stand in one order, and get places for their whole run. Those that
//!   can be moved get a better place later.
//! - Of two slices on which a job was seen to be as quick the smaller one is better ([`THRIFT`]). Of
//!   two on which it is only taken to be, the larger one is better. It may be quicker there, no job waits
//!   for it, and what it takes there is known from then on.
//! - A weighed job for which the search finds nothing is placed as those that stay.
//! - While a job waits, the search moves others only to free a place for the first one that does.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use tessera_model::mig::Profile;
use tessera_model::share::SmPercent;
use tessera_model::spec::{GpuRequest, Priority};
use tessera_model::{GpuId, JobId, Millis};

use super::scoring::SlicePreference;
use super::stay::{self, StayInput};
use super::{NAME, Tessera};
use crate::decision::{Decision, Explanation, WaitReason};
use crate::facts::{Account, JobFacts, JobTable};
use crate::predictor::{Knowledge, Predictor, RunTime};
use crate::request::SliceRequest;
use crate::view::{ClusterView, GpuView, InstanceState, MpsClient, QueuedJob};

/// What each compute slice more has to gain a job, in parts of its time. Chosen: less than a
/// measurement's error, enough to decide between slices on which it is as quick.
const THRIFT: f64 = 0.005;
/// What more than its time a larger slice is hoped to gain a job that was never seen there, in
/// parts of one for a whole GPU. Chosen: enough to decide between equals, no reason to stop anybody.
const HOPE: f64 = 0.01;
/// What is taken to be the time of a job of which none is known. Chosen.
const UNKNOWN_TIME: Millis = Millis::from_secs(3_600);
/// Most jobs that one round weighs. As many as [`Tessera`] looks at.
const WEIGHED_MAX: usize = 64;

/// Returns the jobs that have an instance to themselves.
fn running(cluster: &ClusterView) -> impl Iterator<Item = JobId> {
    let instances = cluster.gpus.iter().flat_map(|gpu| &gpu.instances);
    instances.filter_map(|instance| match instance.state {
        InstanceState::Taken { job } => Some(job),
        _ => None,
    })
}

/// Decides one round, quotas apart.
pub(super) fn decide(
    settings: &Tessera,
    input: StayInput<'_>,
    queue: &[&QueuedJob],
    starts_max: usize,
) -> Vec<Decision> {
    let StayInput { cluster, knowledge, now, .. } = input;
    let kinds = cluster.one_of_each_kind();
    let (weighed, plain): (Vec<_>, Vec<_>) =
        queue.iter().copied().partition(|job| is_weighed(&kinds, knowledge, job));
    let moves = anybody_moves(cluster, knowledge);
    let search = |hidden: &BTreeSet<GpuId>, jobs: &[&QueuedJob], starts_max: usize| {
        let seen = without(cluster, hidden);
        let mut next = jobs.iter().copied().take(WEIGHED_MAX);
        let known = Known {
            knowledge,
            kinds: &kinds,
            candidates: next.clone().map(|job| (job.id, job)).collect(),
            known: RefCell::default(),
            thrift: settings.thrift.clamp(0.0, 0.9),
        };
        let searched = Knowledge { jobs: &known, predictor: &known, budget: knowledge.budget };
        let found = settings.search(&seen, searched, Some(&known), &mut next, now, starts_max);
        found.into_iter().filter(|d| matches!(d, Decision::Reshape { .. })).collect::<Vec<_>>()
    };
    let placed =
        |found: &[Decision]| -> BTreeSet<JobId> { found.iter().flat_map(placed_jobs).collect() };
    if plain.is_empty() {
        if weighed.is_empty() && !moves {
            return Vec::new();
        }
        let mut decided = search(&BTreeSet::new(), &weighed, starts_max);
        let placed = placed(&decided);
        let left: Vec<&QueuedJob> =
            weighed.into_iter().filter(|job| !placed.contains(&job.id)).collect();
        let hidden = decided.iter().filter_map(reshaped).collect();
        decided.extend(leftovers(input, &left, &hidden, starts_max));
        return decided;
    }
    // Jobs that can be moved stand in one order with those that stay: else the latter would always be first.
    let stays = stay::decide(input, queue, starts_max);
    let mut decided = stays.decisions;
    let mut hidden = touched(&decided);
    let starts = decided.iter().filter(|decision| waiting(decision).is_none()).count();
    let left_to_start = starts_max.saturating_sub(starts);
    let first = queue.iter().copied().find(|job| stays.first_waiting == Some(job.id));
    let found = match first {
        _ if !moves => Vec::new(),
        // Its reserved place is freed for it, or left alone.
        Some(first) if frees_capacity(first, &decided) => {
            let found = search(&hidden, &[first], left_to_start);
            if placed(&found).contains(&first.id) { found } else { Vec::new() }
        }
        Some(_) => Vec::new(),
        None => {
            hidden.extend(stays.reserved.iter().map(|at| cluster.gpus[*at].id.clone()));
            search(&hidden, &[], left_to_start)
        }
    };
    let placed = placed(&found);
    decided.retain(|decision| waiting(decision).is_none_or(|job| !placed.contains(&job)));
    decided.extend(found);
    decided
}

/// Whether every job that runs or waits is weighed, and its times are measured, so that the search alone decides.
pub(super) fn all_weighed<'q>(
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    waiting: impl Iterator<Item = &'q QueuedJob>,
) -> bool {
    let kinds = cluster.one_of_each_kind();
    let is_known = |job: JobId| {
        can_be_weighed(&knowledge.jobs.facts(job)) && is_measured(&kinds, knowledge, job)
    };
    let mut waiting = waiting;
    cluster.gpus.iter().all(|gpu| gpu.mig.is_some())
        && waiting.all(|job| job.share.is_none() && is_known(job.id))
        && occupants(cluster).all(is_known)
}

/// The same of some jobs that wait.
pub(super) fn are_weighed<'q>(
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    mut waiting: impl Iterator<Item = &'q QueuedJob>,
) -> bool {
    let kinds = cluster.one_of_each_kind();
    waiting.all(|job| is_weighed(&kinds, knowledge, job) && is_measured(&kinds, knowledge, job.id))
}

/// Whether a job's time on a whole GPU rests on runs: else its larger slices are hoped to be faster.
fn is_measured(kinds: &[&GpuView], knowledge: Knowledge<'_>, job: JobId) -> bool {
    kinds.iter().any(|gpu| {
        let largest = gpu.mig.as_deref().and_then(|mig| mig.largest());
        let run = largest.and_then(|on| knowledge.predictor.predict_run(job, gpu, on));
        run.is_some_and(|run| run.is_measured)
    })
}

/// Returns all jobs that run.
fn occupants(cluster: &ClusterView) -> impl Iterator<Item = JobId> {
    let instances = cluster.gpus.iter().flat_map(|gpu| &gpu.instances);
    instances.flat_map(|instance| match &instance.state {
        InstanceState::Taken { job } => vec![*job],
        InstanceState::Shared(tenancy) => tenancy.sharers.iter().map(|(job, _)| *job).collect(),
        InstanceState::Cut(compute) => compute.taken().map(|(job, _)| job).collect(),
        _ => Vec::new(),
    })
}

/// Whether a job's times are known, and it could be moved again.
fn is_weighed(kinds: &[&GpuView], knowledge: Knowledge<'_>, job: &QueuedJob) -> bool {
    job.share.is_none()
        && can_be_weighed(&knowledge.jobs.facts(job.id))
        && is_timed(kinds, knowledge, job.id)
}

/// Whether a job's time on a whole GPU is known.
fn is_timed(kinds: &[&GpuView], knowledge: Knowledge<'_>, job: JobId) -> bool {
    kinds.iter().any(|gpu| {
        let largest = gpu.mig.as_deref().and_then(|mig| mig.largest());
        largest.is_some_and(|largest| knowledge.predictor.time_alone(job, gpu, largest).is_some())
    })
}

/// Whether a job's progress is known, and it could be moved again.
const fn can_be_weighed(facts: &JobFacts) -> bool {
    facts.done.is_some() && facts.migration_price.is_some()
}

/// Whether any running job could be moved: if none, there is nothing to search.
fn anybody_moves(cluster: &ClusterView, knowledge: Knowledge<'_>) -> bool {
    running(cluster).any(|job| knowledge.jobs.migration_price(job).is_some())
}

const fn waiting(decision: &Decision) -> Option<JobId> {
    match decision {
        Decision::Wait { job, .. } => Some(*job),
        Decision::Start { .. } | Decision::Reshape { .. } => None,
    }
}

/// Whether the search may look for space for a job that the rules let wait.
fn frees_capacity(job: &QueuedJob, decided: &[Decision]) -> bool {
    // One that names its profile could not be distinguished from one that may have the whole GPU.
    job.share.is_none()
        && !matches!(job.gpu, GpuRequest::Profile(_))
        && decided.iter().any(|decision| match decision {
            Decision::Wait { job: waits, reason, .. } => {
                *waits == job.id
                    && matches!(reason, WaitReason::Resources | WaitReason::MigFragmentation)
            }
            Decision::Start { .. } | Decision::Reshape { .. } => false,
        })
}

fn touched(decided: &[Decision]) -> BTreeSet<GpuId> {
    let started = decided.iter().filter_map(|decision| match decision {
        Decision::Start { place, .. } => Some(place.gpu.clone()),
        Decision::Wait { .. } | Decision::Reshape { .. } => None,
    });
    started.collect()
}

fn reshaped(decision: &Decision) -> Option<GpuId> {
    match decision {
        Decision::Reshape { reshape, .. } => Some(reshape.gpu.clone()),
        Decision::Start { .. } | Decision::Wait { .. } => None,
    }
}

fn placed_jobs(decision: &Decision) -> Vec<JobId> {
    match decision {
        Decision::Reshape { reshape, .. } => {
            reshape.placements.iter().map(|placed| placed.job).collect()
        }
        Decision::Start { .. } | Decision::Wait { .. } => Vec::new(),
    }
}

/// Returns the cluster with GPUs that nothing more may be decided for in this round.
fn without(cluster: &ClusterView, hidden: &BTreeSet<GpuId>) -> ClusterView {
    let mut seen = cluster.clone();
    for gpu in seen.gpus.iter_mut().filter(|gpu| hidden.contains(&gpu.id)) {
        gpu.available = false;
    }
    seen
}

/// Places by the rules the jobs that the search left, on GPUs that nothing was decided for yet.
fn leftovers(
    input: StayInput<'_>,
    left: &[&QueuedJob],
    hidden: &BTreeSet<GpuId>,
    starts_max: usize,
) -> Vec<Decision> {
    if left.is_empty() {
        return Vec::new();
    }
    let seen = without(input.cluster, hidden);
    let mut decided =
        stay::decide(StayInput { cluster: &seen, ..input }, left, starts_max).decisions;
    if !hidden.is_empty() {
        // Explanations by the rules about GPUs that only this round closes would be wrong.
        for decision in &mut decided {
            if let Decision::Wait { reason, why, .. } = decision {
                *reason = WaitReason::Resources;
                *why = Explanation {
                    policy: NAME.to_owned(),
                    summary:
                        "on every suitable GPU, other jobs gain more from the slices than this \
                              job would now"
                            .to_owned(),
                    would_start_if: Some("a job ends, or it has waited longer".to_owned()),
                    ..Explanation::default()
                };
            }
        }
    }
    decided
}

/// The knowledge of the search: what is known, and that all other jobs stay where they are.
struct Known<'f> {
    knowledge: Knowledge<'f>,
    kinds: &'f [&'f GpuView],
    /// The waiting jobs that the search may place.
    candidates: HashMap<JobId, &'f QueuedJob>,
    /// Whether enough is known of a job, as far as it was computed: each takes several predictions.
    known: RefCell<HashMap<JobId, bool>>,
    /// What the search takes off a whole GPU's score for energy, in parts of one.
    thrift: f64,
}

impl Known<'_> {
    fn candidate(&self, job: JobId) -> Option<&QueuedJob> {
        self.candidates.get(&job).copied()
    }

    fn is_known(&self, job: JobId) -> bool {
        if let Some(known) = self.known.borrow().get(&job) {
            return *known;
        }
        let known = self.looks_known(job);
        self.known.borrow_mut().insert(job, known);
        known
    }

    fn looks_known(&self, job: JobId) -> bool {
        can_be_weighed(&self.knowledge.jobs.facts(job))
            && self
                .candidate(job)
                .is_none_or(|candidate| is_weighed(self.kinds, self.knowledge, candidate))
    }
}

/// Returns how many times as long a time counts, a little more for each slice, so that nobody gets more for
/// nothing.
fn thrifty(profile: &Profile) -> f64 {
    1.0 + THRIFT * f64::from(profile.compute_slices)
}

impl SlicePreference for Known<'_> {
    fn stretch(&self, job: JobId, run: RunTime, gpu: &GpuView, on: &Profile) -> f64 {
        if !self.is_known(job) {
            return 1.0;
        }
        if run.is_measured {
            return thrifty(on);
        }
        // What the search takes off for energy is taken back, and a little more: as much as decides between
        // equals, and less than what somebody is stopped for.
        let whole = gpu.mig.as_deref().and_then(|mig| mig.largest());
        let whole = whole.map_or(1, |largest| largest.compute_slices.max(1));
        let part = f64::from(on.compute_slices) / f64::from(whole);
        1.0 - (self.thrift + HOPE) * part
    }

    fn stretch_shared(&self, on: &Profile) -> f64 {
        thrifty(on)
    }
}

impl JobTable for Known<'_> {
    fn since(&self, job: JobId) -> Option<Millis> {
        self.knowledge.jobs.since(job)
    }

    fn facts(&self, job: JobId) -> JobFacts {
        let facts = self.knowledge.jobs.facts(job);
        let is_known = self.is_known(job);
        // A running job has begun, so that going elsewhere has its price.
        let least = u32::from(self.candidate(job).is_none());
        let done = facts.done.filter(|_| is_known).unwrap_or(0).max(least);
        let migration_price = facts.migration_price.filter(|_| is_known);
        JobFacts { done: Some(done), migration_price, ..facts }
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.knowledge.jobs.account(job)
    }
}

impl Predictor for Known<'_> {
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        if self.is_known(job) {
            return self.knowledge.predictor.predict_run(job, gpu, profile);
        }
        let suits = match (self.candidate(job), gpu.mig.as_deref()) {
            (Some(candidate), Some(mig)) => SliceRequest::of(&candidate.gpu, None)
                .tight(mig)
                .iter()
                .any(|tight| tight.id == profile.id),
            (Some(_), None) => false,
            (None, _) => true,
        };
        let largest = || gpu.mig.as_deref()?.largest().map(|largest| largest.id);
        let may_run = suits || largest() == Some(profile.id);
        may_run.then_some(RunTime { time: UNKNOWN_TIME, is_measured: false })
    }

    fn predict_mps_run(
        &self,
        job: JobId,
        sm: SmPercent,
        co_runners: &[(JobId, SmPercent)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        // Who stays alone where it is shares with nobody.
        if !self.is_known(job) {
            return None;
        }
        self.knowledge.predictor.predict_mps_run(job, sm, co_runners, gpu, profile)
    }

    fn predict_kernel_shared_run(
        &self,
        job: JobId,
        priority: Priority,
        co_runners: &[(JobId, Priority)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        if !self.is_known(job) {
            return None;
        }
        let predictor = self.knowledge.predictor;
        predictor.predict_kernel_shared_run(job, priority, co_runners, gpu, profile)
    }

    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<u64>> {
        self.knowledge.predictor.predict_speeds(clients, gpu, profile)
    }
}
