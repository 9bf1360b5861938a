//! The high program's time next to fillers that behave like real programs: long kernels, many threads and
//! processes, graphs, and kernels of new shapes. At true times, on the driver's stand-in, under the shim and
//! the agent's kernel queue. Everything is read from the device's own trace.
//!
//! ```text
//! ./x build
//! chrt -f 10 target/release/kernel-stress --out load-tests/results/kernel-stress.json
//! chrt -f 10 target/release/kernel-stress take-over --out load-tests/results/take-over.json
//! ```

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use tessera_load_tests::busy::BusyProcessors;
use tessera_load_tests::machine;
use tessera_load_tests::players::{
    CoRunners, Played, Program, Setting, Stage, rules_with, seconds, total,
};
use tessera_simulator::cluster::number::count;

/// 2 ms of work, 8 ms of pause.
const HOLDER: &str = "player 1\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\ngap 8ms\n";
/// Fifty bursts make one task of programs whose kernels have new shapes each time.
const BURSTS: u32 = 50;

#[derive(Parser)]
struct Arguments {
    /// Names of the scenes; by default all but take-over.
    scenes: Vec<String>,
    /// Tasks of the high program in each scene.
    #[arg(long, default_value_t = 300)]
    tasks: u32,
    /// Cost of a context switch on the device, in microseconds.
    #[arg(long, default_value_t = 150)]
    switch_us: u64,
    /// Folder of the stand-in's libraries and programs; `./x build` makes it.
    #[arg(long, default_value = "target/stand-in")]
    stand_in: PathBuf,
    /// The shim; `./x build` makes it.
    #[arg(long, default_value = "target/kernel-shim/libcuda.so.1")]
    shim: PathBuf,
    /// Settings of the queue as in `[kernel_rules]` of an agent, such as "recall = true"; the others are the defaults.
    #[arg(long, default_value = "")]
    rules: String,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

struct StressScene {
    name: &'static str,
    /// What the queue measures of each program in advance.
    measured: [String; 2],
    /// What each plays then.
    played: [String; 2],
    co_runners: CoRunners,
    /// Bursts in one task of the high program.
    bursts: u32,
    /// Whether other programs keep every processor busy, and these have the priority that jobs have.
    busy: bool,
}

fn filler(took: &str) -> String {
    format!("player 1\nkernel piece dur={took}\nrun piece 8x1x1/128x1x1\nsync\n")
}

/// A program whose every launch has another grid.
fn with_new_shapes(dur: &str, bursts: u32, first: u32, after: &str) -> String {
    let mut text = format!("player 1\nkernel step dur={dur}\n");
    for burst in 0..bursts {
        // Into a string, which takes everything.
        let _ = writeln!(text, "run step {}x1x1/256x1x1\n{after}", first + burst);
    }
    text
}

fn scenes(tasks: u32) -> Vec<StressScene> {
    let together = |name, took: &str, processes, threads| StressScene {
        name,
        measured: [HOLDER.to_owned(), filler(took)],
        played: [HOLDER.to_owned(), filler(took)],
        co_runners: CoRunners { processes, threads },
        bursts: 1,
        busy: false,
    };
    let one = CoRunners { processes: 1, threads: 1 };
    let bursts = tasks.div_ceil(BURSTS).max(1) * BURSTS;
    vec![
        together("kernels-of-50-ms", "50ms", 1, 1),
        together("8-threads-of-5-ms", "5ms", 1, 8),
        together("16-threads-of-20-ms", "20ms", 1, 16),
        together("6-processes-of-5-ms", "5ms", 6, 1),
        together("graphs-of-200-ms", "200ms", 1, 1),
        together("100-threads-of-1-ms", "1ms", 1, 100),
        together("one-thread-of-1-ms", "1ms", 1, 1),
        together("8-threads-of-1-ms", "1ms", 1, 8),
        StressScene { busy: true, ..together("busy-processors", "1ms", 1, 1) },
        StressScene {
            name: "holder-with-new-shapes",
            measured: [HOLDER.to_owned(), filler("1ms")],
            played: [with_new_shapes("30ms", bursts, 1_000, "gap 8ms"), filler("1ms")],
            co_runners: one,
            bursts,
            busy: false,
        },
        StressScene {
            name: "holder-with-a-wrong-profile",
            measured: [HOLDER.to_owned(), filler("1ms")],
            played: [HOLDER.replace("dur=2ms", "dur=30ms"), filler("1ms")],
            co_runners: one,
            bursts: 1,
            busy: false,
        },
        StressScene {
            name: "filler-with-new-shapes",
            measured: [HOLDER.to_owned(), filler("1ms")],
            played: [HOLDER.to_owned(), with_new_shapes("300us", 3_000, 20, "")],
            co_runners: one,
            bursts: 1,
            busy: false,
        },
    ]
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let all = scenes(arguments.tasks);
    let is_unknown = |name: &&String| **name != TAKE_OVER && all.iter().all(|s| s.name != **name);
    if let Some(unknown) = arguments.scenes.iter().find(is_unknown) {
        let names: Vec<_> = all.iter().map(|scene| scene.name).chain([TAKE_OVER]).collect();
        bail!("no scene is called {unknown}: use {}", names.join(", "));
    }
    let chosen = |scene: &&StressScene| {
        arguments.scenes.is_empty() || arguments.scenes.iter().any(|name| name == scene.name)
    };
    let mut rows = Vec::new();
    if arguments.scenes.iter().any(|name| name == TAKE_OVER) {
        for row in take_over(&arguments)? {
            eprintln!("{row}");
            rows.push(row);
        }
    }
    for scene in all.iter().filter(chosen) {
        let row = play(&arguments, scene)?;
        eprintln!("{row}");
        rows.push(row);
    }
    let result = json!({
        "what": "a high program next to fillers that behave like real programs, on the driver's stand-in",
        "machine": machine::facts(),
        "tasks": arguments.tasks,
        "switch_us": arguments.switch_us,
        "rules": arguments.rules,
        "scenes": rows,
    });
    machine::report(&result, arguments.out.as_deref())
}

/// The name of the scenes in which the high program begins while the low one runs alone.
const TAKE_OVER: &str = "take-over";
/// How often it begins in each scene.
const BEGINNINGS: u32 = 5;

/// The high program's first tasks next to a low one that was alone, which launches far ahead of the device.
/// Also measures what the low one loses while an admitted high one does not begin.
fn take_over(arguments: &Arguments) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for (took, launches) in [("100us", 20_000), ("1ms", 1_200), ("5ms", 240)] {
        // A program with many launches before each wait.
        let ahead = format!(
            "player 1\nkernel piece dur={took}\n{}sync\n",
            "run piece 8x1x1/128x1x1\n".repeat(launches)
        );
        let stage = stage(arguments, [HOLDER.to_owned(), ahead], (0, false))?;
        stage.measure(3)?;
        let alone = stage.alone(30)?.tasks;
        let (mut first, mut all) = (Vec::new(), Vec::new());
        for _ in 0..BEGINNINGS {
            let (ahead, expected) = (Duration::from_millis(600), Duration::from_millis(300));
            let (played, _) = stage.take_over(30, ahead, expected)?;
            first.push(seconds(played.tasks[0]));
            all.push(seconds(played.tasks.iter().sum()));
        }
        let [mut times, mut totals] = [first, all];
        times.sort_by(f64::total_cmp);
        totals.sort_by(f64::total_cmp);
        let mut usual: Vec<f64> = alone.iter().map(|task| seconds(*task)).collect();
        usual.sort_by(f64::total_cmp);
        let median = |times: &[f64]| times[times.len() / 2];
        let span = Duration::from_secs(2);
        let free = seconds(stage.low_alone(span, false)?);
        let windowed = seconds(stage.low_alone(span, true)?);
        let share = |part: f64| (part * 1_000.0).round() / 1_000.0;
        rows.push(json!({
            "scene": TAKE_OVER,
            "low_kernels_of": took,
            "first_task_times_alone": share(median(&times) / median(&usual)),
            "worst_first_task_times_alone": share(times[times.len() - 1] / median(&usual)),
            "thirty_tasks_times_alone": share(median(&totals) / usual.iter().sum::<f64>()),
            "low_while_expected_of_free": share(windowed / free),
        }));
    }
    Ok(rows)
}

