//! CONTENTION: the model of the public measurements, fitted again, and its errors and intervals on tasks that a fit has
//! not seen. Next to it are a forest on the same measurements, the study's model, and forests that learn during a run.

use tessera_predict::Prediction;
use tessera_predict::colocation::ColocationPredictor;
use tessera_predict::contention::fit::{CopiesRow, ErrorTable, fit, rows_of_copies};
use tessera_predict::contention::public::{PARVAGPU, read_mps_rows};
use tessera_predict::contention::{
    ContentionModel, HeldOutGroup, HeldOutSpeeds, MpsSharer, evaluate_held_out,
};

use super::{Finding, Proof, near};
use crate::cluster::calibration::{CalibrationRow, mean, medium, t_rel};
use crate::cluster::colocation;
use crate::cluster::contention::{ContentionSharer, under_mps};
use crate::cluster::number::{count, float};
use crate::cluster::predictors;

const ID: &str = "CONTENTION";

/// Seeds on which nothing was chosen: of the forests' tasks.
const FRESH: std::ops::RangeInclusive<u64> = 701..=710;

/// How many tasks a forest learns from, and how many runs each has: MMK's 1,400 measurements, of many tasks or of few.
const TRAINING_TASKS: [(u64, u64); 2] = [(1_400, 1), (70, 20)];

/// Why language models are not in their intervals often enough.
const ONE_FAMILY: &str = "the only family of language models: its processes wait for their host between kernels, and no other \
                          family's do";

/// How many percent of unseen outcomes are to be in an interval, and how far from that a count may be.
const COVERED: (f64, f64) = (90.0, 3.0);

pub(super) fn contention() -> Vec<Finding> {
    let Ok(measured) = read_mps_rows(PARVAGPU) else { return Vec::new() };
    let rows = rows_of_copies(&measured);
    let mut findings = fitted_again(&rows);
    findings.extend(held_out(&rows));
    findings.extend(others(&rows));
    findings.push(a30_pairs());
    findings.extend(TRAINING_TASKS.into_iter().flat_map(|(tasks, each)| learned(tasks, each)));
    findings
}

