//! Finds the job of a process that calls the API through its node.

use std::sync::Arc;

use tessera_model::{AttemptId, JobId, NodeId};

use crate::state::ClusterState;

/// The job of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerJob {
    /// The user who submitted the job.
    pub user: Arc<str>,
    /// Its first number: that of its gang, if it is one.
    pub first: JobId,
    /// Its last number: the members of a gang have consecutive ones.
    pub last: JobId,
}

impl CallerJob {
    /// Returns whether a number is this job's.
    pub fn has(&self, job: JobId) -> bool {
        (self.first..=self.last).contains(&job)
    }
}

impl ClusterState {
    /// Returns the job of an attempt that a node names; `None` unless the attempt is alive on that
    /// node.
    pub fn caller_job(&self, node: NodeId, attempt: AttemptId) -> Option<CallerJob> {
        let live = self.attempts.live.get(&attempt).filter(|live| live.node == node)?;
        let members = live.gang.map(|member| member.all());
        let last = members.and_then(Iterator::last).unwrap_or(live.job);
        let first = live.gang.map_or(live.job, |member| member.gang);
        Some(CallerJob { user: Arc::clone(&live.user), first, last })
    }
}
