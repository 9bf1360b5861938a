//! In which order waiting jobs are served.
//!
//! - Jobs that have waited for [`super::super::Tessera::patience`] come first, as far as such jobs hold less than a part of
//!   the cluster ([`OverdueHolders`]). Of these, the account that has used least for its shares is first, and of one
//!   account the oldest. In a cluster in which all jobs wait that long, shares and priorities hold.
//! - Then jobs of better priority, and of these first those that have waited that long.
//! - Then jobs whose deadline is near: sooner than [`TIGHT`] times their least time. The earliest deadline comes
//!   first.
//! - Then jobs of the account that has used least for its shares, including what earlier jobs take in this
//!   round. So a user with thousands of short jobs is served no better than one with a few.
//! - Of one account's jobs the one with the largest `(wait + t) / t` comes first, with `t` its expected
//!   time (highest response ratio next; Brinch Hansen, 1971). Short jobs are served soon, and no job waits
//!   forever behind shorter ones. Jobs of which nothing is known keep the order of their arrival. If they were all
//!   submitted together, those come first that need least of a GPU.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tessera_model::spec::QueueRank;
use tessera_model::{JobId, Millis};

use super::super::fairness::SLICES_OF_GPU;
use super::super::overdue::{OverdueHolders, SLICE};
use super::super::rounding::{float, float_count, whole_ms};
use super::ORDERED_MAX;
use super::horizon::StayHorizon;
use crate::facts::{Account, JobTable};
use crate::fair::first_of_each_user;
use crate::view::QueuedJob;

/// When a deadline counts as near: if the time until it is less than so many times the job's least time.
/// Chosen.
const TIGHT: f64 = 100.0;

/// How many times as long as the mean of the known jobs one takes of which nothing is known. Chosen on seeds 301 to 320, on
/// short jobs that arrive fast; between 1 and 4 the figures of the matrix hardly differ.
const LONGER: f64 = 2.0;

/// A job that needs more than this part of a GPU needs most of it. Chosen: only one such job fits on a GPU.
const WIDE: f64 = 0.5;

/// The most jobs that are ordered because they have waited too long. Chosen to limit the duration of a round.
const AGED_MAX: usize = 64;

/// A job with its expected time, in milliseconds, on the place that costs least.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedJob<'q> {
    pub(super) job: &'q QueuedJob,
    pub(super) ms: f64,
    /// Its time where that is least.
    pub(super) least_ms: f64,
    /// Whether its times are known.
    pub(super) known: bool,
    /// Whether they are only assumed: nothing is known of its task.
    pub(super) assumed: bool,
    /// When it has to be done, if that is still possible, in milliseconds of the clock.
    pub(super) deadline: Option<f64>,
    /// Its use of the cluster, in milliseconds of a whole GPU.
    pub(super) work_ms: f64,
    /// The smallest part of a GPU that it may have; 0 if that is not known.
    pub(super) least_part: f64,
}

impl TimedJob<'_> {
    /// Returns whether it needs most of a GPU.
    pub(super) fn is_wide(&self) -> bool {
        self.least_part > WIDE
    }

    /// Returns whether a job's deadline is near.
    pub(super) fn is_due(&self, now: f64) -> bool {
        self.deadline.is_some_and(|deadline| deadline - now <= TIGHT * self.least_ms)
    }
}