fn stage(
    arguments: &Arguments,
    recordings: [String; 2],
    (run_in, ordinary): (u32, bool),
) -> Result<Stage> {
    let setting = Setting {
        stand_in: arguments.stand_in.clone(),
        shim: arguments.shim.clone(),
        switch_us: arguments.switch_us,
        rules: rules_with(&arguments.rules, arguments.switch_us)?,
        run_in,
        ordinary,
    };
    let [of_high, of_low] = recordings;
    let named = |name: &str, recording| Program { name: name.to_owned(), recording };
    Stage::new(setting, [named("holder", of_high), named("filler", of_low)])
}

fn play(arguments: &Arguments, scene: &StressScene) -> Result<Value> {
    let stage = stage(arguments, scene.measured.clone(), (1, scene.busy))?;
    stage.measure(150)?;
    for (which, recording) in scene.played.iter().enumerate() {
        stage.replace(which, recording)?;
    }
    let tasks = (arguments.tasks / scene.bursts).max(1);
    let quiet = stage.alone(tasks)?;
    // Until the end of the scene.
    let busy = if scene.busy { Some(BusyProcessors::start()?) } else { None };
    let alone = if scene.busy { stage.alone(tasks)? } else { quiet.clone() };
    let (together, [high, low]) = stage.together(tasks, scene.co_runners)?;
    let p99 = |played: &Played| seconds(played.task_at(99));
    let share = |part: f64| (part * 1_000.0).round() / 1_000.0;
    let waited = together.waited();
    Ok(json!({
        "scene": scene.name,
        "high_times_alone": share(together.ratio_to(&alone)),
        "p99_times_alone": share(p99(&together) / p99(&alone)),
        "high_waited_for_low_ms": share(seconds(waited.for_kernels) * 1e3),
        "high_waited_for_switches_ms": share(seconds(waited.for_switches) * 1e3),
        "low_part_of_idle": share(together.low_of_gaps(&alone)),
        "low_kernels": together.low.len(),
        "low_busy_ms": share(seconds(total(&together.low)) * 1e3),
        "ungranted": low.ungranted,
        "busy_processes": busy.as_ref().map(BusyProcessors::count),
        "alone_and_busy_times_alone": scene.busy.then(|| share(alone.ratio_to(&quiet))),
        "aged": low.counters.aged,
        "probes": low.counters.probes,
        "grants": low.counters.grants,
        "high_reported": high.counters.launches,
        "tasks": count(together.tasks.len()),
    }))
}
