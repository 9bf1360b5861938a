//! Jobs as they enter the queue.

use std::sync::Arc;

use tessera_model::life::Outcome;
use tessera_model::spec::{GpuRequest, JobSpec, QueueRank};
use tessera_model::{Bytes, GangMember, JobId, Millis};
use tessera_placement::SharingRequest;

use crate::predictions::TaskFacts;

/// What a job's own attempts showed about its needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnMemory {
    /// How often it ran out of GPU memory.
    pub events: u32,
    /// The minimum that it requests since then.
    pub at_least: Option<Bytes>,
    /// What an attempt had allocated before its first kernel: no less is enough.
    pub held: Option<Bytes>,
    /// The multiprocessors that the first kernel of an attempt needed for as few steps as a whole GPU takes.
    pub multiprocessors: Option<u16>,
}

/// A job as it enters the queue.
#[derive(Clone, Debug)]
pub struct SubmittedJob {
    /// Its number.
    pub job: JobId,
    /// Its membership in a gang, if it has one.
    pub gang: Option<GangMember>,
    /// The submission, which is its array if it is a task; `None` if unknown.
    pub array: Option<JobId>,
    /// Its GPU request.
    pub gpu: GpuRequest,
    /// The job's user.
    pub user: Arc<str>,
    /// Its share of a slice, if it may share one.
    pub share: Option<SharingRequest>,
    /// Where it stands in the queue.
    pub queue_rank: QueueRank,
    /// How many attempts it had.
    pub attempts: u32,
    /// Its facts for placement.
    pub facts: Arc<TaskFacts>,
    /// How long ago it was accepted.
    pub waited: Millis,
    /// How much of it is checkpointed, in millionths.
    pub done: u32,
    /// What its own attempts showed about its memory.
    pub own: OwnMemory,
}

impl SubmittedJob {
    /// Returns the facts for placement from a specification.
    pub fn new(job: JobId, spec: &JobSpec, gang: Option<GangMember>, attempts: u32) -> Self {
        Self {
            job,
            gang,
            array: None,
            gpu: spec.gpu.clone(),
            user: spec.user.as_str().into(),
            share: sharer(spec),
            queue_rank: spec.queue_rank,
            attempts,
            facts: Arc::new(TaskFacts::of(spec)),
            waited: Millis::ZERO,
            done: 0,
            own: OwnMemory::default(),
        }
    }
}

impl SubmittedJob {
    /// Returns the job as it runs again after this end, if there was one. After another job's fault, or one whose cause is
    /// not known, nothing may run next to it.
    #[must_use]
    pub fn after(mut self, reason: Option<Outcome>) -> Self {
        if let Some(share) = &mut self.share {
            share.apart = reason == Some(Outcome::Collateral);
        }
        self
    }
}

/// Returns a job's share of a slice, if it may share one.
pub fn sharer(spec: &JobSpec) -> Option<SharingRequest> {
    spec.share.part().map(|share| SharingRequest::new(spec.user.as_str(), share))
}
