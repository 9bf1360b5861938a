//! What an experiment found, next to what its paper prints.

use super::calibration::deviation;
use super::number::rounded;

/// How much a comparison proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Proof {
    /// The paper prints enough to check digits.
    Exact,
    /// One parameter was fitted on one printed number; this is another.
    Calibrated,
    /// The paper's inputs are not public: a stand-in, so only ratios and orders mean something.
    Proxy,
}

/// Which side of the expected number is as good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Neither.
    Near,
    /// Less.
    AtMost,
    /// More.
    AtLeast,
}

/// One expected number next to the measured one.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ExperimentFinding))]
pub struct Finding {
    /// The experiment.
    pub id: &'static str,
    /// What is compared.
    pub what: String,
    /// What is printed.
    pub expected: f64,
    /// What was measured; a mean where several seeds or orders were run.
    pub found: f64,
    /// The standard deviation of that over them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// How far they may be apart.
    pub tolerance: f64,
    /// Which side of it is as good.
    pub side: Side,
    /// How much it proves.
    pub proof: Proof,
    /// What was measured over the bound of all schedules, where there is such a bound.
    pub over_bound: Option<f64>,
    /// Whether it was reproduced.
    pub holds: bool,
    /// If it didn't, and that is known: why.
    pub short: Option<&'static str>,
}

/// Compares a number that is to be near another.
pub(super) fn near(
    id: &'static str,
    what: impl Into<String>,
    proof: Proof,
    expected: f64,
    found: f64,
    tolerance: f64,
) -> Finding {
    let holds = (found - expected).abs() <= tolerance + 1e-9;
    Finding {
        id,
        what: what.into(),
        expected: rounded(expected),
        found: rounded(found),
        spread: None,
        tolerance: rounded(tolerance),
        side: Side::Near,
        proof,
        over_bound: None,
        holds,
        short: None,
    }
}

impl Finding {
    pub(super) fn at_most(
        id: &'static str,
        what: impl Into<String>,
        proof: Proof,
        limit: f64,
        found: f64,
    ) -> Self {
        let holds = found <= limit + 1e-9;
        Self { side: Side::AtMost, holds, ..near(id, what, proof, limit, found, 0.0) }
    }

    pub(super) fn at_least(
        id: &'static str,
        what: impl Into<String>,
        proof: Proof,
        limit: f64,
        found: f64,
    ) -> Self {
        let holds = found >= limit - 1e-9;
        Self { side: Side::AtLeast, holds, ..near(id, what, proof, limit, found, 0.0) }
    }

    /// Adds how far this is from the bound of all schedules.
    pub(super) fn over(self, bound: f64) -> Self {
        let ratio = self.found / bound;
        self.ratio(ratio)
    }

    /// States how far the seeds or orders are apart that were run.
    pub(super) fn over_seeds(self, figures: &[f64]) -> Self {
        let spread = (figures.len() > 1).then(|| rounded(deviation(figures)));
        Self { spread, ..self }
    }

    /// States why it doesn't come out; nothing if it does.
    pub(super) fn known(self, why: &'static str) -> Self {
        Self { short: (!self.holds).then_some(why), ..self }
    }

    pub(super) fn ratio(self, over_bound: f64) -> Self {
        Self { over_bound: Some(rounded(over_bound)), ..self }
    }
}
