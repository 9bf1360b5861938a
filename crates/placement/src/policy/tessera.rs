//! `tessera`: the default. It has two parts, between which [`mixed`] divides a round. Jobs that can't be
//! migrated, or of which too little is known, are placed for their whole run ([`stay`]). For all others the
//! layouts of each GPU are searched exactly for the best placement, and the cost of everything that has to
//! be stopped for it is subtracted. The following is about the search:
//!
//! - **Score.** A job on a slice scores its speed there times its weight. The weight is higher the less
//!   of the job is left, to the power of [`Tessera::shortness`]. One means the shortest job first, which
//!   is best for the mean; zero treats all jobs alike, which is best for throughput.
//! - **Order.** Waiting jobs are served by their own weight ([`Tessera::eagerness`]): the shorter a
//!   job is and the less of a GPU it needs, the higher. It doubles with each step of priority and grows
//!   as the job waits. Where usage is kept, the account that has used least for its shares is next, and
//!   weights decide which of its jobs ([`fairness`]).
//! - **Long jobs in time.** A job that alone takes a good part of the time that all known work
//!   needs is begun earlier ([`Tessera::haste`]). Its score grows once no more jobs seem to arrive
//!   ([`horizon`]). If it began last or stayed small, it would still run after all others have
//!   ended.
//! - **Freeing slices.** A job that finds no good placement may get one from which other jobs move
//!   to other GPUs ([`freeing`]), within [`Tessera::effort`].
//! - **Exchange.** Jobs on different GPUs swap places where that raises the scores of both GPUs
//!   ([`exchange`]), within the rest of the same effort.
//! - **No starvation.** For the oldest job that has waited for [`Tessera::patience`] a GPU is reserved
//!   until it starts; [`overdue`] proves a bound on every wait.
//! - **Quotas.** No placement lets an account hold more compute slices than it may.
//! - **Price.** A job that is stopped and continues elsewhere loses its restore time, and that part
//!   of its score is subtracted. So a GPU with running jobs is repartitioned only where that pays
//!   within their remaining time (Dyna-P's reconfigure-last, with MISO's search).
//! - **Co-location.** Two jobs of one user share a slice where that scores higher than one slice
//!   for each ([`colocation`]).
//! - **Deadlines** are constraints: no placement makes a job miss a deadline that it would
//!   otherwise meet. The times of the move and of the partitioning are included.
//! - **Energy.** A placement loses up to [`Tessera::thrift`] of its score, in proportion to its
//!   part of the GPU. So of two slices on which a job is about equally fast, the smaller one is
//!   taken.
//! - **Across GPUs** each job is placed where it adds most to the score. When no job waits, running
//!   jobs move to GPUs that became idle, starting with the job that gains most.
//! - **Ties** between layouts go to the layout that takes the fewest steps. MIGM's `R` can't break
//!   ties here: every plan is a full layout, and `R` of a full layout is one.

mod colocation;
mod exchange;
mod fairness;
mod freeing;
mod gpu_index;
mod horizon;
mod improving;
mod mixed;
mod overdue;
mod pairs;
mod rounding;
mod scoring;
mod search;
mod stay;
mod waiting;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tessera_model::{JobId, Millis};

use self::fairness::AccountQueues;
use self::gpu_index::GpuIndex;
use self::horizon::{Horizon, weighing};
use self::scoring::{Scoring, SlicePreference};
use self::search::Search;
use self::stay::{DeadlinePressure, StayInput};
use self::waiting::{UrgencyClock, WaitingJobs};
use super::planned_gpu::because;
use super::{Policy, PolicyOptions, settings};
use crate::decision::{Decision, Explanation, WaitReason};
use crate::facts::{JobTable, SliceLimit};
use crate::fair::{Quotas, first_of_each_user};
use crate::placement_search::SearchBuffers;
use crate::policy::session::{LOOK_AT_MAX, Session};
use crate::predictor::Knowledge;
use crate::view::{ClusterView, QueueKey, QueuedJob};

const NAME: &str = "tessera";

/// The most jobs of the queue that one round weighs; the rest wait for a later round. Chosen to
/// limit the duration of a round.
const WEIGHED_MAX: usize = 64;

