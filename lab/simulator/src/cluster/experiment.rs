//! Rows of the papers that anybody can rerun: what is printed there beside what comes out here.

mod coexec;
mod dyna_p;
mod fikit;
mod geometry;
mod migm;
mod miso;
mod mmk;
mod traces;

use tessera_placement::Policy;

use super::bounds::WorkloadBounds;
use super::calibration::deviation;
use super::fleet::GpuFleet;
use super::job::SimulatedJob;
use super::metrics::{RunOutcome, Summary};
use super::number::{rounded, seconds};
use super::overheads::{LayoutChangeTime, Overheads};
use super::{SimulationSetup, policy, run};

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

/// One expected number beside what came out.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ExperimentFinding))]
pub struct Finding {
    /// Which experiment.
    pub id: &'static str,
    /// What is compared.
    pub what: String,
    /// What is printed.
    pub expected: f64,
    /// What came out; a mean where several seeds or orders were run.
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
    /// What came out over what no schedule beats, where there is such a bound.
    pub over_bound: Option<f64>,
    /// Whether it came out.
    pub holds: bool,
    /// If it didn't, and that is known: why.
    pub short: Option<&'static str>,
}

/// An experiment: its name, whether it takes more than some seconds, and what it does.
type ExperimentEntry = (&'static str, bool, fn() -> Vec<Finding>);

const ROWS: &[ExperimentEntry] = &[
    ("X1", false, geometry::layouts),
    ("X2", false, geometry::reachability),
    ("X3", false, coexec::trio),
    ("X4", false, coexec::asymmetric),
    ("X5", false, coexec::cuts),
    ("X6", false, dyna_p::figure_7),
    ("X7", false, || vec![migm::gain("X7", "migm-hm2", 6.20, 0.01)]),
    ("X8", false, || vec![migm::gain("X8", "migm-hm3", 5.37, 0.05)]),
    ("X9", false, migm::halves),
    ("X10", false, migm::needleman_wunsch),
    ("X11", false, migm::memory),
    ("X12", false, fikit::combination_a),
    ("X13", false, coexec::power),
    ("COEXEC", false, coexec::rules),
    ("MISO", false, miso::recover),
    ("MISO-30", false, miso::thirty),
    ("MIGM", false, migm::mixes),
    ("DYNA-P-A", false, dyna_p::fifty),
    ("DYNA-P-B", true, dyna_p::scale),
    ("MMK-A", false, mmk::sixty),
    ("MMK-B", true, mmk::twelve_hundred),
    ("MMK-IV", false, super::predictors::findings),
    ("FIKIT", false, fikit::combinations),
    ("TRACES", true, traces::stress),
];

/// Seeds of the experiments that need several: as many as MISO's rows have.
const SEEDS: u64 = 10;

/// Returns the names that [`of`] takes.
pub fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|(name, ..)| *name)
}

/// Tells whether an experiment takes more than some seconds.
pub fn is_long(name: &str) -> bool {
    ROWS.iter().any(|(known, long, _)| *known == name && *long)
}

/// Runs one experiment; `None` if there is none of that name.
pub fn of(name: &str) -> Option<Vec<Finding>> {
    ROWS.iter().find(|(known, ..)| *known == name).map(|(_, _, does)| does())
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
    fn at_most(
        id: &'static str,
        what: impl Into<String>,
        proof: Proof,
        limit: f64,
        found: f64,
    ) -> Self {
        let holds = found <= limit + 1e-9;
        Self { side: Side::AtMost, holds, ..near(id, what, proof, limit, found, 0.0) }
    }

    fn at_least(
        id: &'static str,
        what: impl Into<String>,
        proof: Proof,
        limit: f64,
        found: f64,
    ) -> Self {
        let holds = found >= limit - 1e-9;
        Self { side: Side::AtLeast, holds, ..near(id, what, proof, limit, found, 0.0) }
    }

    /// Says how far this is from what no schedule beats.
    fn over(self, bound: f64) -> Self {
        let ratio = self.found / bound;
        self.ratio(ratio)
    }

    /// Says how far the seeds or orders are apart that were run.
    fn over_seeds(self, figures: &[f64]) -> Self {
        let spread = (figures.len() > 1).then(|| rounded(deviation(figures)));
        Self { spread, ..self }
    }

    /// Says why it doesn't come out; nothing if it does.
    fn known(self, why: &'static str) -> Self {
        Self { short: (!self.holds).then_some(why), ..self }
    }

    fn ratio(self, over_bound: f64) -> Self {
        Self { over_bound: Some(rounded(over_bound)), ..self }
    }
}

/// One run.
#[derive(Clone, Copy)]
struct ExperimentTrial<'t> {
    jobs: &'t [SimulatedJob],
    cluster: &'t str,
    policy: &'t str,
    /// What GPUs are cut into beforehand; nothing if empty.
    layout: &'t str,
    overheads: Overheads,
    round_ms: u64,
    seed: u64,
}

impl<'t> ExperimentTrial<'t> {
    fn new(jobs: &'t [SimulatedJob], cluster: &'t str, policy: &'t str) -> Self {
        let overheads = Overheads::default();
        Self { jobs, cluster, policy, layout: "", overheads, round_ms: 0, seed: 1 }
    }
}

/// Runs it; `None` where it doesn't come to its end.
fn runs(trial: &ExperimentTrial<'_>) -> Option<Summary> {
    runs_under(trial, policy(trial.policy).ok()?.as_ref())
}

/// The same under a policy that is set otherwise than its name says.
fn runs_under(trial: &ExperimentTrial<'_>, decides: &dyn Policy) -> Option<Summary> {
    let whole = GpuFleet::parse(trial.cluster).ok()?;
    let outcome = outcome(trial, &whole, decides)?;
    Some(Summary::new(&outcome, &WorkloadBounds::new(trial.jobs, &whole, &trial.overheads)))
}

fn outcome(
    trial: &ExperimentTrial<'_>,
    whole: &GpuFleet,
    decides: &dyn Policy,
) -> Option<RunOutcome> {
    let mut fleet = whole.clone();
    if !trial.layout.is_empty() {
        fleet.cut(trial.layout).ok()?;
    }
    let setup = SimulationSetup {
        jobs: trial.jobs,
        fleet: &fleet,
        policy: decides,
        overheads: trial.overheads,
        round_ms: trial.round_ms,
        seed: trial.seed,
        plot: false,
    };
    run(setup, &mut |_| {}).ok()
}

/// Overheads of tables that leave out what cuts take.
fn overheads_free() -> Overheads {
    Overheads { cutting: LayoutChangeTime::Free, ..Overheads::default() }
}

/// Returns a figure over another, seed by seed.
fn over(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

fn makespan(jobs: &[SimulatedJob], cluster: &str, policy: &str) -> Option<f64> {
    makespan_cut(jobs, cluster, policy, "")
}

fn makespan_cut(jobs: &[SimulatedJob], cluster: &str, under: &str, layout: &str) -> Option<f64> {
    let trial = ExperimentTrial {
        overheads: overheads_free(),
        layout,
        ..ExperimentTrial::new(jobs, cluster, under)
    };
    let whole = GpuFleet::parse(cluster).ok()?;
    outcome(&trial, &whole, policy(under).ok()?.as_ref()).map(|done| seconds(done.makespan_ms))
}

/// Returns what no MIG-only schedule of the jobs beats, in seconds.
fn bound_of(jobs: &[SimulatedJob], cluster: &str) -> f64 {
    let fleet = GpuFleet::parse(cluster).ok();
    fleet.map_or(0.0, |fleet| WorkloadBounds::new(jobs, &fleet, &overheads_free()).makespan_s)
}
