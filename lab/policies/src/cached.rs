//! Sessions of policies that keep what need not be computed again until a GPU changes.

use std::fmt::Debug;

use tessera_model::{JobId, Millis};
use tessera_placement::decision::Decision;
use tessera_placement::policy::session::{Queue, Session};
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, QueuedJob};

/// The cache of a policy between rounds. A round with an empty cache has the same decisions.
pub(crate) trait RoundCache: Debug + Default {
    /// Removes the cached values of a GPU.
    fn forget_gpu(&mut self, gpu: usize);

    /// Removes the cached values of a job: if it returns, its needs may differ.
    fn forget_job(&mut self, _job: JobId) {}
}

/// A policy that decides with a cache.
pub(crate) trait CachingPolicy: Debug {
    type Cache: RoundCache;

    /// Decides one round, with at most `starts_max` starts.
    fn decide_from(
        &self,
        cache: &mut Self::Cache,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        limits: (Millis, usize),
    ) -> Vec<Decision>;
}

/// A session of such a policy.
#[derive(Debug)]
pub(crate) struct CachedSession<'p, P: CachingPolicy> {
    policy: &'p P,
    queue: Queue,
    cache: P::Cache,
}

impl<'p, P: CachingPolicy> CachedSession<'p, P> {
    pub(crate) fn new(policy: &'p P) -> Self {
        Self { policy, queue: Queue::new(), cache: P::Cache::default() }
    }
}

impl<P: CachingPolicy> Session for CachedSession<'_, P> {
    fn enqueue(&mut self, job: QueuedJob) {
        self.queue.insert(job.key(), job);
    }

    fn dequeue(&mut self, job: &QueuedJob) {
        self.queue.remove(&job.key());
        self.cache.forget_job(job.id);
    }

    fn gpu_changed(&mut self, gpu: usize) {
        self.cache.forget_gpu(gpu);
    }

    fn round(
        &mut self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut queue = self.queue.values();
        let limits = (now, starts_max);
        self.policy.decide_from(&mut self.cache, cluster, knowledge, &mut queue, limits)
    }
}