/// A round stops after so many jobs in a row without a placement, since the jobs behind them weigh
/// less. Chosen to limit the duration of a round.
const REFUSED_MAX: usize = 8;

/// The most jobs with near deadlines that one round places before others. Chosen to limit the
/// duration of a round.
const DUE_MAX: usize = 16;

/// How often one round is decided at most; each repetition leaves out jobs that would exceed their
/// quotas. Chosen to limit the duration of a round: the rest waits for the next one.
const TRIES_MAX: usize = 4;

/// How much more urgent a job is for each step of its priority. Chosen: five steps are a factor of
/// 32. That is the same as between a job of one minute and a job of two hours.
const PRIORITY: f64 = 2.0;

/// The policy `tessera` with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tessera {
    /// How much more the speed of a shorter job counts: the exponent of its remaining time.
    pub shortness: f64,
    /// The same exponent for the order in which waiting jobs are considered.
    pub eagerness: f64,
    /// The time after which the weight of a waiting job has doubled. It is capped by the time in
    /// which all known work could be done, since such a wait is long in comparison.
    pub ageing: Millis,
    /// By how much the score of a GPU's placements must rise to justify stopping jobs, in
    /// thousandths.
    pub hurdle: i64,
    /// How many GPUs are searched for each job.
    pub searched: usize,
    /// The most jobs on one GPU.
    #[serde(rename = "crowd")]
    pub jobs_per_gpu_max: usize,
    /// The part of its score that a placement on a whole GPU loses, as a fraction of one: how much
    /// energy counts. Smaller slices lose proportionally less.
    pub thrift: f64,
    /// How much faster two jobs of one user must be together on a slice than one of them alone there.
    /// Only then the second joins where it finds no slice for itself.
    pub together: f64,
    /// The same where one holds the slice and the other fills its gaps, kernel by kernel.
    pub filled: f64,
    /// How much longer than alone an online job may take under co-location: the kernel queue's own
    /// target.
    pub courtesy: f64,
    /// How long a job waits before a GPU is reserved for it, if it is the oldest waiting job.
    pub patience: Millis,
    /// How much more urgent a job is whose time on a whole GPU equals the time of all known work.
    /// The latter is the time in which all known work could be done on the slices that use least of
    /// the GPUs.
    pub haste: f64,
    /// How much more the placement of such a job counts once no more jobs seem to arrive.
    pub drive: f64,
    /// How long no job must have arrived until then, as a fraction of the time that all remaining
    /// work takes.
    pub quiet: f64,
    /// How many searches of one GPU a round may spend on moving jobs out of another job's way. It
    /// is a count and not a time, so that a replay of the round decides the same.
    pub effort: usize,
}

impl Default for Tessera {
    /// The default settings. All of them were chosen:
    ///
    /// - `shortness`, `eagerness` and `hurdle` on seeds 1 to 3;
    /// - `haste`, `drive`, `quiet`, `thrift` and `effort` on seeds 101 to 110 and on altered copies
    ///   of the papers' mixes (`docs/policies.md`);
    /// - `searched`, `crowd` (an A100 has seven slices) and `effort` by the time of a round as
    ///   well.
    ///
    /// `ageing` and `patience` are assumptions about how long users are willing to wait.
    fn default() -> Self {
        Self {
            shortness: 0.3,
            eagerness: 0.7,
            ageing: Millis::from_secs(3_600),
            hurdle: 50,
            searched: 10,
            jobs_per_gpu_max: 7,
            thrift: f64::from(PolicyOptions::DEFAULT.energy_percent) / 100.0,
            together: 1.3,
            filled: 1.3,
            courtesy: 1.05,
            patience: Millis::from_secs(12 * 3_600),
            haste: 5.0,
            drive: 30.0,
            quiet: 0.2,
            effort: 100,
        }
    }
}

impl Tessera {
    /// Sets how much energy counts: the part of its speed, in thousandths, that a job gives up for
    /// a slice that is smaller by a whole GPU. The default is 250.
    pub fn with_thrift(thousandths: u16) -> Self {
        Self { thrift: f64::from(thousandths.min(1_000)) / 1_000.0, ..Self::default() }
    }
}

