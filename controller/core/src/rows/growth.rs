//! What was predicted of the memory of running attempts, and what came of it.

use tessera_model::sizing::GrowthOutcome;
use tessera_model::{AttemptId, Bytes, JobId};
use tessera_predict::peak::{GrowthForecast, MemoryCurve};

/// What a round adds to what is known of an attempt's memory. What is absent stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowthRow {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The memory that the attempt may use.
    pub capacity: Bytes,
    /// The prediction, when it is reported, or when the job is moved for it.
    pub forecast: Option<GrowthForecast>,
    /// Whether it is reported first.
    pub is_first: bool,
    /// What its job requests at least from now on, if it is moved.
    pub at_least: Option<Bytes>,
    /// What came of the prediction, or of its absence.
    pub outcome: Option<GrowthOutcome>,
    /// Its memory over time, at its end.
    pub curve: Option<MemoryCurve>,
    /// What its user reads among the job's events.
    pub event: Option<String>,
}

/// A prediction whose outcome is open, as the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenGrowth {
    /// The job; it has not ended.
    pub job: JobId,
    /// The attempt that the prediction is about.
    pub attempt: AttemptId,
    /// The memory that it may use.
    pub capacity: Bytes,
    /// Whether the job was to be moved.
    pub moved: bool,
}

impl GrowthRow {
    /// Returns a row that adds nothing yet.
    pub(crate) const fn of(job: JobId, attempt: AttemptId, capacity: Bytes) -> Self {
        Self {
            job,
            attempt,
            capacity,
            forecast: None,
            is_first: false,
            at_least: None,
            outcome: None,
            curve: None,
            event: None,
        }
    }
}
