//! BATCHES: closed batches of jobs that can't be moved, on one A100, compared with the bound and, where it can be
//! computed, with the best possible schedule. They are submitted at once, as an array, or one by one, as by a script. On
//! two GPUs the latter are compared with the former.

use super::{ExperimentTrial, Finding, Proof, runs};
use crate::cluster::calibration::mean;
use crate::cluster::exact_batch;
use crate::cluster::job::SimulatedJob;
use crate::cluster::number::{seconds, whole};
use crate::cluster::overheads::{Overheads, RunTimeKnowledge};
use crate::cluster::workload::{built_in, limit_movable};

/// The first of ten seeds, on which nothing was chosen.
const FIRST_SEED: u64 = 801;

const SEEDS: u64 = 10;

const GPU: &str = "a100-40gb";

/// Jobs of a batch whose best schedule is searched: with more, the search takes too long.
const EXACT: u64 = 5;

/// The aims, over the bound: jobs, with known times, and with nothing known.
const AIMS: [(u64, f64, f64); 5] = [
    // Five jobs with known times are compared with the best schedule.
    (5, 1.10, 1.60),
    (10, 1.22, 1.55),
    (20, 1.10, 1.35),
    (50, 1.05, 1.15),
    (100, 1.05, 1.15),
];

/// The time between two submits of a script: a command that connects and waits for an answer. Chosen.
const SCRIPT_GAP_MS: u64 = 50;

/// Where scripts are compared with batches that are submitted at once, and with how many jobs: the fewer there are, the more
/// the first one's slice matters.
const TWO_GPUS: &str = "a100-40gb,a100-40gb";
const SCRIPTED: [u64; 5] = [2, 3, 5, 10, 20];

/// How many times as long a script's jobs may take as the same ones submitted at once. Chosen.
const SCRIPTED_MAX: f64 = 1.10;

/// Why batches about which nothing is known take longer.
const UNSEEN: &str =
    "a long job that starts last determines the makespan, and nothing is known of it before";

/// Why batches that are submitted one by one take longer.
const ONE_BY_ONE: &str =
    "the first job doesn't know that others follow, and its slice is too small";

/// Why batches with known times miss their aims.
const SEARCHED: &str =
    "the plan weighs the makespan and the mean, and searches fewer candidates for more jobs";

/// Returns a batch in which no job can be moved, submitted at once.
pub(crate) fn batch(jobs: u64, seed: u64) -> Vec<SimulatedJob> {
    let named = format!("poisson:jobs={jobs},gap=0");
    let mut jobs = built_in(&named, seed).map(|workload| workload.jobs).unwrap_or_default();
    limit_movable(&mut jobs, 0, seed);
    jobs
}

pub(super) fn batches() -> Vec<Finding> {
    from(FIRST_SEED)
}

/// The same on ten seeds from `first` on.
pub(super) fn from(first: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (times, known, gap_ms) in [
        (RunTimeKnowledge::Known, "known", 0),
        (RunTimeKnowledge::Unknown, "unknown", 0),
        (RunTimeKnowledge::Unknown, "unknown", SCRIPT_GAP_MS),
    ] {
        for (jobs, aim_known, aim_unknown) in AIMS {
            let overheads = Overheads { times, ..Overheads::default() };
            let (mut over_bound, mut over_best) = (Vec::new(), Vec::new());
            for seed in first..first + SEEDS {
                let jobs_of_batch = submitted_every(gap_ms, jobs, seed);
                let trial = ExperimentTrial::new(&jobs_of_batch, GPU, "tessera");
                let Some(done) = runs(&ExperimentTrial { overheads, seed, ..trial }) else {
                    continue;
                };
                over_bound.push(done.makespan_over_bound);
                if jobs == EXACT {
                    let found_ms = whole(done.makespan_s * 1_000.0) + 1;
                    let best = exact_batch::least_ms(&jobs_of_batch, &overheads, found_ms);
                    over_best.push(done.makespan_s / seconds(best));
                }
            }
            let (aim, short) = match times {
                RunTimeKnowledge::Known => (aim_known, SEARCHED),
                RunTimeKnowledge::Learned | RunTimeKnowledge::Unknown => {
                    (aim_unknown, if gap_ms > 0 { ONE_BY_ONE } else { UNSEEN })
                }
            };
            let row = |what: &str, limit, each: &[f64]| {
                let how = if gap_ms > 0 { ", submitted one by one" } else { "" };
                let what = format!("{jobs} jobs, times {known}{how}: makespan over {what}");
                Finding::at_most("BATCHES", what, Proof::Proxy, limit, mean(each))
                    .known(short)
                    .over_seeds(each)
            };
            let is_exact = jobs == EXACT && times == RunTimeKnowledge::Known;
            if is_exact {
                findings.push(row("the best schedule's", aim, &over_best).ratio(mean(&over_bound)));
            } else {
                findings.push(row("the bound", aim, &over_bound).ratio(mean(&over_bound)));
            }
        }
    }
    findings.extend(SCRIPTED.map(|jobs| scripted(jobs, first)));
    findings
}

/// Returns the same batch with so much time between two submits.
fn submitted_every(gap_ms: u64, jobs: u64, seed: u64) -> Vec<SimulatedJob> {
    let mut submitted = batch(jobs, seed);
    for (place, job) in (0..).zip(&mut submitted) {
        job.submit_ms = place * gap_ms;
    }
    submitted
}

/// Compares a batch that a script submits one by one on two GPUs with the same one submitted at once. Nothing is known.
fn scripted(jobs: u64, first: u64) -> Finding {
    let overheads = Overheads { times: RunTimeKnowledge::Unknown, ..Overheads::default() };
    let makespan_s = |seed: u64, gap_ms: u64| {
        let jobs_of_batch = submitted_every(gap_ms, jobs, seed);
        let trial = ExperimentTrial::new(&jobs_of_batch, TWO_GPUS, "tessera");
        Some(runs(&ExperimentTrial { overheads, seed, ..trial })?.makespan_s)
    };
    let ratio = |seed| Some(makespan_s(seed, SCRIPT_GAP_MS)? / makespan_s(seed, 0)?);
    let each: Vec<f64> = (first..first + SEEDS).filter_map(ratio).collect();
    let what = format!(
        "{jobs} jobs on two GPUs, times unknown, submitted one by one: makespan over that at once"
    );
    Finding::at_most("BATCHES", what, Proof::Proxy, SCRIPTED_MAX, mean(&each))
        .known(ONE_BY_ONE)
        .over_seeds(&each)
}
