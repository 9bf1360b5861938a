//! Updates of jobs that have live attempts.

use tessera_model::spec::JobUpdate;
use tessera_model::{AttemptId, JobId};

/// An update of a job that has a live attempt.
#[derive(Clone, Debug)]
pub struct UpdatedJob {
    /// The job that its user updated.
    pub job: JobId,
    /// The attempt that runs with the new values.
    pub attempt: AttemptId,
    /// The change.
    pub update: JobUpdate,
}
