//! A round in which some jobs can be migrated and others stay where they start.
//!
//! A job is **weighed** if times of its task are known and it can be migrated later. Then the exact search
//! places it, since a slice that turns out too large or too small can be replaced. All others are placed for
//! their whole run by [`stay`].
//!
//! - A running job that can't be migrated stays where it is: the search plans around it.
//! - A running job that could be migrated and has an unknown length is expected to run on for as long as it
//!   has run ([`AssumedRun`]). So it gets slices that no other job needs. It leaves them again once it has
//!   run for long enough that the move pays.
//! - Where others wait because all slices are taken, the search may free space. Running jobs that can be
//!   migrated then get smaller slices or move elsewhere, if that pays.
//! - A job that stays gets a size that suits it for its whole run, or waits for one if jobs that can be
//!   migrated leave it such a slice ([`MissedSizes`]). Otherwise it would get only what is left.
//! - While a job that stays is waiting, all waiting jobs have one order, and get placements for their whole
//!   run. Those that can be migrated get a better placement later.
//! - Of two slices on which runs of a job were equally fast, the smaller one is better ([`THRIFT`]). If this
//!   is only assumed, the larger one is better for a starting job. It may be faster there, no job waits for
//!   that slice, and its time there is known afterwards. A running job is expected to gain there what jobs
//!   usually gain.
//! - A weighed job for which the search finds nothing is placed like those that stay.
//! - While jobs wait, the search moves others only to free a slice for the first waiting job.
//! - While deadlines need whole GPUs ([`stay::DeadlinePressure`]), no job is moved, and all that wait are placed by
//!   [`stay`].

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tessera_model::mig::{Profile, Slot};
use tessera_model::place::PlaceFilter;
use tessera_model::spec::GpuRequest;
use tessera_model::{Bytes, GpuId, JobId, Millis};

use super::scoring::SlicePreference;
use super::stay::sizes;
use super::stay::{self, MissedSize, MissedSizes, StayInput};
use super::{NAME, Tessera};
use crate::decision::{Decision, Explanation, WaitReason};
use crate::facts::{Account, JobFacts, JobTable};
use crate::predictor::{Knowledge, Predictor, RunTime, SharedPart, SpeedBasis, SpeedRange};
use crate::request::SliceRequest;
use crate::view::{ClusterView, GpuView, InstanceState, MpsClient, QueuedJob};

/// The gain that each further compute slice must bring a job, as a part of its time. Chosen: less than a
/// measurement's error, and enough to decide between slices on which it is equally fast.
const THRIFT: f64 = 0.005;
/// The additional gain that is assumed of a larger slice on which the task never ran, as a fraction of one
/// for a whole GPU. Chosen: enough to decide between equals, and no reason to stop a job.
const HOPE: f64 = 0.01;
/// The assumed time of a job without any known time. Chosen.
const UNKNOWN_TIME: Millis = Millis::from_secs(3_600);
/// The most jobs for which a round looks for better sizes than the free ones. Chosen to limit the duration of
/// a round.
const SQUEEZED_MAX: usize = 4;
/// The most jobs that one round weighs: as many as [`Tessera`] considers.
const WEIGHED_MAX: usize = 64;

/// Returns the jobs that have an instance to themselves.
fn running(cluster: &ClusterView) -> impl Iterator<Item = JobId> {
    let instances = cluster.gpus.iter().flat_map(|gpu| &gpu.instances);
    instances.filter_map(|instance| match instance.state {
        InstanceState::Taken { job } => Some(job),
        _ => None,
    })
}

