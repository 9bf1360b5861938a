//! Predictions and their outcomes: plain values that a store keeps.

use serde::{Deserialize, Serialize};

use crate::number::float;

/// The meaning of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictedQuantity {
    /// Milliseconds from launch to end, alone on the slice.
    TimeMs,
    /// Thousandths of the speed alone on the slice.
    SpeedPerMille,
}

/// The source of a number; the most reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictionSource {
    /// Earlier runs of the same task on the same kind of slice.
    Measured,
    /// A model that learned from other tasks.
    Learned,
    /// A rule of thumb, since there are too few runs to learn from.
    Scaled,
    /// The worst plausible value, since predictions are no longer accurate.
    Conservative,
}

/// One prediction with the interval in which nine of ten outcomes are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// The meaning of the number.
    pub quantity: PredictedQuantity,
    /// The number.
    pub value: u64,
    /// The interval's lower end.
    pub low: u64,
    /// The interval's upper end.
    pub high: u64,
    /// Which method made it.
    pub source: PredictionSource,
    /// Fingerprint of the model that predicted it ([`crate::Version::fingerprint`]); zero without a
    /// model.
    pub model: u64,
}

impl Prediction {
    /// Returns whether an outcome lies in the interval.
    pub const fn covers(&self, actual: u64) -> bool {
        self.low <= actual && actual <= self.high
    }

    /// Returns the error relative to the outcome.
    pub fn relative_error(&self, actual: u64) -> f64 {
        (float(self.value) - float(actual)).abs() / float(actual.max(1))
    }
}

/// A prediction with its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictionOutcome {
    /// The prediction.
    pub predicted: Prediction,
    /// The outcome, in the same unit.
    pub actual: u64,
}
