//! What an experiment found, next to what its paper prints.

use super::calibration::deviation;
use super::number::rounded;

/// How much a comparison proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The paper prints enough to check digits.
    Exact,
    /// A parameter was fitted on this very row. It shows that the model can express the result, and nothing more.
    CalibratedOnTheseRows,
    /// Parameters were fitted on other rows or other tasks; this row is predicted by them.
    CalibratedElsewhere,
    /// The paper's inputs are not public: a stand-in, so only ratios and orders are meaningful.
    Proxy,
}

impl Proof {
    /// Returns the kind of proof as words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::CalibratedOnTheseRows => "calibrated on these rows",
            Self::CalibratedElsewhere => "calibrated elsewhere",
            Self::Proxy => "proxy",
        }
    }
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
    /// The published value.
    pub expected: f64,
    /// The measured value; a mean if several seeds or orders were run.
    pub found: f64,
    /// Its standard deviation over the seeds or orders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// How far the two values may differ.
    pub tolerance: f64,
    /// Which side of the expected value is as good.
    pub side: Side,
    /// How much it proves.
    pub proof: Proof,
    /// The measured value over the bound of all schedules, if there is such a bound.
    pub over_bound: Option<f64>,
    /// Whether it was reproduced.
    pub holds: bool,
    /// Why it was not reproduced, if that is known.
    pub short: Option<&'static str>,
}

/// Compares a number that should be close to another.
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

    /// States how much the results of the seeds or orders differ.
    pub(super) fn over_seeds(self, figures: &[f64]) -> Self {
        let spread = (figures.len() > 1).then(|| rounded(deviation(figures)));
        Self { spread, ..self }
    }

    /// States why it was not reproduced; nothing if it was.
    pub(super) fn known(self, why: &'static str) -> Self {
        Self { short: (!self.holds).then_some(why), ..self }
    }

    pub(super) fn ratio(self, over_bound: f64) -> Self {
        Self { over_bound: Some(rounded(over_bound)), ..self }
    }
}
