//! One pair as recordings, and what would fit into its gaps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tessera_agent_core::kernel::AttemptTally;
use tessera_kernel_queue::{Nanos, QueueRules};
use tessera_load_tests::players::{Played, Program, seconds, total};
use tessera_simulator::cluster::number::count;
use tessera_simulator::kernel_device::device::KernelSpan;
use tessera_simulator::kernel_device::ideal::omniscient;
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
}

/// Returns what an omniscient filler would use of a run's gaps.
pub fn ideal(pair: &ProgramPair, stretch: u64, switch: Nanos, played: &Played) -> Ideal {
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
    Ideal {
        here: used(&spans, switch),
        free: used(&spans, Nanos::ZERO),
        bounded: used(&without_short_gaps(&spans, switch), switch),
    }
}

/// Joins spans over all gaps but the longest. The number that remains is such that a context switch
/// after each costs no more than a queue may spend on fills.
fn without_short_gaps(spans: &[KernelSpan], switch: Nanos) -> Vec<KernelSpan> {
    let lasted = spans.last().map_or(Nanos::ZERO, |last| last.until.minus(spans[0].from));
    let spent = lasted.thousandths(QueueRules::default().fill_cost_thousandths);
    let affordable = usize::try_from(spent.get() / switch.get().max(1)).unwrap_or(usize::MAX);
    let gap = |pair: &[KernelSpan]| pair[1].from.minus(pair[0].until);
    let mut gaps: Vec<Nanos> = spans.windows(2).map(gap).collect();
    gaps.sort_unstable_by(|one, other| other.cmp(one));
    let least = gaps.get(affordable).copied().unwrap_or(Nanos::ZERO);
    let mut joined: Vec<KernelSpan> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.from.minus(last.until) <= least => last.until = span.until,
            Some(_) | None => joined.push(*span),
        }
    }
    joined
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
    })
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
