//! One pair as recordings, and what would fit into its gaps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tessera_agent_core::kernel::AttemptTally;
use tessera_kernel_queue::{Nanos, QueueRules};
use tessera_load_tests::players::{Played, PlayedGap, Program, seconds, total};
use tessera_predict::random::SeededRng;
use tessera_simulator::cluster::number::count;
use tessera_simulator::kernel_device::device::KernelSpan;
use tessera_simulator::kernel_device::ideal::{longest_gaps, omniscient, omniscient_that_enters};
use tessera_simulator::kernel_device::program::ProgramCourse;
use tessera_simulator::kernel_device::{ProgramModel, ProgramPair, TimeNoise};

/// Minimum length of a run of the high program by its model, and its run-in.
pub const RUN_MIN: Duration = Duration::from_secs(2);
pub const RUN_IN_MIN: Duration = Duration::from_millis(500);

/// Returns a model as a program, its times stretched; with a pause after each task, if any.
pub fn program(model: &ProgramModel, stretch: u64, pause: Duration) -> Program {
    let mut recording = recording(model, stretch);
    if !pause.is_zero() {
        // Into a string, which takes everything.
        let _ = writeln!(recording, "gap {}ns", pause.as_nanos());
    }
    Program { name: model.name.to_owned(), recording }
}

/// Returns how many tasks fill the given time by the model, at least `tasks`.
pub fn enough(model: &ProgramModel, stretch: u64, (least, tasks): (Duration, u32)) -> u32 {
    let steps = model.program().steps;
    let task: u64 = steps.iter().map(|step| (step.took_ns + step.gap_ns) * stretch).sum();
    let needed = least.as_nanos() / u128::from(task.max(1)) + 1;
    tasks.max(u32::try_from(needed).expect("a run of seconds has few tasks"))
}

/// For how long, in nanoseconds, an omniscient filler would run the low program's kernels in a run's
/// very gaps, those up to ε left, without a message.
#[derive(Clone, Copy, Debug)]
pub struct Ideal {
    /// On this device, on which a context switch takes time.
    pub here: u64,
    /// On a device whose context switches take no time.
    pub free: u64,
    /// On this device, in so few of its gaps, the longest ones, that the changes back to the high program
    /// cost no more than [`QueueRules::fill_cost_thousandths`].
    pub bounded: u64,
    /// On this device, if the filler was also woken as late as the real one, and its own pauses last as long as they do
    /// alone on this machine. It fills so many of the longest gaps that context switches cost the high program
    /// [`WOKEN_COST_THOUSANDTHS`] of its time.
    pub woken: u64,
    /// The same in as many gaps as the real filler used.
    pub woken_as_often: u64,
}

/// What the high program may lose next to a filler with perfect knowledge: the aim is 1.05 times its time alone.
const WOKEN_COST_THOUSANDTHS: u64 = 50;

/// Returns how long the device was idle after each step of the low program's task, in nanoseconds: the medians
/// over the tasks of a run by itself. The machine ends pauses late, and takes its time between two launches.
///
/// # Errors
///
/// The run has other kernels than whole tasks of the program.
pub fn pauses_of(model: &ProgramModel, alone: &Played) -> Result<Vec<u64>> {
    let (steps, ran) = (model.program().steps.len(), alone.claimed());
    ensure!(
        ran.len() == steps * alone.tasks.len() && alone.tasks.len() > 1,
        "{} kernels ran in {} tasks of {steps} steps",
        ran.len(),
        alone.tasks.len()
    );
    let median_after = |step: usize| {
        let pairs = ran.windows(2).skip(step).step_by(steps);
        let mut idle: Vec<u64> = pairs.map(|two| two[1].0.saturating_sub(two[0].1)).collect();
        idle.sort_unstable();
        idle[idle.len() / 2]
    };
    Ok((0..steps).map(median_after).collect())
}

