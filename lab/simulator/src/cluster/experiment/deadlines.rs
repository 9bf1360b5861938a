//! DEADLINES: what `tessera` misses of deadlines that earliest-deadline-first meets, and of bursts of inference. Under
//! loads at which not all can be met, it is compared with `elastic-flow`.

use tessera_lab_policies::{EarliestDeadline, ElasticFlow};
use tessera_placement::Policy;
use tessera_predict::random::SeededRng;

use super::{ExperimentTrial, Finding, Proof, outcome, runs_without_bounds};
use crate::cluster::fleet::GpuFleet;
use crate::cluster::job::{JobClass, SimulatedJob};
use crate::cluster::number::{count, float};
use crate::cluster::policy;
use crate::cluster::workload::{built_in, limit_movable};

/// The first of five seeds, on which nothing was chosen.
const FIRST_SEED: u64 = 801;

const SEEDS: u64 = 5;

const CLUSTER: &str = "4xa100-40gb";
const MODEL: &str = "a100-40gb";

/// 160 jobs at 80 % and at all of the load that whole GPUs can take, and in bursts.
const CASES: [&str; 3] =
    ["poisson:jobs=160,gap=400", "poisson:jobs=160,gap=320", "bursts:jobs=160,gap=400"];

/// Each deadline is this part of the job's least time after its submit, in percent, at first.
const SLACK: std::ops::Range<u64> = 110..400;

/// How much later than its end a job's extended deadline is, in percent of its least time: cuts do not take the same
/// time in all schedules.
const MARGIN: u64 = 10;

/// Rounds in which deadlines that were missed are extended until all are met.
const EXTENSIONS_MAX: usize = 1_000;

/// Bursts of inference: each job is to end within three times its least time.
const BURSTS: &str = "bursts:jobs=160,gap=300";
const INFERENCE_SLACK: u64 = 300;

/// The part of bursty inference that may be late, in percent, unless no schedule does better.
const LATE_MAX: f64 = 25.0;

/// Loads at which not all deadlines can be met: all and twice of what whole GPUs can take, and bursts.
const OVERLOADS: [&str; 3] =
    ["poisson:jobs=160,gap=320", "poisson:jobs=160,gap=160", "bursts:jobs=160,gap=240"];

/// The least of ElasticFlow's gains over other schedulers, in deadlines met. Source: ElasticFlow, abstract (1.46 to
/// 7.65).
const ELASTIC_FLOW_GAIN: f64 = 1.46;

pub(super) fn deadlines() -> Vec<Finding> {
    from(FIRST_SEED)
}

/// The same on five seeds from `first` on.
pub(super) fn from(first: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    for case in CASES {
        for movable in [0, 100] {
            let missed: Vec<f64> = (first..first + SEEDS)
                .filter_map(|seed| missed_of_feasible(case, movable, seed))
                .collect();
            let what = format!(
                "{case}, {movable} % movable, deadlines that earliest-deadline-first meets: missed of {} in {} seeds",
                160 * missed.len(),
                missed.len()
            );
            let all = missed.iter().sum();
            let row = Finding::at_most("DEADLINES", what, Proof::Proxy, 0.0, all);
            findings.push(row.over_seeds(&missed));
        }
    }
    for movable in [0, 100] {
        let bursts: Vec<LateInference> =
            (first..first + SEEDS).filter_map(|seed| late_inference(movable, seed)).collect();
        let sum = |of: &dyn Fn(&LateInference) -> f64| bursts.iter().map(of).sum::<f64>();
        let percent = |late: f64| 100.0 * late / sum(&|burst| burst.jobs).max(1.0);
        let least = percent(sum(&|burst| burst.least));
        let what = format!(
            "{BURSTS}, {movable} % movable, three times the least time: late, % (no schedule is below {least:.1}; earliest-deadline-first: {:.1})",
            percent(sum(&|burst| burst.reference))
        );
        let found = percent(sum(&|burst| burst.tessera));
        let limit = LATE_MAX.max(least);
        let row = Finding::at_most("DEADLINES", what, Proof::Proxy, limit, found);
        let each: Vec<f64> =
            bursts.iter().map(|burst| 100.0 * burst.tessera / burst.jobs).collect();
        findings.push(row.over_seeds(&each));
    }
    for case in OVERLOADS {
        for movable in [0, 100] {
            let met: Vec<DeadlinesMet> = (first..first + SEEDS)
                .filter_map(|seed| met_under_load(case, movable, seed))
                .collect();
            findings.extend(rows_of_met(case, movable, &met));
        }
    }
    findings
}

