//! Predictions of running attempts' memory, and their outcomes.

use tessera_model::sizing::GrowthOutcome;
use tessera_model::{AttemptId, Bytes, JobId};
use tessera_predict::peak::{GrowthForecast, MemoryCurve};

/// A round's update of an attempt's memory record. Absent fields don't change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowthRow {
    /// The job whose memory grows.
    pub job: JobId,
    /// The attempt that was predicted.
    pub attempt: AttemptId,
    /// The memory that the attempt may use.
    pub capacity: Bytes,
    /// The prediction, when it is reported, or when the job is moved for it.
    pub forecast: Option<GrowthForecast>,
    /// Whether it is reported first.
    pub is_first: bool,
    /// The minimum that its job requests from now on, if it is moved.
    pub at_least: Option<Bytes>,
    /// The outcome of the prediction, or of its absence.
    pub outcome: Option<GrowthOutcome>,
    /// Its memory over time, recorded at its end.
    pub curve: Option<MemoryCurve>,
    /// The text for the job's events.
    pub event: Option<String>,
}

/// A stored prediction whose outcome is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenGrowth {
    /// The job; it has not ended.
    pub job: JobId,
    /// The attempt that the prediction is about.
    pub attempt: AttemptId,
    /// The memory that it may use.
    pub capacity: Bytes,
    /// Whether a move of the job was requested.
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