/// Returns the place of each job that has an instance to itself.
fn homes(cluster: &ClusterView) -> HashMap<JobId, (&GpuView, Slot)> {
    let instances =
        cluster.gpus.iter().flat_map(|gpu| gpu.instances.iter().map(move |on| (gpu, on)));
    let taken = instances.filter_map(|(gpu, instance)| match instance.state {
        InstanceState::Taken { job } => Some((job, (gpu, instance.slot?))),
        _ => None,
    });
    taken.collect()
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
    // Ends at the first job that stays: the facts of thousands of equal ones behind it are not read.
    let all_weighed = queue.iter().all(|job| is_weighed(&kinds, knowledge, job));
    let moves = anybody_moves(cluster, knowledge);
    let search = |hidden: &BTreeSet<GpuId>,
                  jobs: &[&QueuedJob],
                  missed: &[MissedSizes],
                  starts_max: usize| {
        let seen = without(cluster, hidden);
        let mut next = jobs.iter().copied().take(WEIGHED_MAX);
        let known = Known {
            knowledge,
            kinds: &kinds,
            candidates: next.clone().map(|job| (job.id, job)).collect(),
            missed: missed.iter().map(|missed| (missed.job, missed.sizes.clone())).collect(),
            homes: homes(cluster),
            standings: RefCell::default(),
            thrift: settings.thrift.clamp(0.0, 0.9),
            has_parts: cluster.has_parts(),
            now,
        };
        let searched = Knowledge { jobs: &known, predictor: &known, budget: knowledge.budget };
        let found = settings.search(&seen, searched, Some(&known), &mut next, now, starts_max);
        found.into_iter().filter(|d| matches!(d, Decision::Reshape { .. })).collect::<Vec<_>>()
    };
    let placed =
        |found: &[Decision]| -> BTreeSet<JobId> { found.iter().flat_map(placed_jobs).collect() };
    if all_weighed {
        if queue.is_empty() && !moves {
            return Vec::new();
        }
        let mut decided = search(&BTreeSet::new(), queue, &[], starts_max);
        let placed = placed(&decided);
        let left: Vec<&QueuedJob> =
            queue.iter().copied().filter(|job| !placed.contains(&job.id)).collect();
        let hidden = decided.iter().filter_map(reshaped).collect();
        decided.extend(leftovers(input, &left, &hidden, starts_max));
        return decided;
    }
    // Jobs that can be migrated are in one order with those that stay: otherwise the latter would always be
    // first.
    let stays = stay::decide(input, queue, starts_max);
    let mut decided = stays.decisions;
    let starts = decided.iter().filter(|decision| waiting(decision).is_none()).count();
    let left_to_start = starts_max.saturating_sub(starts);
    let mut found = Vec::new();
    // A job that would get a poor size for its whole run gets a good one, if jobs that can be migrated leave
    // it.
    let squeezed =
        stays.missed.iter().filter(|missed| moves && Some(missed.job) != stays.first_waiting);
    for missed in squeezed.take(SQUEEZED_MAX) {
        let Some((job, others)) = without_start(queue, &decided, missed.job) else { continue };
        let mut hidden = touched(&others);
        hidden.extend(found.iter().filter_map(reshaped));
        let better = search(&hidden, &[job], std::slice::from_ref(missed), 1);
        if placed(&better).contains(&job.id) {
            decided = others;
            found.extend(better);
        }
    }
    let mut hidden = touched(&decided);
    hidden.extend(found.iter().filter_map(reshaped));
    let first = queue.iter().copied().find(|job| stays.first_waiting == Some(job.id));
    match first {
        _ if !moves => {}
        // Its reserved slot is freed for it, or not touched.
        Some(first) if frees_capacity(first, &decided) => {
            let better = search(&hidden, &[first], &stays.missed, left_to_start);
            if placed(&better).contains(&first.id) {
                found.extend(better);
            }
        }
        Some(_) => {}
        None => {
            hidden.extend(stays.reserved.iter().map(|at| cluster.gpus[*at].id.clone()));
            found.extend(search(&hidden, &[], &[], left_to_start));
        }
    }
    let placed = placed(&found);
    decided.retain(|decision| waiting(decision).is_none_or(|job| !placed.contains(&job)));
    decided.extend(found);
    decided
}

/// Returns whether all running and waiting jobs are weighed and have measured times, so that the search alone
/// decides.
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

/// Returns whether a job's time on a whole GPU is based on runs: otherwise larger slices are assumed to be
/// faster.
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

/// Returns whether a job's times are known and it could be migrated again.
fn is_weighed(kinds: &[&GpuView], knowledge: Knowledge<'_>, job: &QueuedJob) -> bool {
    job.share.is_none()
        && can_be_weighed(&knowledge.jobs.facts(job.id))
        && is_timed(kinds, knowledge, job.id)
}

