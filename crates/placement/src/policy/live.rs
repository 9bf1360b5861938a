//! `tessera` as a controller runs it: [`Tessera`]'s search for the jobs that are known well enough, and
//! `scheme-b`'s rules for the others.
//!
//! A simulator knows every job; a controller knows some tasks, and most jobs don't state how
//! they could be moved. So a job is **weighed** if times of its task are known and it could be
//! moved again. Then a slice that turns out too large or too small later can be replaced.
//! Everyone else gets the tightest slice, in the order of service, as under `scheme-b`.
//!
//! - Who runs and can't be moved stays where it is: the search plans around it.
//! - Where others wait since the slices are taken, the search may free space: weighed jobs that run
//!   shrink or go elsewhere, if that pays.
//! - While somebody of a better priority waits, nobody of a worse one is weighed.
//! - Of two slices on which a job was seen to be as quick the smaller one is better ([`THRIFT`]). Of
//!   two on which it is only taken to be, the larger one is better. It may be quicker there, no job waits
//!   for it, and what it takes there is known from then on.
//! - A weighed job for which the search finds nothing is placed by the rules.
//! - Nobody gets what its account may not take ([`crate::fair`]): the round is decided anew without those.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;
use tessera_model::mig::Profile;
use tessera_model::share::SmPercent;
use tessera_model::spec::{GpuRequest, Priority};
use tessera_model::{GpuId, JobId, Millis};

use super::{Policy, SchemeB, Tessera, settings};
use crate::decision::{Decision, Explanation, WaitReason};
use crate::facts::{Account, JobFacts, JobTable};
use crate::fair::Quotas;
use crate::predictor::{Knowledge, Predictor, RunTime};
use crate::request::SliceRequest;
use crate::view::{ClusterView, GpuView, InstanceState, MpsClient, QueuedJob};

const NAME: &str = "tessera";

/// What each compute slice more has to gain a job, in thousandths of its time. Chosen: less than a
/// measurement's error, enough to decide between slices on which it is as quick.
const THRIFT: u64 = 5;
/// What more than its time a larger slice is hoped to gain a job that was never seen there, in
/// thousandths for a whole GPU. Chosen: enough to decide between equals, no reason to stop anybody.
const HOPE: u64 = 10;
/// What is taken to be the time of a job of which none is known. Chosen.
const UNKNOWN_TIME: Millis = Millis::from_secs(3_600);
/// How often a round is decided at most, each time without more jobs that their quotas hold. Chosen by the
/// time of a round: the rest waits for the next one.
const TRIES_MAX: usize = 4;
/// Most jobs that one round weighs. As many as [`Tessera`] looks at.
const WEIGHED_MAX: usize = 64;

/// The policy `tessera` for controllers.
#[derive(Clone, Copy, Debug, Default)]
pub struct TesseraLive(Tessera);

impl TesseraLive {
    /// Runs with these settings.
    pub const fn new(settings: Tessera) -> Self {
        Self(settings)
    }

    /// Makes one that has a job forgo up to so much of its speed, in thousandths, for a slice that
    /// is a whole GPU smaller: how much energy counts. By default 250.
    pub fn with_thrift(thousandths: u16) -> Self {
        let thrift = f64::from(thousandths.min(1_000)) / 1_000.0;
        Self(Tessera { thrift, ..Tessera::default() })
    }
}

impl Policy for TesseraLive {
    fn name(&self) -> &'static str {
        NAME
    }

    fn moves(&self) -> bool {
        true
    }

    fn shares_fairly(&self) -> bool {
        true
    }

    fn settings(&self) -> Value {
        settings::to_json(&self.0)
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let jobs: Vec<&QueuedJob> = queue.collect();
        let Some(quotas) = Quotas::of(cluster, knowledge.jobs, jobs.iter().copied()) else {
            return self.round(cluster, knowledge, &jobs, now, starts_max);
        };
        let (held, mut open): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| quotas.bars(job, 1));
        let wait = |job| quotas.wait(NAME, job, 1, None);
        let mut held: Vec<Decision> = held.into_iter().map(wait).collect();
        for tries in 1_usize.. {
            let mut decided = self.round(cluster, knowledge, &open, now, starts_max);
            let mut counted = quotas.clone();
            let over = counted.sift(&mut decided);
            let before = open.len();
            open.retain(|job| {
                let stays = !over.jobs.contains(&job.id);
                if !stays {
                    held.push(counted.wait(NAME, job, 1, None));
                }
                stays
            });
            if open.len() < before && tries < TRIES_MAX {
                continue;
            }
            // What else was decided for those GPUs may rest on what was not allowed.
            decided.retain(|decision| decision.gpu().is_none_or(|gpu| !over.gpus.contains(gpu)));
            decided.extend(held);
            return decided;
        }
        held
    }
}

/// Returns the jobs that have an instance to themselves.
fn running(cluster: &ClusterView) -> impl Iterator<Item = JobId> {
    let instances = cluster.gpus.iter().flat_map(|gpu| &gpu.instances);
    instances.filter_map(|instance| match instance.state {
        InstanceState::Taken { job } => Some(job),
        _ => None,
    })
}

