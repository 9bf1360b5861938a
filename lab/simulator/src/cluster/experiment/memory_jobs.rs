//! A hundred jobs whose memory grows, on slices: moved by predictions, restarted when memory ran out, on a whole GPU each,
//! or placed by an oracle.
//!
//! The decisions are the controller's: [`MemoryWatch`] decides about each report, and [`next_size`] is the ladder. Jobs
//! don't contend, so the run of an attempt follows from its start.

use std::collections::BTreeMap;

use tessera_model::board_power::BoardPower;
use tessera_model::mig::{Geometry, Layout, Profile, Slot, StateSpace, catalog};
use tessera_model::number::clamped;
use tessera_model::readings::{MemoryReading, MemoryReadings, ReadingUnit};
use tessera_model::sizing::next_size;
use tessera_model::{Bytes, Millis};
use tessera_predict::peak::{MemoryWatch, WatchAdvice, WatchTerms};
use tessera_predict::random::SeededRng;

use super::{Finding, Proof, SEEDS};
use crate::cluster::calibration::mean;
use crate::cluster::number::{float, whole};

const JOBS: usize = 100;

/// The GPUs that run them.
const GPUS: usize = 4;
const MODEL: &str = "a100-40gb";

/// The compute slices of each of them.
const SLICES: u8 = 7;

/// How long an attempt takes to start: to load the program, its data and its checkpoint.
const START_SECS: f64 = 20.0;

/// How long a checkpoint takes, and how long Tessera assumes if none was measured.
const CHECKPOINT_SECS: f64 = 10.0;
const ASSUMED: Millis = Millis::from_secs(30);

/// How often readings are reported, and how old they may be when they are decided upon.
const REPORT_SECS: f64 = 5.0;
const DELAY: Millis = Millis::from_secs(10);

/// A job whose memory grows.
#[derive(Clone, Debug)]
struct GrowingJob {
    /// Memory in MiB at each iteration.
    memory: Vec<u64>,
    /// Seconds of an iteration on all the compute slices that it can use.
    iteration: f64,
    /// Compute slices that it can use.
    slices: u8,
    /// Whether it saves its work when it gets a signal.
    checkpoints: bool,
    /// How long its runs are expected to take, over how long it takes: what earlier runs of its task show.
    expected: f64,
}

/// How the sizes of jobs are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizing {
    WholeGpu,
    /// The smallest slice, and the next one after memory ran out.
    Restart,
    /// The same, and moves by predictions.
    Predicted,
    /// The smallest slice that is enough to the end.
    Oracle,
}

/// The results of a run of all jobs.
#[derive(Clone, Copy, Debug, Default)]
struct JobsOutcome {
    makespan: f64,
    joules: f64,
    moves: u32,
    ran_out: u32,
}