/// Returns whether a job's time on a whole GPU is known.
fn is_timed(kinds: &[&GpuView], knowledge: Knowledge<'_>, job: JobId) -> bool {
    kinds.iter().any(|gpu| {
        let largest = gpu.mig.as_deref().and_then(|mig| mig.largest());
        largest.is_some_and(|largest| knowledge.predictor.time_alone(job, gpu, largest).is_some())
    })
}

/// Returns whether a job's progress is known and it could be migrated again. One that rests after its start could be
/// later: the search leaves it where it is until then.
const fn can_be_weighed(facts: &JobFacts) -> bool {
    facts.done.is_some() && (facts.migration_price.is_some() || facts.resting)
}

/// Returns whether any running job could be migrated: if none could, there is nothing to search.
fn anybody_moves(cluster: &ClusterView, knowledge: Knowledge<'_>) -> bool {
    running(cluster).any(|job| knowledge.jobs.migration_price(job).is_some())
}

const fn started_job(decision: &Decision) -> Option<JobId> {
    match decision {
        Decision::Start { job, .. } => Some(*job),
        Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    }
}

/// Removes a job's start from the decisions. It stays if other jobs start on the same GPU: their steps may
/// depend on its steps.
fn without_start<'q>(
    queue: &[&'q QueuedJob],
    decided: &[Decision],
    job: JobId,
) -> Option<(&'q QueuedJob, Vec<Decision>)> {
    let own = decided.iter().position(|decision| started_job(decision) == Some(job))?;
    let mut others = decided.to_vec();
    let gpu = others.remove(own).gpu()?.clone();
    let queued = queue.iter().copied().find(|queued| queued.id == job)?;
    (!touched(&others).contains(&gpu)).then_some((queued, others))
}

const fn waiting(decision: &Decision) -> Option<JobId> {
    match decision {
        Decision::Wait { job, .. } => Some(*job),
        Decision::Start { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    }
}

/// Returns whether the search may look for space for a job that has to wait by the rules.
fn frees_capacity(job: &QueuedJob, decided: &[Decision]) -> bool {
    // A job that names its profile could not be distinguished from one that may have the whole GPU.
    job.share.is_none()
        && !matches!(job.gpu, GpuRequest::Profile(_))
        && decided.iter().any(|decision| match decision {
            Decision::Wait { job: waits, reason, .. } => {
                *waits == job.id
                    && matches!(reason, WaitReason::Resources | WaitReason::MigFragmentation)
            }
            Decision::Start { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => false,
        })
}

fn touched(decided: &[Decision]) -> BTreeSet<GpuId> {
    let started = decided.iter().filter_map(|decision| match decision {
        Decision::Start { place, .. } => Some(place.gpu.clone()),
        Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    });
    started.collect()
}

fn reshaped(decision: &Decision) -> Option<GpuId> {
    match decision {
        Decision::Reshape { reshape, .. } => Some(reshape.gpu.clone()),
        Decision::Start { .. } | Decision::Wait { .. } | Decision::Preempt { .. } => None,
    }
}

fn placed_jobs(decision: &Decision) -> Vec<JobId> {
    match decision {
        Decision::Reshape { reshape, .. } => {
            reshape.placements.iter().map(|placed| placed.job).collect()
        }
        Decision::Start { .. } | Decision::Wait { .. } | Decision::Preempt { .. } => Vec::new(),
    }
}

/// Returns the cluster, with some GPUs closed for the rest of this round.
pub(super) fn without(cluster: &ClusterView, hidden: &BTreeSet<GpuId>) -> ClusterView {
    let mut seen = cluster.clone();
    for gpu in seen.gpus.iter_mut().filter(|gpu| hidden.contains(&gpu.id)) {
        gpu.available = false;
    }
    seen
}

/// Places the jobs that the search left by the rules, on GPUs without a decision in this round.
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

/// The knowledge of the search: what is known, what is assumed of running jobs that could be migrated, and
/// that all other jobs stay where they are.
struct Known<'f> {
    knowledge: Knowledge<'f>,
    kinds: &'f [&'f GpuView],
    /// The waiting jobs that the search may place.
    candidates: HashMap<JobId, &'f QueuedJob>,
    /// The sizes that suit the jobs that stay for their whole run.
    missed: HashMap<JobId, Vec<MissedSize>>,
    /// Where jobs run.
    homes: HashMap<JobId, (&'f GpuView, Slot)>,
    /// What the search may do with each job, as far as it was computed: that takes several predictions.
    standings: RefCell<HashMap<JobId, Standing>>,
    /// The part of a whole GPU's score that the search subtracts for energy, as a fraction of one.
    thrift: f64,
    /// Whether jobs are restricted to some GPUs.
    has_parts: bool,
    now: Millis,
}

/// What the search may do with a job.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Standing {
    /// Its times are known, and it can be moved.
    Timed,
    /// It can be moved, and its times are assumed.
    Assumed(AssumedRun),
    /// It stays where it is.
    Stays,
}

