//! Predictions and their outcomes: plain values that a store keeps.

use serde::{Deserialize, Serialize};

use crate::number::float;

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictedQuantity {
    /// Milliseconds from launch to end, alone on the slice.
    TimeMs,
    /// Thousandths of the speed alone on the slice.
    SpeedPerMille,
}

/// Where a number comes from; the surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictionSource {
    /// Earlier runs of the same task in the same place.
    Measured,
    /// A model that learned from other tasks.
    Learned,
    /// A rule of thumb: too little is known to learn.
    Scaled,
    /// The worst that is plausible: predictions have stopped to are accurate.
    Conservative,
}

/// One prediction with the interval in which nine of ten outcomes are to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// What it is a number of.
    pub quantity: PredictedQuantity,
    /// The number.
    pub value: u64,
    /// The interval's lower end.
    pub low: u64,
    /// The interval's upper end.
    pub high: u64,
    /// Where it comes from.
    pub source: PredictionSource,
    /// Fingerprint of the model that predicted it ([`crate::Version::fingerprint`]); zero where no
    /// model did.
    pub model: u64,
}

impl Prediction {
    /// Returns whether an outcome lies in the interval.
    pub const fn covers(&self, actual: u64) -> bool {
        self.low <= actual && actual <= self.high
    }

    /// Returns how far off the outcome was, over the outcome.
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
