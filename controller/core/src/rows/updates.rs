//! Updates of jobs that have live attempts.

use tessera_model::spec::JobUpdate;
use tessera_model::{AttemptId, JobId};

/// An update of a job that has a live attempt.
#[derive(Clone, Debug)]
pub struct UpdatedJob {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The change.
    pub update: JobUpdate,
}
