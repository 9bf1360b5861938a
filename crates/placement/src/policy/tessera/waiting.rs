//! The waiting jobs, the most urgent first, without sorting all of them in every round.
//!
//! A job's urgency is its weight, which grows linearly with its wait. A short list has the jobs
//! that were the most urgent when it was made, and those that arrived since. The urgency of any
//! other job is bounded: it is at most the highest urgency of the others at that time, with the
//! growth since. While the list has enough jobs above that bound, it gives the same result as the
//! whole queue.
//!
//! A job that by itself takes a good part of the time in which everything can be done
//! ([`UrgencyClock::horizon`]) is more urgent than its shortness alone makes it. If it began last,
//! it would still run while all other GPUs are idle. The horizon changes from round to round. The
//! bound therefore includes what the horizon can have added to any job since the list was made.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::spec::QueueRank;
use tessera_model::{JobId, Millis};

use super::rounding::{float, float_sum};
use crate::policy::session::Queue;
use crate::view::{QueueKey, QueuedJob};

/// How many jobs a new short list has. Chosen: four times what a round looks at.
const LISTED: usize = 256;

/// How many jobs a short list has at most before it is made again. Chosen.
const LISTED_MAX: usize = 4 * LISTED;

/// The exponent with which a job's urgency grows with its part of the horizon: half of the horizon
/// counts a quarter. Chosen with [`super::Tessera::haste`].
const STEEPNESS: i32 = 2;

pub(super) type Key = QueueKey;

/// The remaining time of one job, or the sum over several, in whole milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RemainingWork {
    /// On a whole GPU.
    pub(super) whole_ms: u128,
    /// On the instance that needs the least GPU time, converted to milliseconds of a whole GPU.
    pub(super) work_ms: u128,
}

impl RemainingWork {
    pub(super) const fn plus(self, more: Self) -> Self {
        let whole_ms = self.whole_ms.saturating_add(more.whole_ms);
        Self { whole_ms, work_ms: self.work_ms.saturating_add(more.work_ms) }
    }

    const fn less(self, other: Self) -> Self {
        let whole_ms = self.whole_ms.saturating_sub(other.whole_ms);
        Self { whole_ms, work_ms: self.work_ms.saturating_sub(other.work_ms) }
    }
}

/// The inputs of a job's urgency other than its wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobWeight {
    /// Its weight by shortness and priority.
    pub(super) weight: f64,
    /// Its remaining time.
    pub(super) left: RemainingWork,
    pub(super) deadline: Option<Millis>,
}

/// The inputs that all urgencies of one round share.
#[derive(Clone, Copy, Debug)]
pub(super) struct UrgencyClock {
    pub(super) now: Millis,
    /// The time after which the urgency of a waiting job has doubled.
    pub(super) ageing: Millis,
    /// The time in which all known work could be done on the slices that use least of the GPUs, in
    /// milliseconds.
    pub(super) horizon: f64,
    /// The largest factor that the horizon adds to a job's urgency.
    pub(super) haste: f64,
}

impl UrgencyClock {
    const START: Self = Self { now: Millis::ZERO, ageing: Millis::ZERO, horizon: 0.0, haste: 0.0 };

    fn urgency(&self, job: JobWeight, submitted: Millis) -> f64 {
        let part = float_sum(job.left.whole_ms) / self.horizon.max(1.0);
        let hasty = 1.0 + self.haste * part.min(1.0).powi(STEEPNESS);
        job.weight * hasty * self.aged(submitted)
    }

    fn aged(&self, since: Millis) -> f64 {
        1.0 + float(self.now.minus(since)) / float(self.ageing).max(1.0)
    }

