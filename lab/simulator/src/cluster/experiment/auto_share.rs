//! AUTO: what `--share auto` gains over slices that no job shares.
//!
//! What the rules predict and what happens have different sources. Under MPS the measured table decides, by how much of
//! the multiprocessors and the bandwidth jobs use; the rules know only how busy jobs are. Kernel by kernel the queue
//! itself runs in virtual time, and the rules use a model with a few constants.

use super::{ExperimentTrial, Finding, Proof, over, runs_without_bounds};
use crate::cluster::calibration::mean;
use crate::cluster::metrics::Summary;
use crate::cluster::overheads::{
    KernelSharingModel, Overheads, RunTimeKnowledge, SimulatedSharing,
};
use crate::cluster::workload::built_in;

/// Seeds on which nothing was chosen.
const SEEDS: std::ops::RangeInclusive<u64> = 501..=510;

/// Workloads: slices that are short all the time, at times, and hardly ever.
const CASES: [&str; 3] =
    ["light:jobs=200,gap=60", "light:jobs=200,gap=150", "light:jobs=200,gap=300"];

const CLUSTER: &str = "4xa100-40gb";

const KNOWLEDGE: [(RunTimeKnowledge, &str); 3] = [
    (RunTimeKnowledge::Known, "known"),
    (RunTimeKnowledge::Learned, "learned"),
    (RunTimeKnowledge::Unknown, "unknown"),
];

/// How much worse than without sharing a mean may be: sharing also changes later placements.
const WORSE_MAX: f64 = 1.02;

/// A figure's name, and how it is read.
type SummaryFigure = (&'static str, fn(&Summary) -> f64);

fn summaries(
    case: &str,
    times: RunTimeKnowledge,
    sharing: SimulatedSharing,
) -> Option<Vec<Summary>> {
    let kernel_sharing = KernelSharingModel::Queue;
    let overheads = Overheads { times, sharing, kernel_sharing, ..Overheads::default() };
    let one = |seed| {
        let jobs = built_in(case, seed).ok()?.jobs;
        let trial = ExperimentTrial::new(&jobs, CLUSTER, "tessera");
        runs_without_bounds(&ExperimentTrial { overheads, seed, ..trial })
    };
    SEEDS.map(one).collect()
}

/// Mean and makespan with `auto` over those with exclusive slices, seed by seed.
pub(super) fn auto_share() -> Vec<Finding> {
    let mut findings = Vec::new();
    for case in CASES {
        for (times, known) in KNOWLEDGE {
            let both = [SimulatedSharing::Auto, SimulatedSharing::Exclusive]
                .map(|sharing| summaries(case, times, sharing));
            let [Some(auto), Some(exclusive)] = both else {
                let what = format!("{case}, times {known}: comes to its end");
                findings.push(Finding::at_least("AUTO", what, Proof::Proxy, 1.0, 0.0));
                continue;
            };
            let figures: [SummaryFigure; 3] = [
                ("mean time", |summary| summary.jct_mean_s),
                ("p95", |summary| summary.jct_p95_s),
                ("makespan", |summary| summary.makespan_s),
            ];
            for (name, of) in figures {
                let each = |done: &[Summary]| done.iter().map(of).collect::<Vec<f64>>();
                let ratios = over(&each(&auto), &each(&exclusive));
                let what = format!("{case}, times {known}: {name} with auto over exclusive");
                let found = mean(&ratios);
                findings.push(
                    Finding::at_most("AUTO", what, Proof::Proxy, WORSE_MAX, found)
                        .over_seeds(&ratios),
                );
            }
        }
    }
    findings
}
