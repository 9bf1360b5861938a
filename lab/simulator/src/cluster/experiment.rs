//! Rows of the papers that can be rerun: the published value and the one measured here.

mod auto_share;
mod backfill;
mod batches;
mod coexec;
mod contention;
mod deadlines;
mod dyna_p;
mod fair_share;
mod fikit;
mod geometry;
mod memory;
mod memory_jobs;
mod memory_series;
mod migm;
mod miso;
mod mixed_gpus;
mod mixed_peers;
mod mmk;
mod traces;

use tessera_placement::Policy;

use super::bounds::WorkloadBounds;
use super::finding::near;
pub use super::finding::{Finding, Proof, Side};
use super::fleet::GpuFleet;
use super::job::SimulatedJob;
use super::metrics::{RunOutcome, Summary};
use super::number::seconds;
use super::overheads::{Overheads, RepartitionTime};
use super::{SimulationSetup, policy, run};

/// An experiment: its name, whether it takes more than a few seconds, and what it does.
type ExperimentEntry = (&'static str, bool, fn() -> Vec<Finding>);

const ROWS: &[ExperimentEntry] = &[
    ("X1", false, geometry::layouts),
    ("X2", false, geometry::reachability),
    ("X3", false, coexec::trio),
    ("X4", false, coexec::asymmetric),
    ("X5", false, coexec::cuts),
    ("X6", false, dyna_p::figure_7),
    ("X7", false, || vec![migm::gain("X7", "migm-hm2", Proof::CalibratedOnTheseRows, 6.20, 0.01)]),
    ("X8", false, || vec![migm::gain("X8", "migm-hm3", Proof::CalibratedElsewhere, 5.37, 0.05)]),
    ("X9", false, migm::halves),
    ("X10", false, migm::needleman_wunsch),
    ("X11", false, migm::memory),
    ("X12", false, fikit::combination_a),
    ("X13", false, coexec::power),
    ("COEXEC", false, coexec::rules),
    ("CONTENTION", true, contention::contention),
    ("MISO", false, miso::recover),
    ("MISO-30", false, miso::thirty),
    ("MIGM", false, migm::mixes),
    ("MEMORY", true, memory::series),
    ("MEMORY-JOBS", true, memory_jobs::jobs),
    ("MEMORY-FRESH", true, memory::fresh),
    ("MEMORY-JOBS-FRESH", true, memory_jobs::fresh),
    ("DYNA-P-A", false, dyna_p::fifty),
    ("DYNA-P-B", true, dyna_p::scale),
    ("MMK-A", false, mmk::sixty),
    ("MMK-B", true, mmk::twelve_hundred),
    ("MMK-IV", false, super::predictors::findings),
    ("FIKIT", false, fikit::combinations),
    ("TRACES", true, traces::stress),
    ("AUTO", true, auto_share::auto_share),
    ("BATCHES", true, batches::batches),
    ("DEADLINES", true, deadlines::deadlines),
    ("MIXED-GPUS", true, mixed_gpus::mixed_gpus),
    ("MIXED-PEERS", true, mixed_peers::mixed_peers),
    ("BACKFILL", true, backfill::backfill),
    ("FAIR-SHARE", true, fair_share::fair_share),
];

/// The experiments that take a first seed: what [`with_seeds_from`] runs.
pub const WITH_FIRST_SEED: &[&str] = &[
    "BATCHES",
    "DEADLINES",
    "MIXED-GPUS",
    "MIXED-PEERS",
    "BACKFILL",
    "FAIR-SHARE",
    "MEMORY-FRESH",
    "MEMORY-JOBS-FRESH",
];

/// Seeds of the experiments that need several: as many as MISO's rows have.
const SEEDS: u64 = 10;

/// Returns the names that [`of`] accepts.
pub fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|(name, ..)| *name)
}

/// Returns whether an experiment takes more than a few seconds.
pub fn is_long(name: &str) -> bool {
    ROWS.iter().any(|(known, long, _)| *known == name && *long)
}

/// Runs one experiment; `None` if there is none with that name.
pub fn of(name: &str) -> Option<Vec<Finding>> {
    ROWS.iter().find(|(known, ..)| *known == name).map(|(_, _, does)| does())
}

/// Runs an experiment on seeds from `first` on, on which nothing can have been chosen; `None` if it has fixed seeds.
pub fn with_seeds_from(name: &str, first: u64) -> Option<Vec<Finding>> {
    match name {
        "MEMORY-FRESH" => Some(memory::fresh_from(first)),
        "MEMORY-JOBS-FRESH" => Some(memory_jobs::fresh_from(first)),
        "BATCHES" => Some(batches::from(first)),
        "DEADLINES" => Some(deadlines::from(first)),
        "MIXED-GPUS" => Some(mixed_gpus::from(first)),
        "MIXED-PEERS" => Some(mixed_peers::from(first)),
        "BACKFILL" => Some(backfill::from(first)),
        "FAIR-SHARE" => Some(fair_share::from(first)),
        _ => None,
    }
}

/// One run.
#[derive(Clone, Copy)]
struct ExperimentTrial<'t> {
    jobs: &'t [SimulatedJob],
    cluster: &'t str,
    policy: &'t str,
    /// The layout into which GPUs are cut beforehand; none if empty.
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

/// Runs it; `None` if it fails.
fn runs(trial: &ExperimentTrial<'_>) -> Option<Summary> {
    runs_under(trial, policy(trial.policy).ok()?.as_ref())
}

/// The same without bounds, which take longer than most runs; they are zero.
fn runs_without_bounds(trial: &ExperimentTrial<'_>) -> Option<Summary> {
    let whole = GpuFleet::parse(trial.cluster).ok()?;
    let outcome = outcome(trial, &whole, policy(trial.policy).ok()?.as_ref())?;
    Some(Summary::new(&outcome, &WorkloadBounds { makespan_s: 0.0, jct_mean_s: 0.0 }))
}

/// The same under a policy with other settings than its name has.
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

/// Overheads of tables that do not include the time of cuts.
fn overheads_free() -> Overheads {
    Overheads { cutting: RepartitionTime::Free, ..Overheads::default() }
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

/// Returns the bound of all MIG-only schedules of the jobs, in seconds.
fn bound_of(jobs: &[SimulatedJob], cluster: &str) -> f64 {
    let fleet = GpuFleet::parse(cluster).ok();
    fleet.map_or(0.0, |fleet| WorkloadBounds::new(jobs, &fleet, &overheads_free()).makespan_s)
}