/// Returns the jobs of a long queue that are put into the order of service, and the others. With fair share, each user
/// has a part of them: otherwise thousands of jobs of one user would keep those of later users out. Those that have waited
/// too long are always among them.
pub(super) fn split<'q>(
    queue: &[&'q QueuedJob],
    jobs: &dyn JobTable,
    (now, patience): (Millis, Millis),
) -> (Vec<&'q QueuedJob>, Vec<&'q QueuedJob>) {
    if queue.len() <= ORDERED_MAX {
        return (queue.to_vec(), Vec::new());
    }
    let usage = |job: &QueuedJob| {
        let account = jobs.account(job.id);
        account.map_or(0, |account| whole_ms(account.usage_per_share()))
    };
    let is_shared = jobs.account(queue[0].id).is_some();
    let mut taken = match is_shared {
        true => first_of_each_user(queue, ORDERED_MAX, &usage),
        false => (0..queue.len()).map(|place| place < ORDERED_MAX).collect(),
    };
    let is_aged = |place: &usize| now.minus(queue[*place].submitted) >= patience;
    let mut aged: Vec<usize> = (0..queue.len()).filter(is_aged).collect();
    aged.sort_by_key(|place| (queue[*place].submitted, queue[*place].id));
    aged.truncate(AGED_MAX);
    aged.into_iter().for_each(|place| taken[place] = true);
    let (ordered, rest): (Vec<_>, Vec<_>) =
        queue.iter().zip(taken).partition(|(_, is_taken)| *is_taken);
    let jobs = |part: Vec<(&&'q QueuedJob, bool)>| part.into_iter().map(|(job, _)| *job).collect();
    (jobs(ordered), jobs(rest))
}

/// Replaces the assumed times of jobs of which nothing is known, if others are known. Such a job is expected to take
/// [`LONGER`] times as long as the mean of those. Otherwise it would count as long among jobs of seconds, be served after all
/// of them, and its task would never become known.
pub(super) fn expect_usual_length(waiting: &mut [TimedJob<'_>]) {
    let known: Vec<f64> =
        waiting.iter().filter(|timed| timed.known).map(|timed| timed.least_ms).collect();
    if known.is_empty() {
        return;
    }
    let usual_ms = LONGER * known.iter().sum::<f64>() / float_count(known.len());
    for timed in waiting.iter_mut().filter(|timed| timed.assumed && timed.least_ms > usual_ms) {
        let factor = usual_ms / timed.least_ms;
        timed.ms *= factor;
        timed.least_ms *= factor;
        timed.work_ms *= factor;
    }
}

/// Returns the overdue jobs that go before all others: those of the best priority, and others as far as `holders` admit them.
pub(super) fn out_of_turn(
    mut overdue: Vec<TimedJob<'_>>,
    best: QueueRank,
    jobs: &dyn JobTable,
    mut holders: OverdueHolders,
) -> BTreeSet<JobId> {
    let mut order = Vec::new();
    oldest_first(&mut overdue);
    AccountUsage::new(jobs).order_by_usage(overdue, &mut order);
    order.retain(|timed| {
        timed.job.queue_rank <= best || holders.admit(timed.job, timed.least_part.max(SLICE))
    });
    order.into_iter().map(|timed| timed.job.id).collect()
}

fn oldest_first(jobs: &mut [TimedJob<'_>]) {
    jobs.sort_by_key(|timed| (timed.job.submitted, timed.job.id));
}

/// Puts jobs into the order of service. Those of `first` go before all others.
pub(super) fn serve_in_order<'q>(
    waiting: Vec<TimedJob<'q>>,
    first: &BTreeSet<JobId>,
    jobs: &dyn JobTable,
    horizon: StayHorizon,
    (now, patience): (Millis, Millis),
) -> Vec<TimedJob<'q>> {
    let (mut overdue, rest): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(|timed| first.contains(&timed.job.id));
    oldest_first(&mut overdue);
    let mut by_rank: BTreeMap<QueueRank, Vec<TimedJob<'q>>> = BTreeMap::new();
    for timed in rest {
        by_rank.entry(timed.job.queue_rank).or_default().push(timed);
    }
    let mut order = Vec::new();
    let at = float(now);
    let mut accounts = AccountUsage::new(jobs);
    accounts.order_by_usage(overdue, &mut order);
    for (_, group) in by_rank {
        let (mut late, group): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|timed| now.minus(timed.job.submitted) >= patience);
        oldest_first(&mut late);
        accounts.order_by_usage(late, &mut order);
        let (mut tight, mut group): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|timed| timed.is_due(at));
        tight.sort_by(|a, b| {
            let deadline = |timed: &TimedJob<'_>| timed.deadline.unwrap_or(f64::INFINITY);
            deadline(a).total_cmp(&deadline(b)).then_with(|| a.job.id.cmp(&b.job.id))
        });
        order.append(&mut tight);
        let narrow_first = horizon.is_complete_batch() && group.iter().all(|timed| !timed.known);
        group.sort_by(|a, b| {
            // Of jobs that were submitted together, those that need most of a GPU come last: for each that comes between
            // others, a GPU would be emptied. In the end they have large slices, and not the small ones.
            let width = |timed: &TimedJob<'_>| if narrow_first { timed.least_part } else { 0.0 };
            let narrow = width(a).total_cmp(&width(b));
            let ratio = |timed: &TimedJob<'_>| {
                (float(now.minus(timed.job.submitted)) + timed.least_ms) / timed.least_ms.max(1.0)
            };
            // The jobs that have to begin now, the longest first.
            let pressed = |timed: &TimedJob<'_>| match timed.known && horizon.presses(timed.ms) {
                true => timed.ms,
                false => 0.0,
            };
            let pressed = pressed(b).total_cmp(&pressed(a));
            let urgent = || ratio(b).total_cmp(&ratio(a));
            pressed.then(narrow).then_with(urgent).then_with(|| a.job.id.cmp(&b.job.id))
        });
        accounts.order_by_usage(group, &mut order);
    }
    order
}

