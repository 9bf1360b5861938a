//! Consecutive rounds, for callers that know what changed in between.
//!
//! [`Policy::decide_with`] reads the whole cluster each time; with thousands of GPUs and a million
//! rounds that takes most of the time. A session is informed of changes, and caches only values
//! that it could compute again: its decisions are those of `decide_with` (a property test checks
//! that).

use std::collections::BTreeMap;

use tessera_model::Millis;

use crate::decision::Decision;
use crate::policy::Policy;
use crate::predictor::Knowledge;
use crate::view::{ClusterView, QueueKey, QueuedJob};

/// The most waiting jobs that one round considers.
pub const LOOK_AT_MAX: usize = 5_000;

/// The state of a policy between rounds.
///
/// The caller reports every job that starts or stops waiting, and every GPU of the view that
/// changed since the last round. A waiting job whose facts changed is to be dequeued and enqueued
/// again.
pub trait Session: std::fmt::Debug {
    /// A job waits from now on.
    fn enqueue(&mut self, job: QueuedJob);

    /// A job no longer waits.
    fn dequeue(&mut self, job: &QueuedJob);

    /// A GPU, given by its index in the view, changed.
    fn gpu_changed(&mut self, gpu: usize);

    /// Decides one round like [`Policy::decide_with`].
    fn round(
        &mut self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision>;
}

/// Returns a session of a policy: its own, or one that passes the whole input in every round.
pub fn session(policy: &dyn Policy) -> Box<dyn Session + '_> {
    policy.session().unwrap_or_else(|| Box::new(Afresh { policy, queue: Queue::new() }))
}

/// The waiting jobs, in the order of service.
pub type Queue = BTreeMap<QueueKey, QueuedJob>;

#[derive(Debug)]
struct Afresh<'p> {
    policy: &'p dyn Policy,
    queue: Queue,
}

impl Session for Afresh<'_> {
    fn enqueue(&mut self, job: QueuedJob) {
        self.queue.insert(job.key(), job);
    }

    fn dequeue(&mut self, job: &QueuedJob) {
        self.queue.remove(&job.key());
    }

    fn gpu_changed(&mut self, _: usize) {}

    fn round(
        &mut self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut queue = self.queue.values().take(LOOK_AT_MAX);
        self.policy.decide_with(cluster, knowledge, &mut queue, now, starts_max)
    }
}
