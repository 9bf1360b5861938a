//! MIGM's mixes and its forecast of memory.

use tessera_predict::growth::Growth;

use super::{Finding, Proof, bound_of, makespan, near};
use crate::cluster::calibration::mean;
use crate::cluster::job::Job;
use crate::cluster::number::{count, float};
use crate::cluster::workload::{built_in, papers};
use crate::kernels::Chance;

const GPU: &str = "a100-40gb";

/// Orders of a mix over which scheme B is looked at; two thousand give the same verdicts.
const ORDERS: u64 = 200;

fn jobs(mix: &str, seed: u64) -> Vec<Job> {
    built_in(mix, seed).map(|workload| workload.jobs).unwrap_or_default()
}

/// Returns how much earlier a policy ends than one job after the other.
fn gain_of(jobs: &[Job], policy: &str) -> f64 {
    let alone = makespan(jobs, GPU, "exclusive").unwrap_or(0.0);
    alone / makespan(jobs, GPU, policy).unwrap_or(f64::INFINITY)
}

/// X7 to X9: a mix under scheme A, over the bound of its gain.
pub(super) fn gain(id: &'static str, mix: &str, expected: f64, tolerance: f64) -> Finding {
    let jobs = jobs(mix, 1);
    let what = format!("{mix}: scheme A over one after the other");
    let bound = bound_of(&jobs, GPU);
    let ends = makespan(&jobs, GPU, "scheme-a").unwrap_or(f64::INFINITY);
    near(id, what, Proof::Exact, expected, gain_of(&jobs, "scheme-a"), tolerance)
        .ratio(ends / bound)
}

/// X10: transfers of all slices share one bus.
pub(super) fn needleman_wunsch() -> Vec<Finding> {
    // Half of its time is transfers (fitted on the slow-down of seven at once, 2.238); alone it
    // takes the 0.52 s that are printed.
    let job = Job { transfer: 496, ..papers::plain("nw", 4_000, &[(1, 520), (7, 520)]) };
    let jobs = vec![job; 21];
    let alone = makespan(&jobs, GPU, "exclusive").unwrap_or(0.0);
    let cut = makespan(&jobs, GPU, "scheme-a").unwrap_or(f64::INFINITY);
    let row =
        |what: &str, expected, found| near("X10", what, Proof::Calibrated, expected, found, 0.02);
    vec![
        row("Needleman-Wunsch, 21 jobs: gain of seven slices on one bus", 3.13, alone / cut),
        row("the same with 2.21 s for instances and processes", 1.92, alone / (cut + SET_UP_S)),
    ]
}

/// What seven instances and starting their processes take beside the jobs, in seconds.
const SET_UP_S: f64 = 2.21;

/// A printed series: capacity of the slice in iterations until it is full, the latest iteration at
/// which the forecast must say so, and how many iterations the job has.
const SERIES: [(&str, usize, usize, usize); 4] = [
    ("Qwen2-7B", 94, 6, 130),
    ("Llama-3 3B", 72, 6, 100),
    ("FLAN-T5 training", 41, 31, 60),
    ("FLAN-T5", 27, 21, 60),
];

/// X11: series that grow evenly with noise, and when the forecast says that they don't fit.
pub(super) fn memory() -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut errors = Vec::new();
    for (name, full, latest, iterations) in SERIES {
        let mut fired = 0;
        for seed in 1..=20 {
            let (at, error) = foretold(name, full, iterations, seed);
            fired = fired.max(at);
            errors.push(error);
        }
        let what = format!("{name}: iteration of the alarm (full at {full}), latest of 20 seeds");
        findings.push(Finding::at_most("X11", what, Proof::Proxy, count(latest), count(fired)));
    }
    let what = "error of the peak foretold at a tenth of the iterations, mean, %";
    findings.push(Finding::at_most("X11", what, Proof::Proxy, 15.0, mean(&errors)));
    findings
}

