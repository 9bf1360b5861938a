//! `tessera`: the default. Each GPU's layouts are searched exactly for the seats that are worth
//! most, and whatever has to be stopped for that is paid for first.
//!
//! - **Worth.** A job on a slice is worth its speed there times its weight. The weight is higher
//!   the less of the job is left, to the power of [`Tessera::shortness`] (one: the shortest job
//!   first, which is best for the mean; zero: all alike, which is best for throughput).
//! - **Order.** Jobs that wait are looked at by a weight of their own ([`Tessera::eagerness`]): the
//!   shorter a job is and the less of a GPU it needs, the higher. It doubles with each step of
//!   priority and grows as the job waits. Where usage is kept it is multiplied by what the job's
//!   account has had of its fair share ([`fairness`]).
//! - **Long jobs in time.** A job that by itself takes a good part of the time in which everything
//!   that is known could be done is begun earlier ([`Tessera::haste`]), and its seat is worth more
//!   once nobody else seems to come ([`outlook`]): begun last or kept small, it would run on alone.
//! - **Room.** A job that finds no place where others would be worth less by it may have one that
//!   others leave for other GPUs ([`room`]), within [`Tessera::effort`].
//! - **Exchange.** Jobs on different GPUs change places where both GPUs are worth more so
//!   ([`exchange`]), within what room left of the same effort.
//! - **Nobody starves.** For the oldest of those that have waited for [`Tessera::patience`] a GPU is
//!   kept free until it starts; [`overdue`] proves a bound on every wait.
//! - **Quotas.** No seat is given by which an account would hold more compute slices than it may.
//! - **Price.** A job that is stopped and goes on loses its restore; that part of its worth is
//!   taken off. So a GPU is cut under running jobs only where that pays within what is left of
//!   them (Dyna-P's reconfigure-last, with MISO's search).
//! - **Company.** Two jobs of one user share a slice where that is worth more than a slice for each
//!   ([`company`]).
//! - **Deadlines** are constraints: a seat that makes a job late that would be in time is none, with
//!   the move and the cut counted.
//! - **Energy.** A seat loses [`Tessera::thrift`] of its worth by its part of the GPU, so that of two
//!   slices that do about as well the smaller is taken.
//! - **Across GPUs** each job goes where it adds most. When nobody waits, jobs move to GPUs that
//!   fell idle, the one that gains most first.
//! - **Ties** between layouts go to the one that takes the fewest steps. MIGM's `R` could break none:
//!   every plan is a full layout, and `R` of each of those is one.
//!
//! Without a forecast of a job it does what `scheme-b` does.

mod company;
mod desk;
mod exchange;
mod fairness;
mod outlook;
mod overdue;
mod pairs;
mod room;
mod search;
mod table;
mod tidying;
mod waiting;

use serde::{Deserialize, Serialize};
use tessera_model::{JobId, Millis};

use self::desk::Desk;
use self::fairness::Lines;
use self::outlook::{Outlook, weighing};
use self::search::Search;
use self::table::Table;
use self::waiting::{Clock, Waiting};
use super::cards::because;
use super::{Policy, SchemeB, Terms};
use crate::decision::{Decision, Explanation, WaitReason};
use crate::forecast::{Forecast, Limit};
use crate::seating::Scratch;
use crate::session::{LOOK_AT_MAX, Session};
use crate::view::{ClusterView, QueuedJob};

const NAME: &str = "tessera";

/// Most jobs of the queue that one round weighs; the rest wait their turn. Chosen by the time of a round.
const WEIGHED_MAX: usize = 64;

/// Most jobs in a row that find no place before a round gives up: those behind them weigh less. Chosen by
/// the time of a round.
const REFUSED_MAX: usize = 8;

/// How much more urgent a job is for each step of its priority. Chosen: five steps are a factor of 32, as
/// much as a job of a minute is before one of two hours.
const PRIORITY: f64 = 2.0;

