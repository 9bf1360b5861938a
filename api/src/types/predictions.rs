//! How good predictions are.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// How good predictions are, and the model that makes some of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Predictions {
    /// The model of how slices compare that is in use; absent until enough has run to learn one.
    pub model: Option<PredictorView>,
    /// What came of predictions, by what they rested on.
    pub outcomes: Vec<PredictionOutcomes>,
    /// What came of predictions of memory.
    #[serde(default)]
    pub memory: MemoryOutcomes,
    /// The model of how fast jobs are beside others under MPS; absent until enough shared slices whose
    /// tasks also ran alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub company_model: Option<PredictorView>,
    /// What came of predictions of speeds beside others.
    #[serde(default)]
    pub company: CompanyOutcomes,
}

/// What came of the newest predictions of speeds beside others under MPS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompanyOutcomes {
    /// How many ended whose company stayed as it was when they came, at most 1,000.
    pub outcomes: u64,
    /// How many of them lay in their interval.
    pub within: u64,
    /// By what part of itself the speed was off, in the middle; absent without outcomes.
    pub median_error: Option<f64>,
}

/// What came of the newest predictions of memory, of jobs that name no size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryOutcomes {
    /// How many runs it is known of what they had, at most 1,000.
    pub outcomes: u64,
    /// How many of them kept within the interval.
    pub within: u64,
    /// How many had more, or ran out of memory.
    pub short: u64,
    /// How many tasks ask for half as much again, since their runs stopped to keep to what was
    /// foretold.
    pub doubted_tasks: u64,
}

/// A model that was trained from what ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictorView {
    /// Its version: equal rows make an equal one.
    pub version: String,
    /// What it was learned with.
    pub learner: String,
    /// Whether it is asked: its predictions have come true as often as they said. If not, the
    /// cautious rule stands in for it until a new one is trained.
    pub trusted: bool,
    /// Pairs of slices, or runs beside others, that it learned from.
    pub rows: u64,
    /// Those of tasks that it had not seen, with which it was tested.
    pub held_out_rows: u64,
    /// By what part the ratio of two slices' times was off there, on average.
    pub held_out_error: f64,
    /// What part of them lay in its interval.
    pub held_out_covered: f64,
    /// When it was trained.
    #[serde(with = "time::serde::rfc3339")]
    pub trained_at: OffsetDateTime,
}

/// What came of the newest predictions that rested on one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictionOutcomes {
    /// On what: `same_slice`, `learned`, `other_slice`, `other_model`, `time_limit`.
    pub basis: String,
    /// How many came to their end, at most 1,000.
    pub outcomes: u64,
    /// How many of them lay in their interval.
    pub within: u64,
    /// By what part of themselves the expected times were off, in the middle.
    pub median_error: f64,
}