/// The run of a job of which only the time since its start is known. It is expected to run on for as long
/// again: where the lengths of jobs differ by orders of magnitude, those that have run for long run on for
/// long.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AssumedRun {
    /// The time of the whole run on its present instance, in milliseconds.
    ms: f64,
    /// Multiprocessors there.
    sms: f64,
    /// Least memory of a slice for it.
    memory: Bytes,
}

impl AssumedRun {
    /// Returns the time of the whole run on an instance.
    fn time_on(&self, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        if profile.memory < self.memory {
            return None;
        }
        let ms = self.ms * sizes::usual_stretch(self.sms, sizes::sms_of(gpu, profile));
        Some(RunTime::measured(sizes::millis(ms).max(Millis::new(1))))
    }
}

/// The finished part of a job that is expected to run on for as long as it has run, in millionths.
const HALF: u32 = 500_000;

impl Known<'_> {
    /// Returns whether a job's user lets it run on a GPU.
    fn is_allowed(&self, job: JobId, gpu: &GpuView) -> bool {
        match self.candidate(job) {
            Some(candidate) => gpu.is_allowed(candidate),
            // A job that runs elsewhere than its user lets it is not moved for that reason.
            None => self.knowledge.jobs.place(job).is_none_or(|place| {
                let allows = |gpu: &GpuView| place.allows(&gpu.node, &gpu.model);
                allows(gpu) || self.homes.get(&job).is_some_and(|(home, _)| !allows(home))
            }),
        }
    }

    fn candidate(&self, job: JobId) -> Option<&QueuedJob> {
        self.candidates.get(&job).copied()
    }

    fn standing(&self, job: JobId) -> Standing {
        if let Some(known) = self.standings.borrow().get(&job) {
            return *known;
        }
        let standing = self.find_standing(job);
        self.standings.borrow_mut().insert(job, standing);
        standing
    }

    /// Returns how long a job of known times takes on an instance. A running job is expected to gain what
    /// jobs usually gain by a slice that is larger than all on which its task has run.
    fn timed_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        let run = self.knowledge.predictor.predict_run(job, gpu, profile)?;
        if run.is_measured || !self.homes.contains_key(&job) {
            return Some(run);
        }
        // Computed from the largest slice on which it has run: the result does not depend on where the job is
        // now.
        let seen =
            gpu.mig.as_deref()?.plain().filter(|seen| {
                seen.compute_slices < profile.compute_slices && seen.compute_slices > 0
            });
        let measured = seen.filter_map(|seen| {
            let run = self.knowledge.predictor.predict_run(job, gpu, seen)?;
            run.is_measured.then_some((seen, run.time))
        });
        let Some((seen, time)) = measured.max_by_key(|(seen, _)| seen.compute_slices) else {
            return Some(run);
        };
        let stretch = sizes::usual_stretch(sizes::sms_of(gpu, seen), sizes::sms_of(gpu, profile));
        let usual = sizes::millis(sizes::float(time) * stretch).max(Millis::new(1));
        Some(RunTime::measured(run.time.min(usual)))
    }

    /// Returns the GPU on which a job has an instance to itself, and the instance's profile.
    fn home(&self, job: JobId) -> Option<(&GpuView, &Profile)> {
        let (gpu, slot) = self.homes.get(&job)?;
        Some((*gpu, gpu.mig.as_deref()?.geometry.profile(slot.profile)?))
    }

    fn is_known(&self, job: JobId) -> bool {
        self.standing(job) != Standing::Stays
    }

    fn find_standing(&self, job: JobId) -> Standing {
        let facts = self.knowledge.jobs.facts(job);
        if let Some(candidate) = self.candidate(job) {
            let weighed = is_weighed(self.kinds, self.knowledge, candidate);
            return if weighed { Standing::Timed } else { Standing::Stays };
        }
        if facts.migration_price.is_none() {
            return Standing::Stays;
        }
        let home = self.home(job);
        let time = |(gpu, on)| self.knowledge.predictor.predict_run(job, gpu, on);
        if facts.done.is_some() && home.is_none_or(|home| time(home).is_some()) {
            return Standing::Timed;
        }
        let assumed = || {
            let (gpu, on) = home?;
            let ran = sizes::float(self.now.minus(facts.since?));
            let sms = sizes::sms_of(gpu, on);
            Some(AssumedRun { ms: 2.0 * ran, sms, memory: facts.memory? })
        };
        assumed().map_or(Standing::Stays, Standing::Assumed)
    }
}