    /// Returns the largest factor by which any job's urgency can have grown since another round, in
    /// addition to [`Self::aged`]. A shorter horizon makes long jobs more urgent, and all jobs age
    /// faster.
    fn hastened(&self, then: &Self) -> f64 {
        let grown = (then.horizon.max(1.0) / self.horizon.max(1.0)).max(1.0).powi(STEEPNESS);
        let faster = (float(then.ageing) / float(self.ageing).max(1.0)).max(1.0);
        grown.min(1.0 + self.haste) * faster
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct WaitingJobs {
    queue: Queue,
    /// Each job's weight, once it was computed.
    weights: BTreeMap<Key, JobWeight>,
    /// The jobs whose weight was not computed yet.
    fresh: BTreeSet<Key>,
    /// The sum of the remaining times of all weighed jobs.
    left: RemainingWork,
    list: BTreeSet<Key>,
    /// The weighed jobs with deadlines, the earliest first.
    deadlines: BTreeSet<(Millis, Key)>,
    /// All waiting jobs, the oldest first.
    ages: BTreeSet<(Millis, Key)>,
    /// The highest possible urgency of a job off the list, and when it was computed; `None` if all
    /// jobs are on the list.
    others: Option<(f64, UrgencyClock)>,
}

impl WaitingJobs {
    /// Adds a whole queue at once: adding jobs one after the other takes most of a round.
    pub(super) fn of(jobs: &mut dyn Iterator<Item = &QueuedJob>) -> Self {
        let queue: Queue = jobs.map(|job| (job.key(), job.clone())).collect();
        let ages = queue.iter().map(|(key, job)| (job.submitted, *key)).collect();
        let all_listed = queue.len() <= LISTED_MAX;
        let list = if all_listed { queue.keys().copied().collect() } else { BTreeSet::new() };
        // While the list is empty, no job's urgency is known.
        let others = (!all_listed).then_some((f64::INFINITY, UrgencyClock::START));
        let fresh = queue.keys().copied().collect();
        Self { queue, list, ages, others, fresh, ..Self::default() }
    }

    pub(super) fn insert(&mut self, job: QueuedJob) {
        let key = job.key();
        self.ages.insert((job.submitted, key));
        self.queue.insert(key, job);
        self.list.insert(key);
        self.fresh.insert(key);
    }

    pub(super) fn remove(&mut self, job: &QueuedJob) {
        let key = job.key();
        self.queue.remove(&key);
        self.ages.remove(&(job.submitted, key));
        self.fresh.remove(&key);
        if let Some(weight) = self.weights.remove(&key) {
            weight.deadline.map(|deadline| self.deadlines.remove(&(deadline, key)));
            self.left = self.left.less(weight.left);
        }
        self.list.remove(&key);
    }

    /// Weighs the jobs that arrived since, and returns the sum of the remaining times of all
    /// waiting jobs.
    pub(super) fn weigh(
        &mut self,
        weigh: &mut dyn FnMut(&QueuedJob) -> JobWeight,
    ) -> RemainingWork {
        for key in std::mem::take(&mut self.fresh) {
            let Some(job) = self.queue.get(&key) else { continue };
            let weight = weigh(job);
            self.left = self.left.plus(weight.left);
            self.deadlines.extend(weight.deadline.map(|deadline| (deadline, key)));
            self.weights.insert(key, weight);
        }
        self.left
    }

    /// Returns a job's use of the cluster, in milliseconds of a whole GPU; 0 if it was not weighed.
    pub(super) fn work_ms(&self, job: &QueuedJob) -> u128 {
        self.weights.get(&job.key()).map_or(0, |weight| weight.left.work_ms)
    }

    /// Returns when the last of them arrived.
    pub(super) fn newest(&self) -> Option<Millis> {
        self.ages.last().map(|(submitted, _)| *submitted)
    }

    pub(super) const fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Returns the jobs whose deadlines have not passed, the earliest first.
    pub(super) fn earliest_deadlines(&self, now: Millis) -> impl Iterator<Item = &QueuedJob> {
        let first = (now, (QueueRank::default(), JobId::from_number(0)));
        let due = self.deadlines.range(first..).map(|(_, key)| key);
        due.filter_map(|key| self.queue.get(key))
    }

    /// Returns the jobs, the oldest first.
    pub(super) fn oldest(&self) -> impl Iterator<Item = &QueuedJob> {
        self.ages.iter().filter_map(|(_, key)| self.queue.get(key))
    }

    /// Returns the most urgent of those that were weighed with how urgent they are, among equals
    /// the first in the order of service.
    pub(super) fn most_urgent(
        &mut self,
        clock: UrgencyClock,
        most: usize,
    ) -> Vec<(f64, QueuedJob)> {
        let (queue, weights) = (&self.queue, &self.weights);
        let urgency = |key: &Key| -> Option<f64> {
            Some(clock.urgency(*weights.get(key)?, queue.get(key)?.submitted))
        };
        if self.list.len() <= LISTED_MAX {
            let mut order: Vec<(f64, Key)> =
                self.list.iter().filter_map(|key| Some((urgency(key)?, *key))).collect();
            let count = select(&mut order, most);
            order.truncate(count);
            let limit = self.others.map(|(urgent, then)| {
                // A small margin covers rounding errors.
                urgent * clock.aged(then.now) * clock.hastened(&then) * 1.000_001
            });
            let enough = limit.is_none_or(|limit| {
                order.len() == most && order.last().is_some_and(|(urgent, _)| *urgent > limit)
            });
            if enough {
                return order
                    .iter()
                    .filter_map(|(urgent, key)| Some((*urgent, queue.get(key)?.clone())))
                    .collect();
            }
        }
        let mut order: Vec<(f64, Key)> =
            queue.keys().filter_map(|key| Some((urgency(key)?, *key))).collect();
        let count = select(&mut order, LISTED);
        let off = order.split_off(count);
        let others = off
            .iter()
            .map(|(urgent, _)| *urgent)
            .fold(None, |most, urgent| Some(most.map_or(urgent, |known: f64| known.max(urgent))));
        self.others = others.map(|urgent| (urgent, clock));
        self.list = order.iter().map(|(_, key)| *key).collect();
        order.truncate(most);
        order.iter().filter_map(|(urgent, key)| Some((*urgent, queue.get(key)?.clone()))).collect()
    }
}

/// Moves the most urgent jobs to the front, in order, and returns their number.
fn select(order: &mut [(f64, Key)], most: usize) -> usize {
    let before = |a: &(f64, Key), b: &(f64, Key)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let count = most.min(order.len());
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, before);
    }
    order[..count].sort_unstable_by(before);
    count
}
