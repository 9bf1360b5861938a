//! Commands of users, and their results.

pub mod operator;

use tessera_model::life::JobState;
use tessera_model::share::SmPercent;
use tessera_model::{AttemptId, JobId};

use tessera_model::spec::JobUpdate;

/// A user's command to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobCommand {
    /// End the job.
    Cancel,
    /// Hold the job, so that it isn't started.
    Hold,
    /// Release the job from a hold.
    Release,
    /// End the job's attempt, and put the job back into the queue.
    Requeue,
    /// Give the job another part of its slice's multiprocessors.
    Reshare(SmPercent),
    /// Update what its user may change.
    Update(JobUpdate),
}

/// The result of a command to one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandResult {
    /// The command was carried out and committed.
    Done,
    /// The job's state does not allow the command.
    Refused {
        /// The name of that state.
        state: String,
    },
    /// The job runs and has no checkpoint signal.
    NoCheckpoint,
    /// There is no such job.
    NotFound,
}

/// A job changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStateChange {
    /// The job whose state changed.
    pub job: JobId,
    /// Its live attempt, if it has one.
    pub attempt: Option<AttemptId>,
    /// Its state now.
    pub state: JobState,
}
