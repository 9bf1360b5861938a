//! `tessera`: the default. It searches the layouts of each GPU exactly for the best placement of jobs,
//! and subtracts the cost of everything that has to be stopped for it.
//!
//! - **Score.** A job on a slice scores its speed there times its weight. The weight is higher the less
//!   of the job is left, to the power of [`Tessera::shortness`]. One means the shortest job first, which
//!   is best for the mean; zero treats all jobs alike, which is best for throughput.
//! - **Order.** Waiting jobs are served by a weight of their own ([`Tessera::eagerness`]): the shorter a
//!   job is and the less of a GPU it needs, the higher. It doubles with each step of priority and grows
//!   as the job waits. Where usage is kept it is multiplied by the account's fair-share factor
//!   ([`fairness`]).
//! - **Long jobs in time.** A job that alone takes a good part of the time that all known work
//!   needs is begun earlier ([`Tessera::haste`]). It scores more once no more jobs seem to come
//!   ([`horizon`]). Begun last or kept small, it would run on alone.
//! - **Freeing slices.** A job that finds no good place may get one that other jobs leave for other GPUs
//!   ([`freeing`]), within [`Tessera::effort`].
//! - **Exchange.** Jobs on different GPUs swap places where both GPUs score more then ([`exchange`]),
//!   within the rest of the same effort.
//! - **No starvation.** For the oldest job that has waited for [`Tessera::patience`] a GPU is reserved
//!   until it starts; [`overdue`] proves a bound on every wait.
//! - **Quotas.** No placement lets an account hold more compute slices than it may.
//! - **Price.** A job that is stopped and goes on loses its restore time; that part of its score is
//!   subtracted. So a GPU is partitioned anew under running jobs only where that pays within what is left
//!   of them (Dyna-P's reconfigure-last, with MISO's search).
//! - **Co-location.** Two jobs of one user share a slice where that scores more than a slice for each
//!   ([`colocation`]).
//! - **Deadlines** are constraints: a placement that makes a job late that would be in time is not
//!   possible, with the move and the partitioning counted.
//! - **Energy.** A placement loses [`Tessera::thrift`] of its score by its part of the GPU, so that of two
//!   slices that serve about equally well the smaller one is taken.
//! - **Across GPUs** each job goes where it adds most. When no job waits, jobs move to GPUs that became
//!   idle, the job that gains most first.
//! - **Ties** between layouts go to the layout that takes the fewest steps. MIGM's `R` could break none:
//!   every plan is a full layout, and `R` of each of those is one.
//!
//! Without predictions for a job it does what `scheme-b` does.

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

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tessera_model::{JobId, Millis};

use self::fairness::AccountQueues;
use self::gpu_index::GpuIndex;
use self::horizon::{Horizon, weighing};
use self::scoring::{Scoring, SlicePreference};
use self::search::Search;
use self::stay::StayInput;
use self::waiting::{UrgencyClock, WaitingJobs};
use super::planned_gpu::because;
use super::{Policy, PolicyOptions, settings};
use crate::decision::{Decision, Explanation, WaitReason};
use crate::facts::SliceLimit;
use crate::fair::Quotas;
use crate::placement_search::SearchBuffers;
use crate::policy::session::{LOOK_AT_MAX, Session};
use crate::predictor::Knowledge;
use crate::view::{ClusterView, QueueKey, QueuedJob};

const NAME: &str = "tessera";

/// Most jobs of the queue that one round weighs; the rest wait for a later round. Chosen by the time of a round.
const WEIGHED_MAX: usize = 64;

/// Most jobs in a row that find no place before a round gives up: those behind them weigh less. Chosen by
/// the time of a round.
const REFUSED_MAX: usize = 8;

/// Jobs with near deadlines that one round places before others. Chosen by the time of a round.
const DUE_MAX: usize = 16;

/// How often a round is decided at most, each time without more jobs that their quotas hold. Chosen by the
/// time of a round: the rest waits for the next one.
const TRIES_MAX: usize = 4;

/// How much more urgent a job is for each step of its priority. Chosen: five steps are a factor of 32, as
/// much as a job of a minute is before one of two hours.
const PRIORITY: f64 = 2.0;