/// Returns what an omniscient filler would use of a run's gaps. `pauses` are those of [`pauses_of`] the low program.
pub fn ideal(
    pair: &ProgramPair,
    stretch: u64,
    switch: Nanos,
    pauses: &[u64],
    played: &Played,
) -> Ideal {
    let mut program = pair.low.program();
    let mut took = BTreeMap::new();
    for step in &mut program.steps {
        // As the recording has it: one time for each kernel, and a wait before each pause.
        step.took_ns = *took.entry(step.kernel).or_insert(step.took_ns * stretch);
        step.gap_ns *= stretch;
        step.waits_for_device = true;
    }
    let spans = played.claimed().into_iter().map(|(from, until)| KernelSpan {
        program: 0,
        from: Nanos::new(from),
        until: Nanos::new(until),
    });
    let spans: Vec<_> = spans.collect();
    let used = |spans: &[KernelSpan], switch| {
        let course = ProgramCourse::new(program.clone(), 0, TimeNoise { kernels: 0, gaps: 0 });
        omniscient(spans, course, QueueRules::default().epsilon, switch).get()
    };
    let wake_ups = wake_ups(played, switch);
    let mut as_late = program.clone();
    for (step, pause) in as_late.steps.iter_mut().zip(pauses) {
        step.gap_ns = *pause;
    }
    let woken = |fills: usize| {
        let course = ProgramCourse::new(as_late.clone(), 0, TimeNoise { kernels: 0, gaps: 0 });
        let mut rng = SeededRng::named(1, "wake-ups");
        // Without one measured wake-up nothing is known of its cost.
        let entry = || match wake_ups.len() {
            0 => Nanos::MAX,
            count => switch.plus(Nanos::new(wake_ups[rng.index_below(count)])),
        };
        let spans = longest_gaps(&spans, fills);
        omniscient_that_enters(&spans, course, QueueRules::default().epsilon, entry).get()
    };
    let waited = played.waited();
    let lasted = played.window.1 - played.window.0;
    let own = lasted.saturating_sub(waited.for_kernels + waited.for_switches);
    let may_lose = Nanos::new(own).thousandths(WOKEN_COST_THOUSANDTHS);
    Ideal {
        here: used(&spans, switch),
        free: used(&spans, Nanos::ZERO),
        bounded: used(&longest_gaps(&spans, affordable(&spans, switch)), switch),
        woken: woken(fills_for(may_lose, switch)),
        woken_as_often: woken(wake_ups.len()),
    }
}

/// Returns how late the low program's first kernel began in each gap that it used, without the context switch, in
/// nanoseconds.
fn wake_ups(played: &Played, switch: Nanos) -> Vec<u64> {
    played.gaps().iter().filter_map(|gap| gap.wake_up(switch.get())).collect()
}

/// Returns how many context switches a queue may spend on fills.
fn affordable(spans: &[KernelSpan], switch: Nanos) -> usize {
    let lasted = spans.last().map_or(Nanos::ZERO, |last| last.until.minus(spans[0].from));
    fills_for(lasted.thousandths(QueueRules::default().fill_cost_thousandths), switch)
}

/// Returns how many fills cost this time: one switch back to the high program each.
fn fills_for(time: Nanos, switch: Nanos) -> usize {
    usize::try_from(time.get() / switch.get().max(1)).unwrap_or(usize::MAX)
}

/// Compares a run with the one alone.
pub fn shown(played: &Played, alone: &Played, ideal: Ideal) -> Value {
    let at = |part| seconds(played.task_at(part)) * 1e3;
    let waited = played.waited();
    json!({
        "high_took_ms": round(seconds(played.window.1 - played.window.0) * 1e3),
        "high_times_alone": round(played.ratio_to(alone)),
        "high_waited_for_low_ms": round(seconds(waited.for_kernels) * 1e3),
        "high_waited_for_switches_ms": round(seconds(waited.for_switches) * 1e3),
        "high_overslept_ms": round(seconds(played.overslept) * 1e3),
        "task_median_ms": round(at(50)),
        "task_p99_ms": round(at(99)),
        "task_p99_times_alone": round(at(99) / (seconds(alone.task_at(99)) * 1e3)),
        "task_max_ms": round(at(100)),
        "high_busy_ms": round(seconds(total(&played.high)) * 1e3),
        "low_busy_ms": round(seconds(total(&played.low)) * 1e3),
        "low_part_of_idle": round(played.low_of_gaps(alone)),
        "low_part_of_omniscient": round(played.fills(ideal.here)),
        "low_part_of_omniscient_at_the_same_cost": round(played.fills(ideal.bounded)),
        "low_part_of_omniscient_without_switches": round(played.fills(ideal.free)),
        "low_part_of_woken_omniscient": round(played.fills(ideal.woken)),
        "low_part_of_woken_omniscient_in_as_many_gaps": round(played.fills(ideal.woken_as_often)),
        "woken_omniscient_of_omniscient": round(share(ideal.woken, ideal.here)),
    })
}