/// Returns the factor by which a time counts as longer. It grows a little with each slice, so that no job
/// gets slices without a gain.
fn thrifty(profile: &Profile) -> f64 {
    1.0 + THRIFT * f64::from(profile.compute_slices)
}

impl SlicePreference for Known<'_> {
    fn stretch(&self, job: JobId, run: RunTime, gpu: &GpuView, on: &Profile) -> f64 {
        if !self.is_known(job) {
            return 1.0;
        }
        // Hope is no reason to stop a job that runs.
        if run.is_measured || self.candidate(job).is_none() {
            return thrifty(on);
        }
        // The energy part that the search subtracts is added back, and a little more: enough to decide
        // between equals, and less than would justify stopping a job.
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
    fn place(&self, job: JobId) -> Option<Arc<PlaceFilter>> {
        self.knowledge.jobs.place(job)
    }

    fn restricted(&self) -> Vec<JobId> {
        self.knowledge.jobs.restricted()
    }

    fn unlisted(&self) -> usize {
        self.knowledge.jobs.unlisted()
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        self.knowledge.jobs.since(job)
    }

    fn facts(&self, job: JobId) -> JobFacts {
        let facts = self.knowledge.jobs.facts(job);
        let standing = self.standing(job);
        if matches!(standing, Standing::Assumed(_)) {
            return JobFacts { done: Some(HALF), ..facts };
        }
        let is_known = standing == Standing::Timed;
        // A running job has begun, so moving it has a cost.
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
        if self.has_parts && !self.is_allowed(job, gpu) {
            return None;
        }
        match self.standing(job) {
            Standing::Timed => return self.timed_run(job, gpu, profile),
            Standing::Assumed(run) => return run.time_on(gpu, profile),
            Standing::Stays => {}
        }
        let largest = || gpu.mig.as_deref()?.largest().map(|largest| largest.id);
        if let Some(sizes) = self.missed.get(&job) {
            let on = |size: &MissedSize| {
                size.profile == profile.id
                    && size.model == gpu.model
                    && size.gpu_memory == gpu.memory
            };
            let may_run = sizes.iter().any(on) || largest() == Some(profile.id);
            let ms = sizes.first().filter(|_| may_run)?.ms;
            return Some(RunTime::measured(sizes::millis(ms)));
        }
        let suits = match (self.candidate(job), gpu.mig.as_deref()) {
            (Some(candidate), Some(mig)) => SliceRequest::of(&candidate.gpu, None)
                .tight(mig)
                .iter()
                .any(|tight| tight.id == profile.id),
            (Some(_), None) => false,
            (None, _) => true,
        };
        let may_run = suits || largest() == Some(profile.id);
        may_run.then_some(RunTime { time: UNKNOWN_TIME, latest: UNKNOWN_TIME, is_measured: false })
    }

    fn predict_shared_run(
        &self,
        job: JobId,
        shared: SharedPart<'_>,
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        // A job that stays alone on its slice shares with no other.
        if self.standing(job) != Standing::Timed {
            return None;
        }
        self.knowledge.predictor.predict_shared_run(job, shared, gpu, profile)
    }

    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        basis: SpeedBasis,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        self.knowledge.predictor.predict_speeds(clients, basis, gpu, profile)
    }

    fn predict_rest_alone(
        &self,
        job: JobId,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Millis> {
        self.knowledge.predictor.predict_rest_alone(job, gpu, profile)
    }
}