/// The course of an attempt, from its start to its end.
#[derive(Clone, Copy, Debug)]
struct AttemptCourse {
    secs: f64,
    /// Iterations that are completed and kept after it.
    kept: usize,
    end: AttemptEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptEnd {
    Done,
    RanOut,
    Moved,
}

/// A waiting job: what it needs, and how much of it is completed.
#[derive(Clone, Copy, Debug)]
struct WaitingAttempt {
    job: usize,
    needs: Bytes,
    done: usize,
}

/// An attempt that holds a slice.
#[derive(Clone, Copy, Debug)]
struct RunningAttempt {
    attempt: WaitingAttempt,
    gpu: usize,
    slot: Slot,
    course: AttemptCourse,
    had: Bytes,
}

/// Why the gain is smaller than an oracle's.
const LADDER: &str = "a job climbs the ladder from the smallest slice, runs there with fewer compute slices, and half of \
                      the jobs have no checkpoint";

/// MEMORY-JOBS: throughput of growing jobs.
pub(super) fn jobs() -> Vec<Finding> {
    over("MEMORY-JOBS", 1)
}

/// MEMORY-JOBS-FRESH: the same with seeds on which nothing was chosen.
pub(super) fn fresh() -> Vec<Finding> {
    fresh_from(700_001)
}

/// The same with other seeds.
pub(super) fn fresh_from(first: u64) -> Vec<Finding> {
    over("MEMORY-JOBS-FRESH", first)
}

fn over(name: &'static str, first: u64) -> Vec<Finding> {
    let mut gains: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for seed in first..first + SEEDS {
        let jobs = draw(seed);
        let run = |sizing| run(&jobs, sizing);
        let [ours, alone, restart, oracle] =
            [Sizing::Predicted, Sizing::WholeGpu, Sizing::Restart, Sizing::Oracle].map(run);
        let gain = |other: JobsOutcome| 100.0 * (other.makespan / ours.makespan - 1.0);
        let mut take = |name, value| gains.entry(name).or_default().push(value);
        take("alone", gain(alone));
        take("restart", gain(restart));
        take("behind", 100.0 * (ours.makespan / oracle.makespan - 1.0));
        take("energy", 100.0 * (ours.joules / alone.joules - 1.0));
        take("energy of restarts", 100.0 * (ours.joules / restart.joules - 1.0));
        take("moves", f64::from(ours.moves));
        take("ran out", f64::from(ours.ran_out));
        take("restarts", f64::from(restart.ran_out));
    }
    let of = |name: &str| gains.get(name).cloned().unwrap_or_default();
    let what = |text: &str, energy: &str| {
        format!("100 growing jobs on 4 A100: {text}, % (energy {:+.1} %)", mean(&of(energy)))
    };
    let counts = format!(
        "100 growing jobs: ends without memory ({:.1} moves; {:.1} such ends with restarts alone)",
        mean(&of("moves")),
        mean(&of("restarts"))
    );
    vec![
        Finding::at_least(
            name,
            what("throughput over a whole GPU each", "energy"),
            Proof::Proxy,
            25.0,
            mean(&of("alone")),
        )
        .over_seeds(&of("alone")),
        Finding::at_least(
            name,
            what("throughput over restarts after memory ran out", "energy of restarts"),
            Proof::Proxy,
            10.0,
            mean(&of("restart")),
        )
        .over_seeds(&of("restart"))
        .known(LADDER),
        Finding::at_most(
            name,
            "100 growing jobs on 4 A100: makespan over an oracle's, %",
            Proof::Proxy,
            10.0,
            mean(&of("behind")),
        )
        .over_seeds(&of("behind"))
        .known(LADDER),
        Finding::at_most(name, counts, Proof::Proxy, mean(&of("restarts")), mean(&of("ran out")))
            .over_seeds(&of("ran out")),
    ]
}

/// Draws the jobs of a seed: even or curved growth to a peak of 1 to 34 GiB, half of the jobs with a checkpoint.
fn draw(seed: u64) -> Vec<GrowingJob> {
    let mut rng = SeededRng::named(seed, "growing jobs");
    let mut between = |low: f64, high: f64| low + (high - low) * rng.unit();
    (0..JOBS)
        .map(|number| {
            // As many small ones as large ones, on a scale of ratios.
            let peak = 1_024.0 * 34.0_f64.powf(between(0.0, 1.0));
            let first = peak * between(0.2, 0.6);
            let iterations = whole(between(200.0, 800.0));
            let exponent = between(0.9, 1.1);
            let grows = between(0.7, 1.0);
            // A job can use the compute slices that come with its memory, or one more.
            let with_memory = whole((peak / 4_864.0).ceil()).clamp(1, 7);
            let slices = clamped::<u8>(with_memory + whole(between(-0.5, 1.49))).min(7);
            let expected = between(0.8, 1.2);
            let iteration = between(0.5, 2.0);
            let memory = (1..=iterations).map(|at| {
                let part = (float(at) / (float(iterations) * grows)).min(1.0);
                let level = first + (peak - first) * part.powf(exponent);
                whole(level * (1.0 + 0.01 * between(-1.0, 1.0)))
            });
            let memory = memory.collect();
            let checkpoints = number % 2 == 0;
            GrowingJob { memory, iteration, slices, checkpoints, expected }
        })
        .collect()
}

impl GrowingJob {
    fn peak(&self) -> Bytes {
        Bytes::from_mib(self.memory.iter().copied().max().unwrap_or(0))
    }

    /// Returns the seconds of an iteration on a slice: less compute slows a job down, and what it
    /// can't use is idle.
    fn pace(&self, slices: u8) -> f64 {
        self.iteration * f64::from(self.slices) / f64::from(self.slices.min(slices))
    }

