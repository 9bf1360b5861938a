//! What a round decides about jobs whose GPUs do nothing.

use tessera_model::JobId;

/// What was done about an idle job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleDecision {
    /// Its user is warned.
    Warned,
    /// It was ended, because its GPU stayed idle.
    Ended,
    /// It goes back to the queue.
    Requeued,
}

impl IdleDecision {
    /// Every value.
    pub const ALL: [Self; 3] = [Self::Warned, Self::Ended, Self::Requeued];

    /// Returns the word for metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Warned => "warned",
            Self::Ended => "ended",
            Self::Requeued => "requeued",
        }
    }
}

/// A decision about an idle job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleRow {
    /// The job whose GPU is idle.
    pub job: JobId,
    /// What was decided about it.
    pub decision: IdleDecision,
    /// What its user reads among the job's events.
    pub event: String,
}