/// The policy `tessera`, with what it weighs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tessera {
    /// How much more a shorter job's speed counts: the power of what is left of it.
    pub shortness: f64,
    /// The same for the order in which jobs that wait are looked at.
    pub eagerness: f64,
    /// The time after which a job that waits weighs twice as much. It is no longer than the time in
    /// which everything that is known could be done, since compared with that such a wait is a long
    /// one.
    pub ageing: Millis,
    /// How much better a GPU's placements must get for jobs to be stopped, in thousandths.
    pub hurdle: i64,
    /// GPUs that are searched for each job.
    pub searched: usize,
    /// Jobs of one GPU at most.
    #[serde(rename = "crowd")]
    pub jobs_per_gpu_max: usize,
    /// What of its score a job forgoes for a whole GPU rather than none of it, in parts of one: how
    /// much energy counts.
    pub thrift: f64,
    /// How much faster two jobs of one user must be together on a slice than one of them alone there.
    /// Only then the second joins where it finds no slice of its own.
    pub together: f64,
    /// The same where one holds the slice and the other fills its gaps, kernel by kernel.
    pub filled: f64,
    /// How much longer than alone a job may take that serves answers, for the sake of colocation: the
    /// kernel queue's own aim.
    pub courtesy: f64,
    /// After which wait a GPU is kept free for a job, if it is the oldest.
    pub patience: Millis,
    /// How much more urgent a job is that by itself, on a whole GPU, takes as long as all known
    /// work. That is the time in which everything that is known could be done where it costs least
    /// of GPUs.
    pub haste: f64,
    /// How much more such a job's placement counts, once no other job seems to come.
    pub drive: f64,
    /// For what part of the time that everything still takes no job must have come until then.
    pub quiet: f64,
    /// Searches of one GPU that a round may spend on moving others out of a job's way. It is a count and
    /// not a time, so that the same round decides the same again.
    pub effort: usize,
}

impl Default for Tessera {
    /// What holds if nothing is set. All of it was chosen:
    ///
    /// - `shortness`, `eagerness` and `hurdle` on seeds 1 to 3;
    /// - `haste`, `drive`, `quiet`, `thrift` and `effort` on seeds 101 to 110 and on altered copies
    ///   of the papers' mixes (`docs/policies.md`);
    /// - `searched`, `crowd` (an A100 has seven slices) and `effort` by the time of a round as
    ///   well.
    ///
    /// `ageing` and `patience` are what a user is taken to bear.
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
    /// Has a job forgo up to so much of its speed, in thousandths, for a slice that is a whole GPU smaller:
    /// how much energy counts. By default 250.
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
    /// Decides a round anew without the jobs that their quotas hold, until it gives nobody too much.
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
            // What else was decided for those GPUs may rest on what was not allowed.
            decided.retain(|decision| decision.gpu().is_none_or(|gpu| !over.gpus.contains(gpu)));
            decided.extend(held);
            return decided;
        }
        held
    }

    /// Decides a round, quotas apart.
    fn decide_freely(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        jobs: &[&QueuedJob],
        quotas: Option<&Quotas<'_>>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        if mixed::all_weighed(cluster, knowledge, jobs.iter().copied()) {
            let mut jobs = jobs.iter().copied();
            return self.search(cluster, knowledge, None, &mut jobs, now, starts_max);
        }
        let (thrift, patience) = (self.thrift, self.patience);
        let input = StayInput { cluster, knowledge, quotas, thrift, patience, now };
        mixed::decide(self, input, jobs, starts_max)
    }

    /// Decides a round by the exact search alone: for jobs that can be moved, and whose times are known.
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

/// The policy at work, with what it need not work out again in each round.
#[derive(Debug)]
struct TesseraSession<'s> {
    settings: &'s Tessera,
    waiting: WaitingJobs,
    account_queues: AccountQueues,
    index: GpuIndex,
    buffers: SearchBuffers,
    /// Jobs that came since the last round.
    arrived: Vec<QueueKey>,
    /// Whether some job is placed for its whole run.
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
            return self.search(cluster, knowledge, None, now, starts_max);
        }
        let jobs: Vec<&QueuedJob> = self.waiting.queue().values().take(LOOK_AT_MAX).collect();
        self.settings.decide_within_quotas(cluster, knowledge, &jobs, now, starts_max)
    }
}

impl TesseraSession<'_> {
    /// Whether the search alone decides. Each job is checked once, as it comes. If all were weighed since, there
    /// are no others.
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
            let waiting = &self.waiting;
            (served, waits) = overdue::serve(&mut search, waiting, self.settings, now, starts_max);
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
        Decision::Reshape { .. } => None,
    }
}

/// Explains to a job under a quota.
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
