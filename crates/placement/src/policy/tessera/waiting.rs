//! The jobs that wait, the most urgent first, without sorting all of them in every round.
//!
//! How urgent a job is grows evenly with its wait, from what it weighs. A short list holds those
//! that were the most urgent when it was made, and those that arrived since. Nobody else can have
//! become more urgent than the most urgent of the others was then, grown by what any job grows.
//! While the list has enough jobs above that, it is as good as all of them.
//!
//! A job that by itself takes a good part of the time in which everything can be done
//! ([`UrgencyClock::horizon`]) is more urgent than its shortness makes it. Begun last, it alone
//! would run on while everybody else's GPUs stand idle. The horizon moves from round to round, and
//! what it can add to anybody since the list was made is added to what the others can have become.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::spec::QueueRank;
use tessera_model::{JobId, Millis};

use super::rounding::{float, float_sum};
use crate::policy::session::Queue;
use crate::view::{QueueKey, QueuedJob};

/// Jobs on a new short list. Chosen: four times what a round looks at.
const LISTED: usize = 256;

/// Jobs on a short list before it is made anew. Chosen.
const LISTED_MAX: usize = 4 * LISTED;

/// How steeply a job's urgency grows with its part of the horizon: half of it counts a quarter. Chosen
/// with [`super::Tessera::haste`].
const STEEPNESS: i32 = 2;

pub(super) type Key = QueueKey;

/// What is left of jobs, in whole milliseconds, added up where they are several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RemainingWork {
    /// On a whole GPU.
    pub(super) whole_ms: u128,
    /// On the instance of which it takes the least, as the time that a whole GPU has for as much of
    /// itself.
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

/// What a job's urgency is computed from, in addition to its wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobWeight {
    /// What it weighs by its shortness and priority.
    pub(super) weight: f64,
    /// What is left of it.
    pub(super) left: RemainingWork,
    /// When it has to be done.
    pub(super) deadline: Option<Millis>,
}

/// What all jobs' urgencies are worked out from in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct UrgencyClock {
    pub(super) now: Millis,
    /// The time after which a job that waits is twice as urgent.
    pub(super) ageing: Millis,
    /// The time in which all work that is known could be done where it costs least of GPUs, in
    /// milliseconds.
    pub(super) horizon: f64,
    /// How much more urgent a job is at most by its part of the horizon.
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

    /// Returns by what factor anybody's urgency can have grown since another round, in addition to
    /// [`Self::aged`]. The horizon may have come nearer, by which long jobs are more urgent
    /// and all jobs age faster.
    fn hastened(&self, then: &Self) -> f64 {
        let grown = (then.horizon.max(1.0) / self.horizon.max(1.0)).max(1.0).powi(STEEPNESS);
        let faster = (float(then.ageing) / float(self.ageing).max(1.0)).max(1.0);
        grown.min(1.0 + self.haste) * faster
    }
}

/// Jobs that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingJobs {
    queue: Queue,
    /// What each weighs, once that was computed.
    weights: BTreeMap<Key, JobWeight>,
    /// Those of which it was not.
    fresh: BTreeSet<Key>,
    /// What is left of all that were weighed.
    left: RemainingWork,
    list: BTreeSet<Key>,
    /// Those with deadlines that were weighed, the earliest first.
    deadlines: BTreeSet<(Millis, Key)>,
    /// All of them, the oldest first.
    ages: BTreeSet<(Millis, Key)>,
    /// How urgent anybody off the list can have been, and when; nothing if all are on it.
    others: Option<(f64, UrgencyClock)>,
}

impl WaitingJobs {
    /// Takes a whole queue at once: one after the other, it costs most of a round.
    pub(super) fn of(jobs: &mut dyn Iterator<Item = &QueuedJob>) -> Self {
        let queue: Queue = jobs.map(|job| (job.key(), job.clone())).collect();
        let ages = queue.iter().map(|(key, job)| (job.submitted, *key)).collect();
        let all_listed = queue.len() <= LISTED_MAX;
        let list = if all_listed { queue.keys().copied().collect() } else { BTreeSet::new() };
        // With nobody listed, nobody's urgency is known.
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

    /// Weighs the jobs that arrived since, and returns what is left of all waiting jobs.
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

    /// Returns when the last of them arrived.
    pub(super) fn newest(&self) -> Option<Millis> {
        self.ages.last().map(|(submitted, _)| *submitted)
    }

    pub(super) const fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Returns the jobs whose deadlines are still to come, the earliest first.
    pub(super) fn earliest_deadlines(&self, now: Millis) -> impl Iterator<Item = &QueuedJob> {
        let first = (now, (QueueRank::default(), JobId::from_number(0)));
        let due = self.deadlines.range(first..).map(|(_, key)| key);
        due.filter_map(|key| self.queue.get(key))
    }

    /// Returns the jobs, the oldest first.
    pub(super) fn oldest(&self) -> impl Iterator<Item = &QueuedJob> {
        self.ages.iter().filter_map(|(_, key)| self.queue.get(key))
    }

    /// Returns the most urgent of those that were weighed with how urgent they are, of equals the
    /// first in the order of service.
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
                // A little more, for what rounding may do.
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

/// Brings the most urgent to the front, in order, and returns how many they are.
fn select(order: &mut [(f64, Key)], most: usize) -> usize {
    let before = |a: &(f64, Key), b: &(f64, Key)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let count = most.min(order.len());
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, before);
    }
    order[..count].sort_unstable_by(before);
    count
}