/// Shows how late the low program began in the gaps that it used, and the use of gaps by length. `switch` is
/// the time of a context switch.
pub fn shown_gaps(played: &Played, switch: Nanos) -> Value {
    let gaps = played.gaps();
    let micros = |nanos: u64| round(seconds(nanos) * 1e6);
    let at = |mut times: Vec<u64>, percent: usize| {
        times.sort_unstable();
        let rank = (times.len() * percent).div_ceil(100).max(1);
        times.get(rank - 1).map(|nanos| micros(*nanos))
    };
    let wake_ups = wake_ups(played, switch);
    let edges = [2, 3, 4, 6, 8, 12, 16, u64::MAX].map(|times| switch.times(times).get());
    let classes = edges.windows(2).map(|edges| {
        let of_class = gaps.iter().filter(|gap| (edges[0]..edges[1]).contains(&gap.length()));
        let (filled, empty): (Vec<_>, Vec<_>) = of_class.partition(|gap| gap.kernels > 0);
        let mean = |what: fn(&PlayedGap) -> u64| {
            let sum = filled.iter().copied().map(what).sum::<u64>();
            micros(sum / filled.len().max(1) as u64)
        };
        let wake_ups = filled.iter().filter_map(|gap| gap.wake_up(switch.get()));
        json!({
            "from_us": micros(edges[0]),
            "gaps": filled.len() + empty.len(),
            "filled": filled.len(),
            "length_us": mean(PlayedGap::length),
            "wake_up_median_us": at(wake_ups.collect(), 50),
            "used_us": mean(|gap| gap.used),
            "between_kernels_us": mean(PlayedGap::idle_between_kernels),
            "unused_at_the_end_us": mean(|gap| gap.end - gap.last),
            "kernels": filled.iter().map(|gap| gap.kernels).sum::<u64>(),
        })
    });
    let quantiles = [10, 50, 90].map(|percent| at(wake_ups.clone(), percent));
    json!({
        "filled": wake_ups.len(),
        "wake_up_us": quantiles,
        "by_length": classes.collect::<Vec<_>>(),
    })
}

fn share(part: u64, whole: u64) -> f64 {
    if whole > 0 { seconds(part) / seconds(whole) } else { 0.0 }
}

/// Shows times of the low program's tasks: their mean and their coefficient of variation.
pub fn spread(times: &[u64], pause: Duration) -> Value {
    let pause = pause.as_secs_f64();
    let times: Vec<f64> = times.iter().map(|time| (seconds(*time) - pause) * 1e3).collect();
    let count = count(times.len());
    let mean = times.iter().sum::<f64>() / count;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
    json!({ "tasks": times.len(), "mean_ms": round(mean), "cv": round(variance.sqrt() / mean) })
}

/// Shows what the queue counted for one of them, and the results of its launches.
pub fn counted(tally: &AttemptTally) -> Value {
    json!({
        "counters": tally.counters,
        "passed": tally.passed,
        "lost": tally.lost,
        "ungranted": tally.ungranted,
    })
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Writes a model's task as a recording, its times stretched.
fn recording(model: &ProgramModel, stretch: u64) -> String {
    let program = model.program();
    let mut text = "player 1\n".to_owned();
    let mut kernels = BTreeMap::new();
    for step in &program.steps {
        kernels.entry(step.kernel).or_insert(step.took_ns * stretch);
    }
    for (kernel, took) in kernels {
        let _ = writeln!(text, "kernel k{kernel} dur={took}ns");
    }
    for step in &program.steps {
        let _ = writeln!(text, "run k{} 64x1x1/256x1x1", step.kernel);
        if step.gap_ns > 0 {
            let _ = writeln!(text, "gap {}ns", step.gap_ns * stretch);
        }
    }
    text
}