/// The policy `tessera`, with what it weighs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tessera {
    /// How much more a shorter job's speed is worth: the power of what is left of it.
    pub shortness: f64,
    /// The same for the order in which jobs that wait are looked at.
    pub eagerness: f64,
    /// The time after which a job that waits weighs twice as much; no longer than the time in which
    /// everything that is known could be done, since beside that such a wait is a long one.
    pub ageing: Millis,
    /// How much better a GPU's seats must get for jobs to be stopped, in thousandths.
    pub hurdle: i64,
    /// GPUs that are searched for each job.
    pub searched: usize,
    /// Jobs of one GPU at most.
    pub crowd: usize,
    /// What of its worth a job forgoes for a whole GPU rather than none of it, in parts of one: how
    /// much energy counts.
    pub thrift: f64,
    /// How much faster two jobs of one user must be together on a slice than one of them alone there,
    /// for the second to join where it finds no slice of its own.
    pub together: f64,
    /// The same where one holds the slice and the other fills its gaps, kernel by kernel.
    pub filled: f64,
    /// How much longer than alone a job may take that serves answers, for the sake of company: the
    /// kernel queue's own aim.
    pub courtesy: f64,
    /// After which wait a GPU is kept free for a job, if it is the oldest.
    pub patience: Millis,
    /// How much more urgent a job is that by itself, on a whole GPU, takes all the time in which
    /// everything that is known could be done where it costs least of GPUs.
    pub haste: f64,
    /// How much more such a job's seat is worth, once nobody else seems to come.
    pub drive: f64,
    /// For what part of the time that everything still takes no job must have come until then.
    pub quiet: f64,
    /// Searches of one GPU that a round may spend on moving others out of a job's way: a count and
    /// not a time, so that the same round decides the same again.
    pub effort: usize,
}

impl Default for Tessera {
    /// What holds if nothing is set. All of it was chosen: `shortness`, `eagerness` and `hurdle` on seeds 1
    /// to 3, `haste`, `drive`, `quiet`, `thrift` and `effort` on seeds 101 to 110
    /// and on altered copies of the papers' mixes (`docs/policies.md`); `searched`, `crowd` (an A100 has
    /// seven slices) and `effort` by the time of a round as well. `ageing` and `patience` are
    /// what a user is taken to bear.
    fn default() -> Self {
        Self {
            shortness: 0.3,
            eagerness: 0.7,
            ageing: Millis::from_secs(3_600),
            hurdle: 50,
            searched: 10,
            crowd: 7,
            thrift: f64::from(Terms::DEFAULT.energy_percent) / 100.0,
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
    /// Returns [`Self::thrift`] in thousandths.
    pub(super) fn thrift_thousandths(&self) -> u64 {
        u64::try_from(table::integer(self.thrift.clamp(0.0, 1.0) * 1_000.0)).unwrap_or(0)
    }
}

impl Policy for Tessera {
    fn name(&self) -> &'static str {
        NAME
    }

    fn moves(&self) -> bool {
        true
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        forecast: &dyn Forecast,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut work = Work::new(self);
        work.waiting = Waiting::of(queue);
        work.waiting.queue().values().for_each(|job| work.lines.insert(job));
        work.round(cluster, forecast, now, starts_max)
    }

    fn session(&self) -> Option<Box<dyn Session + '_>> {
        Some(Box::new(Work::new(self)))
    }
}

/// The policy at work, with what it need not work out again in each round.
#[derive(Debug)]
struct Work<'s> {
    settings: &'s Tessera,
    waiting: Waiting,
    lines: Lines,
    desk: Desk,
    scratch: Scratch,
}

impl<'s> Work<'s> {
    fn new(settings: &'s Tessera) -> Self {
        Self {
            settings,
            waiting: Waiting::default(),
            lines: Lines::default(),
            desk: Desk::default(),
            scratch: Scratch::default(),
        }
    }
}

