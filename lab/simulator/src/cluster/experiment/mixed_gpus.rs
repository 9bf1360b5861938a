//! MIXED-GPUS: more GPUs, though slower ones, make no job set slower on average.

use super::{ExperimentTrial, Finding, Proof, over, runs_without_bounds};
use crate::cluster::calibration::mean;
use crate::cluster::fleet::GpuFleet;
use crate::cluster::job::SimulatedJob;
use crate::cluster::overheads::{Overheads, RunTimeKnowledge};
use crate::cluster::workload::{built_in, elsewhere, limit_movable};

/// The first of ten seeds, on which nothing was chosen.
const FIRST_SEED: u64 = 801;

const SEEDS: u64 = 10;

const FEWER: &str = "4xh100-80gb-sxm";
const MORE: &str = "4xh100-80gb-sxm,4xa30-24gb";

/// Workloads under light and full load, and all at once.
const CASES: [&str; 3] =
    ["poisson:jobs=100,gap=300", "poisson:jobs=100,gap=100", "poisson:jobs=40,gap=0"];

const KNOWLEDGE: [(RunTimeKnowledge, &str); 3] = [
    (RunTimeKnowledge::Unknown, "unknown"),
    (RunTimeKnowledge::Learned, "learned"),
    (RunTimeKnowledge::Known, "known"),
];

pub(super) fn mixed_gpus() -> Vec<Finding> {
    from(FIRST_SEED)
}

/// The same on ten seeds from `first` on.
pub(super) fn from(first: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    for case in CASES {
        for (times, known) in KNOWLEDGE {
            for movable in [0, 100] {
                let both = [MORE, FEWER].map(|cluster| means(case, cluster, times, movable, first));
                let ratios = over(&both[0], &both[1]);
                let worst = ratios.iter().copied().fold(0.0, f64::max);
                let what = format!(
                    "{case}, times {known}, {movable} % movable: mean time on 4 H100 and 4 A30 over that on 4 H100 (worst seed: {worst:.2})"
                );
                let found = mean(&both[0]) / mean(&both[1]);
                let row = Finding::at_most("MIXED-GPUS", what, Proof::Proxy, 1.0, found);
                findings.push(row.over_seeds(&ratios));
            }
        }
    }
    findings
}

/// Mean times, seed by seed.
fn means(case: &str, cluster: &str, times: RunTimeKnowledge, movable: u8, first: u64) -> Vec<f64> {
    let overheads = Overheads { times, ..Overheads::default() };
    let one = |seed| {
        let jobs = jobs_on(case, cluster, movable, seed)?;
        let trial = ExperimentTrial::new(&jobs, cluster, "tessera");
        Some(runs_without_bounds(&ExperimentTrial { overheads, seed, ..trial })?.jct_mean_s)
    };
    (first..first + SEEDS).filter_map(one).collect()
}

fn jobs_on(case: &str, cluster: &str, movable: u8, seed: u64) -> Option<Vec<SimulatedJob>> {
    let mut jobs = built_in(case, seed).ok()?.jobs;
    elsewhere::fill(&mut jobs, &GpuFleet::parse(cluster).ok()?.models());
    limit_movable(&mut jobs, movable, seed);
    Some(jobs)
}