impl TesseraLive {
    /// Decides one round, quotas apart.
    fn round(
        self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &[&QueuedJob],
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let kinds = kinds(cluster);
        let (weighed, plain): (Vec<_>, Vec<_>) =
            queue.iter().copied().partition(|job| is_weighed(&kinds, knowledge, job));
        let mut decided = by_rules(cluster, knowledge, &plain, now, starts_max);
        let waits: BTreeSet<JobId> = decided.iter().filter_map(waiting).collect();
        let first = plain.iter().find(|job| waits.contains(&job.id));
        let candidates: Vec<&QueuedJob> = weighed
            .iter()
            .filter(|job| first.is_none_or(|first| job.queue_rank <= first.queue_rank))
            .chain(first.filter(|job| frees_capacity(job, &decided)))
            .copied()
            .collect();
        let idle = candidates.is_empty() && (first.is_some() || !weighed.is_empty());
        if idle || (weighed.is_empty() && !anybody_moves(cluster, knowledge)) {
            return decided;
        }
        let seen = without(cluster, &touched(&decided));
        let mut next = candidates.iter().copied().take(WEIGHED_MAX);
        let known = Known {
            knowledge,
            kinds: &kinds,
            candidates: next.clone().map(|job| (job.id, job)).collect(),
            known: RefCell::default(),
            thrift: self.0.thrift_thousandths(),
        };
        let searched = Knowledge { jobs: &known, predictor: &known, budget: knowledge.budget };
        let left_to_start = starts_max.saturating_sub(decided.len());
        let found = self.0.decide_with(&seen, searched, &mut next, now, left_to_start);
        let found: Vec<_> =
            found.into_iter().filter(|d| matches!(d, Decision::Reshape { .. })).collect();
        let placed: BTreeSet<JobId> = found.iter().flat_map(placed_jobs).collect();
        decided.retain(|decision| waiting(decision).is_none_or(|job| !placed.contains(&job)));
        let left: Vec<&QueuedJob> =
            weighed.into_iter().filter(|job| !placed.contains(&job.id)).collect();
        let hidden: BTreeSet<GpuId> =
            touched(&decided).into_iter().chain(found.iter().filter_map(reshaped)).collect();
        decided.extend(found);
        decided.extend(leftovers(
            cluster,
            knowledge,
            &left,
            first.copied(),
            &hidden,
            now,
            starts_max,
        ));
        decided
    }
}

/// Returns one GPU of each model: thousands of jobs are predicted for a handful of them.
fn kinds(cluster: &ClusterView) -> Vec<&GpuView> {
    let mut kinds: Vec<&GpuView> = Vec::new();
    for gpu in cluster.gpus.iter().filter(|gpu| gpu.mig.is_some()) {
        let alike = |known: &&GpuView| {
            known.model == gpu.model
                && matches!((&known.mig, &gpu.mig), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
        };
        if !kinds.iter().any(alike) {
            kinds.push(gpu);
        }
    }
    kinds
}

/// Whether a job's times are known, and it could be moved again.
fn is_weighed(kinds: &[&GpuView], knowledge: Knowledge<'_>, job: &QueuedJob) -> bool {
    job.share.is_none()
        && can_be_weighed(&knowledge.jobs.facts(job.id))
        && kinds.iter().any(|gpu| {
            let largest = gpu.mig.as_deref().and_then(|mig| mig.largest());
            largest.is_some_and(|largest| {
                knowledge.predictor.time_alone(job.id, gpu, largest).is_some()
            })
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

fn by_rules(
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    jobs: &[&QueuedJob],
    now: Millis,
    starts_max: usize,
) -> Vec<Decision> {
    if jobs.is_empty() {
        return Vec::new();
    }
    let mut queue = jobs.iter().copied();
    let mut decided = SchemeB.decide_with(cluster, knowledge, &mut queue, now, starts_max);
    for decision in &mut decided {
        match decision {
            Decision::Start { why, .. }
            | Decision::Wait { why, .. }
            | Decision::Reshape { why, .. } => NAME.clone_into(&mut why.policy),
        }
    }
    decided
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
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    left: &[&QueuedJob],
    first: Option<&QueuedJob>,
    hidden: &BTreeSet<GpuId>,
    now: Millis,
    starts_max: usize,
) -> Vec<Decision> {
    let may_start =
        |job: &&&QueuedJob| first.is_none_or(|first| job.queue_rank <= first.queue_rank);
    let candidates: Vec<&QueuedJob> = left.iter().filter(may_start).copied().collect();
    let mut decided = by_rules(&without(cluster, hidden), knowledge, &candidates, now, starts_max);
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
    /// What the search takes off a whole GPU's score for energy, in thousandths.
    thrift: u64,
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
            let own = self.knowledge.predictor.predict_run(job, gpu, profile)?;
            let slices = u64::from(profile.compute_slices);
            let thousandths = if own.is_measured {
                // Dearer by a little for each slice, so that nobody gets more for nothing.
                1_000 + THRIFT * slices
            } else {
                // What the search takes off for energy is taken back, and a little more: as much as
                // decides between equals, and less than what somebody is stopped for.
                let whole = gpu.mig.as_deref().and_then(|mig| mig.largest());
                let whole = whole.map_or(1, |largest| u64::from(largest.compute_slices.max(1)));
                1_000_u64.saturating_sub((self.thrift + HOPE) * slices / whole).max(1)
            };
            let time = Millis::new(own.time.get().saturating_mul(thousandths) / 1_000);
            return Some(RunTime { time, ..own });
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
        self.knowledge.predictor.predict_kernel_shared_run(job, priority, co_runners, gpu, profile)
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