/// The account of a user, with its shares.
type OwnAccount = (Arc<str>, f64);

/// What accounts have used for their shares, including what they get in this round.
struct AccountUsage<'j> {
    jobs: &'j dyn JobTable,
    /// By user.
    accounts: BTreeMap<Arc<str>, OwnAccount>,
    used: BTreeMap<Arc<str>, f64>,
}

impl<'j> AccountUsage<'j> {
    fn new(jobs: &'j dyn JobTable) -> Self {
        Self { jobs, accounts: BTreeMap::new(), used: BTreeMap::new() }
    }

    /// Orders jobs so that the account that has used least is always next; the order among one account's jobs
    /// stays.
    fn order_by_usage<'q>(&mut self, jobs: Vec<TimedJob<'q>>, order: &mut Vec<TimedJob<'q>>) {
        let mut lines: BTreeMap<Arc<str>, VecDeque<TimedJob<'q>>> = BTreeMap::new();
        let mut shares: BTreeMap<Arc<str>, f64> = BTreeMap::new();
        for timed in jobs {
            let (name, share) = self.account_of(timed.job);
            shares.insert(Arc::clone(&name), share);
            lines.entry(name).or_default().push_back(timed);
        }
        let least = |used: &BTreeMap<Arc<str>, f64>, lines: &BTreeMap<Arc<str>, _>| {
            let by_use =
                |a: &&Arc<str>, b: &&Arc<str>| used[*a].total_cmp(&used[*b]).then_with(|| a.cmp(b));
            lines.keys().min_by(by_use).map(Arc::clone)
        };
        while let Some(name) = least(&self.used, &lines) {
            let next = lines.get_mut(&name).and_then(VecDeque::pop_front);
            let Some(timed) = next else {
                lines.remove(&name);
                continue;
            };
            // Usage counts time on compute slices, of which a whole GPU has about seven.
            let more = SLICES_OF_GPU * timed.work_ms / shares[&name];
            *self.used.entry(name).or_default() += more;
            order.push(timed);
        }
    }

    /// Returns the account of a job; jobs of all users without one count as one account.
    fn account_of(&mut self, job: &QueuedJob) -> OwnAccount {
        if let Some(known) = self.accounts.get(&job.user) {
            return known.clone();
        }
        let account = self.jobs.account(job.id);
        let used = account.as_ref().map_or(0.0, Account::usage_per_share);
        let shares = account.as_ref().map_or(1.0, |account| f64::from(account.shares.max(1)));
        let name = account.map_or_else(|| Arc::from(""), |account| account.name);
        self.used.entry(Arc::clone(&name)).or_insert(used);
        self.accounts.insert(Arc::clone(&job.user), (Arc::clone(&name), shares));
        (name, shares)
    }
}
