//! Commands of users, and their results.

pub mod operator;

use tessera_model::share::SmPercent;
use tessera_model::spec::JobUpdate;
use tessera_model::{AttemptId, JobId};
use tessera_placement::{Explanation, Prediction};

use crate::counterfactual::Alternative;
use crate::counterfactual::ExpectedStart;

/// A user's command to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobCommand {
    /// End the job.
    Cancel,
    /// Hold the job: it is not started.
    Hold,
    /// Release the job from a hold.
    Release,
    /// Give the job another part of its slice's multiprocessors.
    Reshare(SmPercent),
    /// Update its priority or its time limit.
    Amend(JobUpdate),
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
    /// The job.
    pub job: JobId,
    /// Its live attempt, if it has one.
    pub attempt: Option<AttemptId>,
    /// Its state now.
    pub state: tessera_model::life::JobState,
}

/// What the placer knows of a waiting job, beyond what the store has.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingExplanation {
    /// How many jobs are ahead of it in the queue.
    pub jobs_ahead: u64,
    /// The reason, as a stable word.
    pub reason: &'static str,
    /// The explanation, computed as if the job were the next one.
    pub why: Explanation,
    /// Its expected run time on the tightest slice that suits it.
    pub prediction: Option<Prediction>,
    /// Its memory estimate, if it names no memory itself.
    pub memory: Option<tessera_predict::memory::MemoryEstimate>,
    /// What would start it now.
    pub alternatives: Vec<Alternative>,
    /// When it is expected to start.
    pub expected_start: Option<ExpectedStart>,
}

/// The models that predictions come from, and whether each is trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelStatus {
    /// The fingerprint of the model of how slices compare, and whether it is trusted.
    pub slices: Option<(u64, bool)>,
    /// The fingerprint of the model of co-located jobs, and whether it is trusted.
    pub company: Option<(u64, bool)>,
    /// How many tasks get cautious memory estimates, since their runs exceeded the predictions.
    pub doubted_tasks: usize,
}