    /// Runs an attempt to its end.
    fn course(&self, done: usize, slice: &Profile, sizing: Sizing) -> AttemptCourse {
        let pace = self.pace(slice.compute_slices);
        let mut watch = MemoryWatch::default();
        let (mut secs, mut reported) = (START_SECS, START_SECS);
        let mut readings: Vec<MemoryReading> = Vec::new();
        for at in done..self.memory.len() {
            let used = Bytes::from_mib(self.memory[at]);
            if used > slice.memory {
                return AttemptCourse { secs, kept: 0, end: AttemptEnd::RanOut };
            }
            secs += pace;
            readings.push(MemoryReading {
                at_unix: Millis::new(whole(secs * 1_000.0)),
                position: (at - done + 1) as u64,
                used,
            });
            if sizing != Sizing::Predicted || secs - reported < REPORT_SECS {
                continue;
            }
            reported = secs;
            watch.take(&MemoryReadings {
                unit: ReadingUnit::Iterations,
                left_out: Bytes::ZERO,
                preallocated: false,
                readings: std::mem::take(&mut readings),
            });
            let is_larger = next_size(slice.memory) <= self.largest();
            if is_larger && let WatchAdvice::Act(_) = watch.advise(&self.terms(slice, at, pace)) {
                let kept = if self.checkpoints { at + 1 } else { 0 };
                let takes = if self.checkpoints { CHECKPOINT_SECS } else { 0.0 };
                return AttemptCourse { secs: secs + takes, kept, end: AttemptEnd::Moved };
            }
        }
        AttemptCourse { secs, kept: self.memory.len(), end: AttemptEnd::Done }
    }

    fn largest(&self) -> Bytes {
        geometry().profiles.iter().map(|profile| profile.memory).max().unwrap_or(Bytes::ZERO)
    }

    fn terms(&self, slice: &Profile, at: usize, pace: f64) -> WatchTerms {
        let all = float(self.memory.len() as u64) * self.expected;
        let left = (all - float(at as u64)).max(0.0) * pace;
        // A run that is overdue may end at any time: nothing is known about it.
        let left = (left > 0.0).then(|| Millis::new(whole(left * 1_000.0)));
        WatchTerms {
            capacity: slice.memory,
            checkpoint: self.checkpoints.then_some(ASSUMED),
            delay: DELAY,
            left,
            restart: ASSUMED,
        }
    }
}

fn geometry() -> Geometry {
    catalog::models()[MODEL].geometry()
}

/// Runs all jobs in their order; a job that finds no slice lets the next ones go ahead.
fn run(jobs: &[GrowingJob], sizing: Sizing) -> JobsOutcome {
    let geometry = geometry();
    let offer = geometry.offer("plain").unwrap_or_default();
    let Ok(space) = StateSpace::new(&geometry, Some(&offer)) else { return JobsOutcome::default() };
    let profiles: Vec<&Profile> =
        geometry.profiles.iter().filter(|profile| offer.contains(&profile.id)).collect();
    let first = |job: &GrowingJob| match sizing {
        Sizing::WholeGpu => job.largest(),
        Sizing::Restart | Sizing::Predicted => Bytes::ZERO,
        Sizing::Oracle => job.peak(),
    };
    let attempts = jobs.iter().enumerate();
    let mut waiting: Vec<WaitingAttempt> =
        attempts.map(|(job, known)| WaitingAttempt { job, needs: first(known), done: 0 }).collect();
    let mut layouts: Vec<Layout> = vec![Layout::default(); GPUS];
    let mut running: Vec<(f64, RunningAttempt)> = Vec::new();
    let mut sums = JobsOutcome::default();
    let mut now = 0.0;
    while !waiting.is_empty() || !running.is_empty() {
        let mut left = Vec::new();
        let mut kept = None;
        for attempt in waiting {
            match place(&profiles, &space, &layouts, attempt.needs, kept) {
                None => {
                    // The first job that waits gets the GPU that is free first, or it would wait
                    // forever.
                    kept = kept.or_else(|| free_first(&running));
                    left.push(attempt);
                }
                Some((gpu, slot)) => {
                    layouts[gpu].insert(slot);
                    let begun = begin(jobs, &geometry, attempt, (gpu, slot), sizing);
                    sums.joules += begun.1;
                    running.push((now + begun.0.course.secs, begun.0));
                }
            }
        }
        waiting = left;
        let next = running.iter().enumerate().min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0));
        let Some((place, _)) = next else { break };
        let (at, ended) = running.swap_remove(place);
        now = at;
        layouts[ended.gpu].remove(&ended.slot);
        sums.moves += u32::from(ended.course.end == AttemptEnd::Moved);
        sums.ran_out += u32::from(ended.course.end == AttemptEnd::RanOut);
        if ended.course.end != AttemptEnd::Done {
            let needs = next_size(ended.had);
            waiting.push(WaitingAttempt { needs, done: ended.course.kept, ..ended.attempt });
            waiting.sort_by_key(|attempt| attempt.job);
        }
    }
    sums.makespan = now;
    sums.joules += idle_watts() * now * float(GPUS as u64);
    sums
}