/// The published parameters come out again, bit for bit.
fn fitted_again(rows: &[CopiesRow<'_>]) -> Vec<Finding> {
    let (known, found) = (ContentionModel::A100, fit(rows));
    let exact = |what: &str, known: u16, found: u16| {
        near(ID, what, Proof::Exact, f64::from(known), f64::from(found), 0.0)
    };
    let margin = |(at, range): (usize, &str)| {
        let what = format!("fitted again: margin of loads {range}, thousandths");
        exact(&what, known.margins[at], found.margins[at])
    };
    let mut findings = vec![
        exact("fitted again: exponent, hundredths", known.exponent, found.exponent),
        exact("fitted again: unseen load, thousandths", known.unseen_load, found.unseen_load),
    ];
    let ranges = ["below 0.2", "0.2 to 0.85", "from 0.85"];
    findings.extend(ranges.into_iter().enumerate().map(margin));
    findings
}

/// Errors and intervals on what a fit has not seen.
fn held_out(rows: &[CopiesRow<'_>]) -> Vec<Finding> {
    let table = ErrorTable::new(rows);
    let groups = [
        ("tasks", HeldOutGroup::Task, None),
        ("models", HeldOutGroup::Model, None),
        ("families", HeldOutGroup::Family, None),
        ("bert", HeldOutGroup::Family, Some("bert")),
    ];
    let each = |(name, group, only): (&str, HeldOutGroup, Option<&str>)| {
        let found = evaluate_held_out(&table, group, only);
        let HeldOutSpeeds { median, p90, covered, .. } = found;
        let named = |what: &str| format!("unseen {name}: {what}");
        let known =
            |finding: Finding| if only.is_some() { finding.known(ONE_FAMILY) } else { finding };
        [
            known(at_most(named("median error, %"), 5.0, 100.0 * median)),
            known(at_most(named("error of nine of ten, %"), 18.0, 100.0 * p90)),
            known(in_intervals(named("speeds in their intervals, %"), 100.0 * covered)),
        ]
    };
    groups.into_iter().flat_map(each).collect()
}

/// The forest and the study's model on the same measurements.
fn others(rows: &[CopiesRow<'_>]) -> Vec<Finding> {
    let table = ErrorTable::new(rows);
    let fitted = evaluate_held_out(&table, HeldOutGroup::Model, None);
    let forest = predictors::forest_on_unseen_models();
    let off = |row: &CopiesRow<'_>| {
        let load = row.load(&ContentionModel::A100)?;
        let demand = Some(tessera_placement::Demand { sm: load, memory: 0 });
        let sharers = vec![ContentionSharer { demand, cap: 100 }; usize::from(row.processes)];
        let slowed = float(under_mps(&sharers, 7, 7)[0]) / 1_000.0;
        Some((1.0 / slowed / row.speed - 1.0).abs())
    };
    let mut study: Vec<f64> = rows.iter().filter_map(off).collect();
    study.sort_by(f64::total_cmp);
    let study = study.get(study.len() / 2).copied().unwrap_or(f64::INFINITY);
    let median = 100.0 * fitted.median;
    vec![
        at_most(
            format!(
                "unseen models: error of nine of ten, %, next to a forest's on the same rows (median {:.1} %)",
                forest.median
            ),
            forest.p90,
            100.0 * fitted.p90,
        ),
        in_intervals(
            "a forest on unseen models: speeds in their intervals, %".into(),
            forest.covered,
        ),
        at_most(
            format!(
                "median error, %, next to that of the study's model without bandwidth ({:.1})",
                100.0 * study
            ),
            100.0 * study,
            median,
        ),
    ]
}

/// The study's pairs on an A30: how many are in the wider intervals of other GPUs.
fn a30_pairs() -> Finding {
    let (model, _) = ContentionModel::of_gpu("a30-24gb");
    let pairs = [("SRAD", "LavaMD", 0.68), ("Sort", "Sort", 1.3), ("Enformer", "Enformer", 1.3)];
    let is_inside = |(one, other, printed): &(&str, &str, f64)| {
        let rows: Vec<_> = [one, other].into_iter().filter_map(|name| medium(name)).collect();
        let sharer = |row: &CalibrationRow| {
            let demand = row.demand();
            MpsSharer {
                load: demand.sm.max(demand.memory),
                cap: 100,
                is_memory_bound: demand.memory >= tessera_predict::contention::MEMORY_BOUND,
            }
        };
        let speeds = model.speeds(&rows.iter().map(sharer).collect::<Vec<_>>());
        let relative = |of: &dyn Fn(&Prediction) -> u64| {
            let slowed: Vec<f64> =
                speeds.iter().map(|speed| 1_000.0 / float(of(speed).max(1))).collect();
            t_rel(&rows, &slowed)
        };
        (relative(&|speed: &Prediction| speed.high)..=relative(&|speed: &Prediction| speed.low))
            .contains(printed)
    };
    let inside = count(pairs.iter().filter(|pair| is_inside(pair)).count());
    let what = "pairs of the study on an A30 in the intervals of other GPUs, of 3";
    near(ID, what, Proof::Proxy, 3.0, inside, 0.0)
}

/// Forests with a controller's knowledge that learned from random tasks, on other tasks.
fn learned(tasks: u64, each: u64) -> Vec<Finding> {
    let one = |seed: u64| {
        let forest = ColocationPredictor::learn(&colocation::runs(seed, tasks, each), seed).ok()?;
        let unseen = colocation::runs(seed + 1_000, 500, 2);
        let (mut errors, mut inside) = (Vec::new(), 0);
        for run in &unseen {
            let found = forest.predict(&run.colocation);
            let measured = u64::from(run.speed_per_mille);
            errors.push(100.0 * found.relative_error(measured));
            inside += usize::from(found.covers(measured));
        }
        errors.sort_by(f64::total_cmp);
        Some((errors[errors.len() / 2], 100.0 * count(inside) / count(unseen.len())))
    };
    let found: Vec<(f64, f64)> = FRESH.filter_map(one).collect();
    let (errors, covered): (Vec<f64>, Vec<f64>) = found.into_iter().unzip();
    let named =
        |what: &str| format!("forests of {tasks} tasks with {each} runs on unseen tasks: {what}");
    vec![
        at_most(named("median error, %"), 10.0, mean(&errors)).over_seeds(&errors),
        in_intervals(named("speeds in their intervals, %"), mean(&covered)).over_seeds(&covered),
    ]
}

fn at_most(what: String, limit: f64, found: f64) -> Finding {
    Finding::at_most(ID, what, Proof::CalibratedElsewhere, limit, found)
}

fn in_intervals(what: String, found: f64) -> Finding {
    let (expected, tolerance) = COVERED;
    near(ID, what, Proof::CalibratedElsewhere, expected, found, tolerance)
}
