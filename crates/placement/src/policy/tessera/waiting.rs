//! The jobs that wait, the most urgent first, without sorting all of them in every round.
//!
//! How urgent a job is grows evenly with its wait, from what it weighs. A short list holds those
//! that were the most urgent when it was made, and those that came since. Nobody else can have
//! become more urgent than the most urgent of the others was then, grown by what any job grows:
//! while the list has enough jobs above that, it is as good as all of them.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};

use super::float;
use crate::session::Queue;
use crate::view::QueuedJob;

/// Jobs on a new short list.
const LISTED: usize = 256;

/// Jobs on a short list before it is made anew.
const LISTED_MAX: usize = 4 * LISTED;

pub(super) type Key = (Priority, JobId);

/// Jobs that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    queue: Queue,
    /// What each weighs, once that was asked.
    weights: BTreeMap<Key, f64>,
    list: BTreeSet<Key>,
    /// All of them, the oldest first.
    ages: BTreeSet<(Millis, Key)>,
    /// How urgent anybody off the list can have been, and when; nothing if all are on it.
    others: Option<(f64, Millis)>,
}

impl Waiting {
    /// Takes a whole queue at once: one after the other, it costs most of a round.
    pub(super) fn of(jobs: &mut dyn Iterator<Item = &QueuedJob>) -> Self {
        let queue: Queue = jobs.map(|job| ((job.priority, job.id), job.clone())).collect();
        let ages = queue.iter().map(|(key, job)| (job.submitted, *key)).collect();
        let all_listed = queue.len() <= LISTED_MAX;
        let list = if all_listed { queue.keys().copied().collect() } else { BTreeSet::new() };
        // With nobody listed, nobody's urgency is known.
        let others = (!all_listed).then_some((f64::INFINITY, Millis::ZERO));
        Self { queue, weights: BTreeMap::new(), list, ages, others }
    }

    pub(super) fn insert(&mut self, job: QueuedJob) {
        let key = (job.priority, job.id);
        self.ages.insert((job.submitted, key));
        self.queue.insert(key, job);
        self.list.insert(key);
    }

    pub(super) fn remove(&mut self, job: &QueuedJob) {
        let key = (job.priority, job.id);
        self.queue.remove(&key);
        self.ages.remove(&(job.submitted, key));
        self.weights.remove(&key);
        self.list.remove(&key);
    }

    pub(super) const fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Returns the jobs, the oldest first.
    pub(super) fn oldest(&self) -> impl Iterator<Item = &QueuedJob> {
        self.ages.iter().filter_map(|(_, key)| self.queue.get(key))
    }

    /// Returns the most urgent jobs with how urgent they are, of equals the first in the order of service.
    pub(super) fn most_urgent(
        &mut self,
        now: Millis,
        ageing: Millis,
        most: usize,
        weigh: &mut dyn FnMut(&QueuedJob) -> f64,
    ) -> Vec<(f64, QueuedJob)> {
        let ageing = float(ageing).max(1.0);
        let queue = &self.queue;
        let weights = &mut self.weights;
        if weights.is_empty() {
            *weights = queue.iter().map(|(key, job)| (*key, weigh(job))).collect();
        }
        let mut urgency = |key: &Key| -> Option<f64> {
            let job = queue.get(key)?;
            let weight = *weights.entry(*key).or_insert_with(|| weigh(job));
            Some(weight * (1.0 + float(now.minus(job.submitted)) / ageing))
        };
        if self.list.len() <= LISTED_MAX {
            let mut order: Vec<(f64, Key)> =
                self.list.iter().filter_map(|key| Some((urgency(key)?, *key))).collect();
            let count = select(&mut order, most);
            order.truncate(count);
            let limit = self.others.map(|(urgent, then)| {
                // A little more, for what rounding may do.
                urgent * (1.0 + float(now.minus(then)) / ageing) * 1.000_001
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
        self.others = others.map(|urgent| (urgent, now));
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