fn board() -> BoardPower {
    BoardPower::find(MODEL).unwrap_or(BoardPower::UNLISTED)
}

/// Returns the power of an idle GPU, in watts, as the cluster's engine counts it.
fn idle_watts() -> f64 {
    float(board().idle_milliwatts()) / 1e3
}

/// Returns the power that a busy compute slice adds, in watts, as the cluster's engine counts it.
fn slice_watts() -> f64 {
    float(board().slice_milliwatts(SLICES)) / 1e3
}

/// Begins an attempt; returns it with the energy that its slices draw.
fn begin(
    jobs: &[GrowingJob],
    geometry: &Geometry,
    attempt: WaitingAttempt,
    (gpu, slot): (usize, Slot),
    sizing: Sizing,
) -> (RunningAttempt, f64) {
    let job = &jobs[attempt.job];
    let profile = geometry.profile(slot.profile).expect("a slot that was placed has a profile");
    let course = job.course(attempt.done, profile, sizing);
    let busy = f64::from(job.slices.min(profile.compute_slices));
    let joules = slice_watts() * busy * (course.secs - START_SECS).max(0.0);
    (RunningAttempt { attempt, gpu, slot, course, had: profile.memory }, joules)
}

/// Returns the GPU whose last attempt ends first.
fn free_first(running: &[(f64, RunningAttempt)]) -> Option<usize> {
    let end = |gpu: usize| {
        let ends = running.iter().filter(|(_, one)| one.gpu == gpu).map(|(at, _)| *at);
        ends.fold(0.0, f64::max)
    };
    (0..GPUS).min_by(|one, other| end(*one).total_cmp(&end(*other)))
}

/// Finds the tightest slice with this much memory, where it keeps the most layouts reachable.
fn place(
    profiles: &[&Profile],
    space: &StateSpace,
    layouts: &[Layout],
    needs: Bytes,
    kept: Option<usize>,
) -> Option<(usize, Slot)> {
    let fitting = profiles.iter().filter(|profile| profile.memory >= needs);
    let least = fitting.map(|profile| profile.memory).min()?;
    let tight = profiles.iter().filter(|profile| profile.memory == least);
    tight
        .flat_map(|profile| {
            let open = layouts.iter().enumerate().filter(move |(gpu, _)| Some(*gpu) != kept);
            open.filter_map(move |(gpu, layout)| {
                let (slot, reach) = space.best_placement(space.state(layout)?, profile.id)?;
                Some((reach, gpu, slot))
            })
        })
        .max_by_key(|(reach, gpu, _)| (*reach, std::cmp::Reverse(*gpu)))
        .map(|(_, gpu, slot)| (gpu, slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_move_jobs_and_save_work() {
        let jobs = draw(1);

        let ours = run(&jobs, Sizing::Predicted);
        let restart = run(&jobs, Sizing::Restart);
        let oracle = run(&jobs, Sizing::Oracle);

        assert!(ours.moves > 20, "{ours:?}");
        assert!(ours.ran_out < restart.ran_out, "{ours:?} {restart:?}");
        assert!(ours.makespan < restart.makespan, "{ours:?} {restart:?}");
        assert_eq!((oracle.moves, oracle.ran_out), (0, 0));
        assert!(oracle.makespan <= ours.makespan * 1.001, "{ours:?} {oracle:?}");
    }
}
