//! `tessera`: the default. Each GPU's layouts are searched exactly for the seats that are worth
//! most, and whatever has to be stopped for that is paid for first.
//!
//! - **Worth.** A job on a slice is worth its speed there times its weight. The weight is higher
//!   the less of the job is left, to the power of [`Tessera::shortness`] (one: the shortest job
//!   first, which is best for the mean; zero: all alike, which is best for throughput).
//! - **Order.** Jobs that wait are looked at by a weight of their own ([`Tessera::eagerness`]), which
//!   grows as they wait, so that nobody starves.
//! - **Price.** A job that is stopped and goes on loses its restore; that part of its worth is
//!   taken off. So a GPU is cut under running jobs only where that pays within what is left of
//!   them (Dyna-P's reconfigure-last, with MISO's search).
//! - **Deadlines** are constraints: a seat that makes a job late that would be in time is none.
//! - **Across GPUs** each job goes where it adds most. When nobody waits, jobs move to GPUs that
//!   fell idle, the one that gains most first.
//! - **Ties** between layouts go to the one that takes the fewest steps. Reachability (MIGM's `R`)
//!   is not weighed: seats are searched anew whenever a job comes or goes.
//!
//! Without a forecast of a job it does what `scheme-b` does.

mod desk;
mod search;
mod table;
mod waiting;

use tessera_model::Millis;

use self::desk::Desk;
use self::search::Search;
use self::table::{Table, float};
use self::waiting::Waiting;
use super::cards::because;
use super::{Policy, SchemeB};
use crate::decision::{Decision, Explanation, WaitReason};
use crate::forecast::Forecast;
use crate::seating::Scratch;
use crate::session::{LOOK_AT_MAX, Session};
use crate::view::{ClusterView, QueuedJob};

const NAME: &str = "tessera";

/// Most jobs of the queue that one round weighs; the rest wait their turn.
const WEIGHED_MAX: usize = 64;

/// Most jobs in a row that find no place before a round gives up: those behind them weigh less.
const REFUSED_MAX: usize = 8;

/// The policy `tessera`, with what it weighs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tessera {
    /// How much more a shorter job's speed is worth: the power of what is left of it.
    pub shortness: f64,
    /// The same for the order in which jobs that wait are looked at.
    pub eagerness: f64,
    /// The time after which a job that waits weighs twice as much.
    pub ageing: Millis,
    /// How much better a GPU's seats must get for jobs to be stopped, in thousandths.
    pub hurdle: i64,
    /// GPUs that are searched for each job.
    pub searched: usize,
    /// Jobs of one GPU at most.
    pub crowd: usize,
}

impl Default for Tessera {
    fn default() -> Self {
        Self {
            shortness: 0.3,
            eagerness: 0.7,
            ageing: Millis::from_secs(3_600),
            hurdle: 50,
            searched: 10,
            crowd: 7,
        }
    }
}

impl Policy for Tessera {
    fn name(&self) -> &'static str {
        NAME
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
        queue.for_each(|job| work.waiting.insert(job.clone()));
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
    desk: Desk,
    scratch: Scratch,
}

impl<'s> Work<'s> {
    fn new(settings: &'s Tessera) -> Self {
        Self {
            settings,
            waiting: Waiting::default(),
            desk: Desk::default(),
            scratch: Scratch::default(),
        }
    }
}

impl Session for Work<'_> {
    fn enqueue(&mut self, job: QueuedJob) {
        self.waiting.insert(job);
    }

    fn dequeue(&mut self, job: &QueuedJob) {
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
        self.desk.read(cluster);
        let table = Table { settings: self.settings, cluster, forecast, now };
        let mut search = Search::new(table, &mut self.desk, &mut self.scratch);
        let (mut waits, mut started, mut refused) = (Vec::new(), 0, 0);
        if search.any_open() {
            let kinds = search.kinds();
            let mut weigh = |job: &QueuedJob| table.eagerness(&kinds, job.id);
            let ageing = self.settings.ageing;
            let order = self.waiting.most_urgent(now, ageing, WEIGHED_MAX, &mut weigh);
            for job in order {
                if started >= starts_max || refused >= REFUSED_MAX || !search.any_open() {
                    break;
                }
                if search.seat(&job) {
                    started += 1;
                    refused = 0;
                } else {
                    waits.push(wait(&job));
                    refused += 1;
                }
            }
        }
        search.keep_promises();
        if waits.is_empty() && started == queued {
            search.spread();
            search.tidy();
        }
        search.decisions().into_iter().chain(waits).collect()
    }
}

fn wait(job: &QueuedJob) -> Decision {
    let text = "wherever it could go, it would take more from others than it is worth now";
    let why = Explanation {
        would_start_if: Some("a job ends, or it has waited longer".to_owned()),
        ..because(NAME, text)
    };
    Decision::Wait { job: job.id, reason: WaitReason::Resources, why }
}