impl Session for Work<'_> {
    fn enqueue(&mut self, job: QueuedJob) {
        self.lines.insert(&job);
        self.waiting.insert(job);
    }

    fn dequeue(&mut self, job: &QueuedJob) {
        self.lines.remove(job);
        self.waiting.remove(job);
    }

    fn gpu_changed(&mut self, gpu: usize) {
        self.desk.changed(gpu);
    }

    fn round(
        &mut self,
        cluster: &ClusterView,
        forecast: &dyn Forecast,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let queue = self.waiting.queue();
        let queued = queue.len();
        if queue.values().next().is_some_and(|job| forecast.done(job.id).is_none()) {
            let mut queue = queue.values().take(LOOK_AT_MAX);
            return SchemeB.decide_with(cluster, forecast, &mut queue, now, starts_max);
        }
        self.desk.read(cluster, forecast);
        let outlook = Outlook::default();
        let table = Table { settings: self.settings, cluster, forecast, now, outlook };
        let mut search = Search::new(table, &mut self.desk, &mut self.scratch);
        if search.any_open() {
            search.table.outlook = Outlook::of(&mut self.waiting, &search);
        }
        let (mut waits, mut started, mut refused) = (Vec::new(), 0, 0);
        let mut served = Vec::new();
        if search.any_open() {
            let waiting = &self.waiting;
            (served, waits) = overdue::serve(&mut search, waiting, self.settings, now, starts_max);
            started = served.len();
            served.extend(waits.iter().filter_map(told));
        }
        if search.any_open() {
            let order = order(&mut self.waiting, &mut self.lines, &search);
            for job in order.into_iter().filter(|job| !served.contains(&job.id)) {
                if started >= starts_max || refused >= REFUSED_MAX || !search.any_open() {
                    break;
                }
                if search.seat(&job, None) || search.make_room(&job) {
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
fn order(waiting: &mut Waiting, lines: &mut Lines, search: &Search<'_, '_>) -> Vec<QueuedJob> {
    let table = &search.table;
    let settings = table.settings;
    let clock = Clock {
        now: table.now,
        ageing: settings.ageing.min(table.outlook.time()),
        horizon: table.outlook.horizon,
        haste: settings.haste,
    };
    let first = waiting.queue().values().next();
    if first.is_some_and(|job| table.forecast.account(job.id).is_some()) {
        let kinds = search.kinds();
        let mut weigh = weighing(table, &kinds);
        return lines.most_urgent(waiting, table.forecast, clock, WEIGHED_MAX, &mut weigh);
    }
    let urgent = waiting.most_urgent(clock, WEIGHED_MAX);
    urgent.into_iter().map(|(_, job)| job).collect()
}

const fn told(decision: &Decision) -> Option<JobId> {
    match decision {
        Decision::Wait { job, .. } | Decision::Start { job, .. } => Some(*job),
        Decision::Reshape { .. } => None,
    }
}

/// Tells a job under a quota.
fn wait_for_quota(job: &QueuedJob, left: u32, limit: &Limit) -> Decision {
    let Limit { name, slices: quota } = limit;
    let held = quota.saturating_sub(left);
    let text = format!(
        "jobs of {name} hold {held} of the {quota} compute slices that they may have at once, and \
         nothing that they may still take is worth what it would take from others"
    );
    let why = Explanation {
        would_start_if: Some(format!("another job of {name} ends")),
        ..because(NAME, text)
    };
    Decision::Wait { job: job.id, reason: WaitReason::Resources, why }
}

fn wait(job: &QueuedJob) -> Decision {
    let text = "wherever it could go, it would take more from others than it is worth now";
    let why = Explanation {
        would_start_if: Some("a job ends, or it has waited longer".to_owned()),
        ..because(NAME, text)
    };
    Decision::Wait { job: job.id, reason: WaitReason::Resources, why }
}