/// How many jobs end in time under a load at which not all can.
struct DeadlinesMet {
    tessera: f64,
    elastic_flow: f64,
    earliest_deadline: f64,
}

fn rows_of_met(case: &str, movable: u8, met: &[DeadlinesMet]) -> [Finding; 2] {
    let sum = |of: fn(&DeadlinesMet) -> f64| met.iter().map(of).sum::<f64>();
    let (own, elastic) = (sum(|met| met.tessera), sum(|met| met.elastic_flow));
    let earliest = sum(|met| met.earliest_deadline);
    let over = |of: fn(&DeadlinesMet) -> f64| {
        met.iter().map(|met| met.tessera / of(met).max(1.0)).collect::<Vec<f64>>()
    };
    let what = format!(
        "{case}, {movable} % movable: deadlines met of {} by tessera ({own:.0}) over elastic-flow ({elastic:.0})",
        160 * met.len()
    );
    let against = Finding::at_least("DEADLINES", what, Proof::Proxy, 1.0, own / elastic.max(1.0));
    let what = format!(
        "{case}, {movable} % movable: deadlines met over earliest-deadline-first ({earliest:.0}; elastic-flow: {:.2} times)",
        elastic / earliest.max(1.0)
    );
    let gain = Finding::at_least(
        "DEADLINES",
        what,
        Proof::Proxy,
        ELASTIC_FLOW_GAIN,
        own / earliest.max(1.0),
    );
    [
        against.over_seeds(&over(|met| met.elastic_flow)),
        gain.over_seeds(&over(|met| met.earliest_deadline)),
    ]
}

fn met_under_load(case: &str, movable: u8, seed: u64) -> Option<DeadlinesMet> {
    let mut jobs = with_deadlines(case, seed)?;
    limit_movable(&mut jobs, movable, seed);
    let fleet = GpuFleet::parse(CLUSTER).ok()?;
    let trial = ExperimentTrial { seed, ..ExperimentTrial::new(&jobs, CLUSTER, "") };
    let met = |decides: &dyn Policy| {
        let done = outcome(&trial, &fleet, decides)?;
        Some(count(done.jobs.iter().filter(|job| job.in_time == Some(true)).count()))
    };
    Some(DeadlinesMet {
        tessera: met(policy("tessera").ok()?.as_ref())?,
        elastic_flow: met(&ElasticFlow)?,
        earliest_deadline: met(&EarliestDeadline)?,
    })
}

/// Returns jobs with deadlines after their least times and a slack that is drawn.
fn with_deadlines(case: &str, seed: u64) -> Option<Vec<SimulatedJob>> {
    let mut jobs = built_in(case, seed).ok()?.jobs;
    let mut rng = SeededRng::named(seed, "deadlines");
    for job in &mut jobs {
        let slack = SLACK.start + rng.below(SLACK.end - SLACK.start);
        let least = job.fastest(&[MODEL])? + job.start_up_ms;
        job.deadline_ms = Some(job.submit_ms + least * slack / 100);
    }
    Some(jobs)
}

fn missed_of_feasible(case: &str, movable: u8, seed: u64) -> Option<f64> {
    let mut jobs = feasible(case, seed)?;
    limit_movable(&mut jobs, movable, seed);
    let trial = ExperimentTrial { seed, ..ExperimentTrial::new(&jobs, CLUSTER, "tessera") };
    Some(count(runs_without_bounds(&trial)?.deadlines_missed))
}

/// Returns jobs with deadlines that earliest-deadline-first meets, all of them: those that it missed are extended
/// to a little after it ended these jobs, until it misses none. Its schedule is the proof that they can be met.
pub(crate) fn feasible(case: &str, seed: u64) -> Option<Vec<SimulatedJob>> {
    let mut jobs = with_deadlines(case, seed)?;
    for _ in 0..EXTENSIONS_MAX {
        let trial = ExperimentTrial::new(&jobs, CLUSTER, "");
        let done = outcome(&trial, &GpuFleet::parse(CLUSTER).ok()?, &EarliestDeadline)?;
        let late: Vec<(usize, u64)> = done
            .jobs
            .iter()
            .enumerate()
            .filter(|(_, job)| job.in_time == Some(false))
            .map(|(place, job)| (place, job.end_ms))
            .collect();
        if late.is_empty() {
            return Some(jobs);
        }
        for (place, end_ms) in late {
            let least = jobs[place].fastest(&[MODEL])?;
            jobs[place].deadline_ms = Some(end_ms + least * MARGIN / 100);
        }
    }
    None
}