impl Policy for Tessera {
    fn name(&self) -> &'static str {
        NAME
    }

    fn moves(&self) -> bool {
        true
    }

    fn shares_fairly(&self) -> bool {
        true
    }

    fn honours_places(&self) -> bool {
        true
    }

    fn settings(&self) -> Value {
        settings::to_json(self)
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
        self.decide_within_quotas(cluster, knowledge, &jobs, now, starts_max)
    }

    fn session(&self) -> Option<Box<dyn Session + '_>> {
        Some(Box::new(TesseraSession::new(self)))
    }
}

impl Tessera {
    /// Decides a round repeatedly without the jobs that exceed quotas, until all quotas are kept.
    fn decide_within_quotas(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        jobs: &[&QueuedJob],
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let Some(quotas) = Quotas::of(cluster, knowledge.jobs, jobs.iter().copied()) else {
            return self.decide_freely(cluster, knowledge, jobs, None, now, starts_max);
        };
        let (held, mut open): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| quotas.bars(job, 1));
        let wait = |job| quotas.wait(NAME, job, 1, None);
        let mut held: Vec<Decision> = held.into_iter().map(wait).collect();
        for tries in 1_usize.. {
            let mut decided =
                self.decide_freely(cluster, knowledge, &open, Some(&quotas), now, starts_max);
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
            // Other decisions for those GPUs may depend on the decisions that were not allowed.
            decided.retain(|decision| decision.gpu().is_none_or(|gpu| !over.gpus.contains(gpu)));
            decided.extend(held);
            return decided;
        }
        held
    }

    /// Decides a round without regard to quotas.
    fn decide_freely(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        jobs: &[&QueuedJob],
        quotas: Option<&Quotas<'_>>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let input = self.stay_input(cluster, knowledge, quotas, now);
        let pressure = stay::deadline_pressure(input, jobs);
        if pressure != DeadlinePressure::Tight {
            let decided = if mixed::all_weighed(cluster, knowledge, jobs.iter().copied()) {
                let mut waiting = jobs.iter().copied();
                let kept = match pressure {
                    DeadlinePressure::Unplanned => stay::pressed_gpus(input),
                    DeadlinePressure::Loose | DeadlinePressure::Tight => BTreeSet::new(),
                };
                // Its moves would use up the slack of jobs with deadlines.
                let seen = (!kept.is_empty()).then(|| mixed::without(cluster, &kept));
                let seen = seen.as_ref().unwrap_or(cluster);
                self.search(seen, knowledge, None, &mut waiting, now, starts_max)
            } else {
                mixed::decide(self, input, jobs, starts_max)
            };
            if pressure == DeadlinePressure::Unplanned
                || stay::keeps_deadlines(input, jobs, &decided)
            {
                return decided;
            }
        }
        // The search would use up the slack of jobs with deadlines.
        stay::decide(StayInput { plans_deadlines: true, ..input }, jobs, starts_max).decisions
    }

    const fn stay_input<'c>(
        &self,
        cluster: &'c ClusterView,
        knowledge: Knowledge<'c>,
        quotas: Option<&'c Quotas<'c>>,
        now: Millis,
    ) -> StayInput<'c> {
        let (thrift, patience) = (self.thrift, self.patience);
        StayInput { cluster, knowledge, quotas, thrift, patience, now, plans_deadlines: false }
    }

    /// Decides a round by the exact search alone: for jobs that can be migrated and whose run times
    /// are known.
    fn search(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        preference: Option<&dyn SlicePreference>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut work = TesseraSession::new(self);
        work.waiting = WaitingJobs::of(queue);
        work.waiting.queue().values().for_each(|job| work.account_queues.insert(job));
        work.search(cluster, knowledge, preference, now, starts_max)
    }
}

/// A session of the policy, with results that need not be computed again in each round.
#[derive(Debug)]
struct TesseraSession<'s> {
    settings: &'s Tessera,
    waiting: WaitingJobs,
    account_queues: AccountQueues,
    index: GpuIndex,
    buffers: SearchBuffers,
    /// Jobs that came since the last round.
    arrived: Vec<QueueKey>,
    /// Whether there are also jobs that are placed for their whole run.
    mixed: bool,
    /// Whether MIG is on for all GPUs.
    partitioned: Option<bool>,
}

