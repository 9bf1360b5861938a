//! Accuracy of predictions.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// The accuracy of predictions, and the models in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictionReport {
    /// The model of relative slice speeds; absent until enough jobs have run to train one.
    pub model: Option<PredictorView>,
    /// Outcomes of run-time predictions, by their basis.
    pub outcomes: Vec<PredictionOutcomes>,
    /// Outcomes of memory predictions.
    #[serde(default)]
    pub memory: MemoryOutcomes,
    /// The model of speeds with co-runners under MPS; absent until enough jobs have shared slices
    /// whose tasks also ran alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colocation_model: Option<PredictorView>,
    /// Outcomes of predictions of speeds with co-runners.
    #[serde(default)]
    pub colocation: ColocationOutcomes,
}

/// Outcomes of the newest predictions of speeds with co-runners under MPS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ColocationOutcomes {
    /// Number of ended runs whose co-runners did not change, at most 1,000.
    pub outcomes: u64,
    /// Number of them within the predicted interval.
    pub within: u64,
    /// Median relative error of the speed; absent without outcomes.
    pub median_error: Option<f64>,
}

/// Outcomes of the newest memory predictions, for jobs that request no size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryOutcomes {
    /// Number of runs with a measured peak, at most 1,000.
    pub outcomes: u64,
    /// Number of them within the predicted interval.
    pub within: u64,
    /// Number of them that used more, or ran out of memory.
    pub short: u64,
    /// Number of low-confidence tasks: their estimates are raised by half, since recent runs
    /// exceeded their predictions.
    pub low_confidence_tasks: u64,
}

/// A model that was trained on finished runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictorView {
    /// Its version; equal training samples give an equal version.
    pub version: String,
    /// The learner that trained it.
    pub learner: String,
    /// Whether it is in use: its predictions were as accurate as their intervals claim. If not, a
    /// conservative rule replaces it until a new one is trained.
    pub trusted: bool,
    /// Number of training samples: pairs of slices, or runs with co-runners.
    pub rows: u64,
    /// Number of test samples, from tasks that the training did not include.
    pub held_out_rows: u64,
    /// Mean relative error on the test samples.
    pub held_out_error: f64,
    /// Fraction of the test samples within the predicted interval.
    pub held_out_covered: f64,
    /// When it was trained.
    #[serde(with = "time::serde::rfc3339")]
    pub trained_at: OffsetDateTime,
}

/// Outcomes of the newest predictions with one basis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictionOutcomes {
    /// The basis: `same_slice`, `learned`, `compared_models`, `other_slice`, `other_model`, `time_limit`.
    pub basis: String,
    /// Number of ended runs, at most 1,000.
    pub outcomes: u64,
    /// Number of them within the predicted interval.
    pub within: u64,
    /// Median relative error of the predicted run times.
    pub median_error: f64,
}