/// How many jobs of bursts of inference are late.
struct LateInference {
    jobs: f64,
    tessera: f64,
    reference: f64,
    /// No schedule has fewer.
    least: f64,
}

fn late_inference(movable: u8, seed: u64) -> Option<LateInference> {
    let mut jobs = built_in(BURSTS, seed).ok()?.jobs;
    for job in &mut jobs {
        let least = job.fastest(&[MODEL])? + job.start_up_ms;
        job.class = JobClass::Online;
        job.deadline_ms = Some(job.submit_ms + least * INFERENCE_SLACK / 100);
    }
    limit_movable(&mut jobs, movable, seed);
    let trial = ExperimentTrial { seed, ..ExperimentTrial::new(&jobs, CLUSTER, "tessera") };
    let tessera = count(runs_without_bounds(&trial)?.deadlines_missed);
    let fleet = GpuFleet::parse(CLUSTER).ok()?;
    let reference = outcome(&trial, &fleet, &EarliestDeadline)?;
    let reference = reference.jobs.iter().filter(|job| job.in_time == Some(false)).count();
    Some(LateInference {
        jobs: count(jobs.len()),
        tessera,
        reference: count(reference),
        least: count(least_late(&jobs, fleet.view.gpus.len())),
    })
}

/// Memory slices of an A100, by the compute slices of an instance.
const MEMORY_SLICES: [(u8, f64); 5] = [(1, 1.0), (2, 2.0), (3, 4.0), (4, 4.0), (7, 8.0)];

/// Returns how many jobs are late in every schedule on so many A100 that gives each slice to one job at a time.
///
/// A job uses at least the least product of time and memory slices over all sizes. All jobs that are in time and have
/// to run within an interval use no more than the GPUs have in it. As many as do not fit are late: of the intervals, the
/// one with the most is taken.
fn least_late(jobs: &[SimulatedJob], gpus: usize) -> usize {
    let area = |job: &SimulatedJob| {
        let on = |(slices, memory): &(u8, f64)| {
            Some(memory / 8.0 * float(job.time(MODEL, *slices)? + job.start_up_ms))
        };
        MEMORY_SLICES.iter().filter_map(on).fold(f64::INFINITY, f64::min)
    };
    let windows: Vec<(u64, u64, f64)> =
        jobs.iter().filter_map(|job| Some((job.submit_ms, job.deadline_ms?, area(job)))).collect();
    let late_within = |from: u64, to: u64| {
        let inside = windows.iter().filter(|window| window.0 >= from && window.1 <= to);
        let mut areas: Vec<f64> = inside.map(|window| window.2).collect();
        areas.sort_by(f64::total_cmp);
        let mut capacity = float(to.saturating_sub(from)) * count(gpus);
        let fit = areas.iter().take_while(|area| {
            capacity -= **area;
            capacity >= 0.0
        });
        areas.len() - fit.count()
    };
    let mut begins: Vec<u64> = windows.iter().map(|window| window.0).collect();
    begins.dedup();
    let ends = || windows.iter().map(|window| window.1);
    // Intervals of different bursts do not overlap where one ends before the next begins: their late jobs add up.
    let mut best: Vec<(u64, usize)> = vec![(0, 0)];
    for from in begins {
        let before = best.iter().filter(|(end, _)| *end <= from).map(|(_, late)| *late).max();
        for to in ends().filter(|to| *to > from) {
            best.push((to, before.unwrap_or(0) + late_within(from, to)));
        }
    }
    best.iter().map(|(_, late)| *late).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_jobs_than_an_interval_holds_are_late_and_separate_intervals_add_up() {
        let job = |submit_ms, deadline_ms| SimulatedJob {
            submit_ms,
            deadline_ms: Some(deadline_ms),
            times: [(MODEL.to_owned(), [(7, 1_000)].into())].into(),
            ..crate::cluster::job::tests::job()
        };
        // Three jobs of a second on a whole GPU each; two seconds on one GPU.
        let burst = |at| (0..3).map(move |_| job(at, at + 2_000));
        assert_eq!(least_late(&burst(0).collect::<Vec<_>>(), 1), 1);
        assert_eq!(least_late(&burst(0).chain(burst(5_000)).collect::<Vec<_>>(), 1), 2);
        assert_eq!(least_late(&burst(0).collect::<Vec<_>>(), 2), 0);
    }
}