impl<'s> TesseraSession<'s> {
    fn new(settings: &'s Tessera) -> Self {
        Self {
            settings,
            waiting: WaitingJobs::default(),
            account_queues: AccountQueues::default(),
            index: GpuIndex::default(),
            buffers: SearchBuffers::default(),
            arrived: Vec::new(),
            mixed: false,
            partitioned: None,
        }
    }
}

impl Session for TesseraSession<'_> {
    fn enqueue(&mut self, job: QueuedJob) {
        self.account_queues.insert(&job);
        self.arrived.push(job.key());
        self.waiting.insert(job);
    }

    fn dequeue(&mut self, job: &QueuedJob) {
        self.account_queues.remove(job);
        self.waiting.remove(job);
    }

    fn gpu_changed(&mut self, gpu: usize) {
        self.index.changed(gpu);
    }

    fn round(
        &mut self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        if self.is_searched(cluster, knowledge) {
            let input = self.settings.stay_input(cluster, knowledge, None, now);
            let pressure = stay::deadline_pressure(input, &self.first_in_queue());
            let keeps_gpus =
                pressure == DeadlinePressure::Unplanned && !stay::pressed_gpus(input).is_empty();
            if pressure != DeadlinePressure::Tight && !keeps_gpus {
                let decided = self.search(cluster, knowledge, None, now, starts_max);
                if pressure == DeadlinePressure::Unplanned
                    || stay::keeps_deadlines(input, &self.first_in_queue(), &decided)
                {
                    return decided;
                }
            }
        }
        let jobs = self.looked_at(knowledge.jobs);
        self.settings.decide_within_quotas(cluster, knowledge, &jobs, now, starts_max)
    }
}

impl TesseraSession<'_> {
    /// Returns whether the exact search alone decides. Each job is checked once, when it arrives.
    fn is_searched(&mut self, cluster: &ClusterView, knowledge: Knowledge<'_>) -> bool {
        if self.mixed {
            let queue = self.waiting.queue().values();
            self.mixed = !mixed::all_weighed(cluster, knowledge, queue);
            self.arrived.clear();
            return !self.mixed;
        }
        let arrived = std::mem::take(&mut self.arrived);
        let queue = self.waiting.queue();
        let new = arrived.iter().filter_map(|key| queue.get(key));
        let all = || cluster.gpus.iter().all(|gpu| gpu.mig.is_some());
        let partitioned = *self.partitioned.get_or_insert_with(all);
        self.mixed = !partitioned || !mixed::are_weighed(cluster, knowledge, new);
        !self.mixed
    }

    /// Returns the waiting jobs that a round considers, in the order of the queue. With fair share, each user has a part of
    /// them, as in a controller.
    fn looked_at(&self, jobs: &dyn JobTable) -> Vec<&QueuedJob> {
        let queue = self.waiting.queue();
        let is_shared = || {
            let first = queue.values().next();
            first.is_some_and(|job| jobs.account(job.id).is_some())
        };
        if queue.len() <= LOOK_AT_MAX || !is_shared() {
            return queue.values().take(LOOK_AT_MAX).collect();
        }
        let all: Vec<&QueuedJob> = queue.values().collect();
        let taken = first_of_each_user(&all, LOOK_AT_MAX, &|_| 0);
        all.into_iter().zip(taken).filter(|(_, taken)| *taken).map(|(job, _)| job).collect()
    }

    /// Returns the waiting jobs whose deadlines a round considers.
    fn first_in_queue(&self) -> Vec<&QueuedJob> {
        self.waiting.queue().values().take(stay::ORDERED_MAX).collect()
    }

    /// Decides a round by the exact search.
    fn search(
        &mut self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        preference: Option<&dyn SlicePreference>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let queued = self.waiting.queue().len();
        self.index.read(cluster, knowledge.jobs);
        let horizon = Horizon::default();
        let settings = self.settings;
        let scoring = Scoring { settings, cluster, knowledge, now, horizon, preference };
        let mut search = Search::new(scoring, &mut self.index, &mut self.buffers);
        if search.any_open() {
            search.scoring.horizon = Horizon::of(&mut self.waiting, &search);
        }
        let (mut waits, mut started, mut refused) = (Vec::new(), 0, 0);
        let mut served = Vec::new();
        if search.any_open() {
            let jobs = (&self.waiting, &mut self.account_queues);
            (served, waits) = overdue::serve(&mut search, jobs, self.settings, now, starts_max);
            started = served.len();
            served.extend(waits.iter().filter_map(decided_job));
        }
        if search.any_open() {
            let kinds = search.kinds();
            let due = self.waiting.earliest_deadlines(now).take(DUE_MAX);
            let due: Vec<QueuedJob> =
                due.filter(|job| search.scoring.is_pressed(&kinds, job.id)).cloned().collect();
            for job in due.iter().filter(|job| !served.contains(&job.id)).collect::<Vec<_>>() {
                if started >= starts_max || !search.any_open() {
                    break;
                }
                if search.place_job(job, None) || search.free_slices_for(job) {
                    started += 1;
                    served.push(job.id);
                }
            }
        }
        if search.any_open() {
            let order = order(&mut self.waiting, &mut self.account_queues, &search);
            for job in order.into_iter().filter(|job| !served.contains(&job.id)) {
                if started >= starts_max || refused >= REFUSED_MAX || !search.any_open() {
                    break;
                }
                if search.place_job(&job, None) || search.free_slices_for(&job) {
                    started += 1;
                    refused = 0;
                } else {
                    waits.push(match search.quota(job.id) {
                        Some((left, limit)) => wait_for_quota(&job, left, &limit),
                        None => wait(&job),
                    });
                    refused += 1;
                }
            }
        }
        search.keep_promises();
        if waits.is_empty() && started == queued {
            search.spread();
            search.tidy();
        }
        search.exchange();
        search.decisions().into_iter().chain(waits).collect()
    }
}