/// Returns at which iteration the alarm comes, and how far the peak foretold at a tenth of the
/// iterations is off, in percent.
fn foretold(name: &str, full: usize, iterations: usize, seed: u64) -> (usize, f64) {
    let capacity = 10.0;
    let start = 4.0;
    let slope = (capacity - start) / count(full);
    let mut chance = Chance::named(seed, name);
    let mut growth = Growth::new(0.0);
    let mut fired = iterations;
    let mut error = 100.0;
    for iteration in 1..=iterations {
        // Noise of a hundredth either way.
        let noise = (float(chance.below(2_001)) - 1_000.0) / 100_000.0;
        let requested = (start + slope * count(iteration)) * (1.0 + noise);
        let told = growth.take(requested, 1.0, iterations);
        if told.is_some_and(|need| need > capacity) {
            fired = fired.min(iteration);
        }
        if iteration == iterations / 10 {
            let peak = start + slope * count(iterations);
            error = 100.0 * (growth.forecast(iterations) / peak - 1.0).abs();
        }
    }
    (fired, error)
}

/// A mix, what is printed of schemes A and B, and whether A was what its parameter was fitted on.
const MIXES: [(&str, f64, f64, [f64; 2]); 3] = [
    ("migm-ht1", 1.64, 1.47, [1.18, 1.64]),
    ("migm-ht2", 1.14, 1.04, [1.039, 1.136]),
    ("migm-ht3", 1.29, 1.21, [1.199, 1.284]),
];

/// The mixes of table 2 in random orders.
pub(super) fn mixes() -> Vec<Finding> {
    let mut findings = Vec::new();
    for (mix, printed_a, printed_b, range) in MIXES {
        let first = jobs(mix, 1);
        let bound = bound_of(&first, GPU);
        let a = gain_of(&first, "scheme-a");
        let ends = makespan(&first, GPU, "scheme-a").unwrap_or(f64::INFINITY);
        let what = format!("{mix}: scheme A (its parameter is fitted on this)");
        findings
            .push(near("MIGM", what, Proof::Calibrated, printed_a, a, 0.03).ratio(ends / bound));
        let b: Vec<f64> = (1..=ORDERS).map(|seed| gain_of(&jobs(mix, seed), "scheme-b")).collect();
        let what = format!("{mix}: scheme B, mean of {ORDERS} orders");
        findings.push(
            near("MIGM", what, Proof::Calibrated, printed_b, mean(&b), 0.07).known(
                "the mean over orders of this fit is 1.40, a hundredth lower than it may be",
            ),
        );
        let (least, most) =
            b.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), x| (l.min(*x), m.max(*x)));
        let what = format!(
            "{mix}: whether B as printed is in the range of orders, {least:.3} to {most:.3} (derived: {} to {})",
            range[0], range[1]
        );
        let inside = f64::from(u8::from((least..=most).contains(&printed_b)));
        findings.push(near("MIGM", what, Proof::Calibrated, 1.0, inside, 0.0).known(
            "no order is as slow as the paper's: what cuts and process starts take isn't printed",
        ));
        let what = format!("{mix}: A over B");
        let ratio = a / mean(&b);
        findings.push(Finding::at_least("MIGM", what, Proof::Calibrated, 1.0, ratio));
    }
    let small = jobs("migm-ml2", 1);
    let a = gain_of(&small, "scheme-a");
    findings.push(near("MIGM", "migm-ml2: scheme A", Proof::Calibrated, 1.58, a, 0.03));
    let b = gain_of(&jobs("migm-ml3", 1), "scheme-b");
    let what = "migm-ml3: scheme B, which keeps both halves at work (fluid limit 1.43)";
    findings.push(
        near("MIGM", what, Proof::Exact, 1.40, b, 0.03)
            .known("scheme-b takes the fewest compute slices first: 3g and 3g, not 4g and 3g"),
    );
    // Energy gain is throughput gain over the ratio of mean power (printed: 1.411 here).
    let what = "migm-ml2: energy gain of scheme A";
    findings.push(near("MIGM", what, Proof::Calibrated, 1.12, a / 1.411, 0.05 * 1.12));
    findings
}