/// Returns the jobs that a round weighs, the most urgent first, by fair share where usage is kept.
fn order(
    waiting: &mut WaitingJobs,
    account_queues: &mut AccountQueues,
    search: &Search<'_, '_>,
) -> Vec<QueuedJob> {
    let scoring = &search.scoring;
    let settings = scoring.settings;
    let clock = UrgencyClock {
        now: scoring.now,
        ageing: settings.ageing.min(scoring.horizon.time()),
        horizon: scoring.horizon.horizon,
        haste: settings.haste,
    };
    let first = waiting.queue().values().next();
    if first.is_some_and(|job| scoring.knowledge.jobs.account(job.id).is_some()) {
        let kinds = search.kinds();
        let mut weigh = weighing(scoring, &kinds);
        return account_queues.most_urgent(
            waiting,
            scoring.knowledge.jobs,
            clock,
            WEIGHED_MAX,
            &mut weigh,
        );
    }
    let urgent = waiting.most_urgent(clock, WEIGHED_MAX);
    urgent.into_iter().map(|(_, job)| job).collect()
}

const fn decided_job(decision: &Decision) -> Option<JobId> {
    match decision {
        Decision::Wait { job, .. } | Decision::Start { job, .. } => Some(*job),
        Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    }
}

/// Explains the wait of a job under a quota.
fn wait_for_quota(job: &QueuedJob, left: u32, limit: &SliceLimit) -> Decision {
    let SliceLimit { name, slices: quota } = limit;
    let held = quota.saturating_sub(left);
    let text = format!(
        "jobs of {name} hold {held} of their limit of {quota} compute slices, and other jobs gain more \
         from every slice that is left to them"
    );
    let why = Explanation {
        would_start_if: Some(format!("another job of {name} ends")),
        ..because(NAME, text)
    };
    Decision::Wait { job: job.id, reason: WaitReason::Resources, why }
}

fn wait(job: &QueuedJob) -> Decision {
    let text =
        "on every suitable GPU, other jobs gain more from the slices than this job would now";
    let why = Explanation {
        would_start_if: Some("a job ends, or it has waited longer".to_owned()),
        ..because(NAME, text)
    };
    Decision::Wait { job: job.id, reason: WaitReason::Resources, why }
}
