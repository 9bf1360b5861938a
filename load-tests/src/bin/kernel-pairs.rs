//! Two real programs on one simulated slice, in real time. FIKIT's ten pairs are played on the CUDA
//! driver's stand-in: alone, by the driver's time slices, and through the shim and the agent's
//! kernel queue.
//!
//! ```text
//! ./x build
//! cargo run --release -p tessera-load-tests --bin kernel-pairs -- \
//!     --out load-tests/results/kernel-pairs.json --timeline docs/kernel-pairs.svg
//! ```
//!
//! The pairs are played at true times and at tenfold ones. On a machine of two busy cores a sleeper wakes
//! as late as many gaps last. Ratios are within one run. Everything is read from the device's own trace.

#[path = "kernel-pairs/drawing.rs"]
mod drawing;
#[path = "kernel-pairs/pair.rs"]
mod pair;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use tessera_kernel_queue::Nanos;
use tessera_load_tests::machine;
use tessera_load_tests::players::{Played, Setting, Stage, rules_with};
use tessera_simulator::kernel_device::{PAIRS, ProgramPair};

use pair::{
    RUN_IN_MIN, RUN_MIN, counted, enough, ideal, pauses_of, program, shown, shown_gaps, spread,
};

/// Tasks of the low program by itself, for its pauses; more if they take less than two seconds.
const LOW_TASKS_MIN: u32 = 12;

/// How long the low program pauses after each task in the steady scenario.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Arguments {
    /// Letters of the pairs to play.
    #[arg(long, default_value = "ABCDEFGHIJ")]
    pairs: String,
    /// Tasks of the high program in each run; more if they take less than two seconds.
    #[arg(long, default_value_t = 12)]
    tasks: u32,
    /// Tasks of the low program in the steady scenario: one a second with a busy high one.
    #[arg(long, default_value_t = 0)]
    steady: u32,
    /// Tasks of each program by itself, for the queue to measure.
    #[arg(long, default_value_t = 12)]
    measured: u32,
    /// By how much all times of the pairs are stretched: one run of all pairs for each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10])]
    stretch: Vec<u64>,
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
    /// File for a drawing of the first pair.
    #[arg(long)]
    timeline: Option<PathBuf>,
    /// Print what happens as text, instead of the result.
    #[arg(long = "verbose")]
    is_text: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut rows = Vec::new();
    for stretch in &arguments.stretch {
        for letter in arguments.pairs.chars() {
            let Some(pair) = PAIRS.iter().find(|pair| pair.letter == letter) else {
                bail!("no pair has the letter {letter}: use letters from A to J");
            };
            let drawing = arguments.timeline.as_ref().filter(|_| rows.is_empty());
            rows.push(play(&arguments, pair, *stretch, drawing)?);
        }
    }
    let result = json!({
        "what": "two programs under the shim and the agent's kernel queue, on the driver's stand-in",
        "machine": machine::facts(),
        "tasks": arguments.tasks,
        "stretch": arguments.stretch,
        "switch_us": arguments.switch_us,
        "rules": arguments.rules,
        "pairs": rows,
    });
    if arguments.is_text {
        if let Some(file) = &arguments.out {
            fs::write(file, serde_json::to_string_pretty(&result)? + "\n")?;
        }
        return Ok(());
    }
    machine::report(&result, arguments.out.as_deref())
}

fn play(
    arguments: &Arguments,
    pair: &ProgramPair,
    stretch: u64,
    timeline: Option<&PathBuf>,
) -> Result<Value> {
    let print_step = |line: String| {
        if arguments.is_text {
            println!("    {line}");
        } else {
            eprintln!("pair {}: {line}", pair.letter);
        }
    };
    let none = Duration::ZERO;
    let programs = [program(&pair.high, stretch, none), program(&pair.low, stretch, none)];
    let setting = Setting {
        stand_in: arguments.stand_in.clone(),
        shim: arguments.shim.clone(),
        switch_us: arguments.switch_us,
        rules: rules_with(&arguments.rules, arguments.switch_us)?,
        run_in: enough(&pair.high, stretch, (RUN_IN_MIN, 1)),
        ordinary: false,
    };
    let stage = Stage::new(setting.clone(), programs.clone()).context("the stage can't be set")?;
    let high = pair.high.name;
    let tasks = enough(&pair.high, stretch, (RUN_MIN, arguments.tasks));
    let measured = enough(&pair.high, stretch, (RUN_MIN, arguments.measured));
    print_step(format!("{high} alone"));
    let alone = stage.alone(tasks)?;
    print_step(format!("{} alone", pair.low.name));
    let low_tasks = enough(&pair.low, stretch, (RUN_MIN, LOW_TASKS_MIN));
    let pauses = pauses_of(&pair.low, &stage.low_without_shim(low_tasks)?)?;
    print_step(format!("{high} and {} as the driver shares by default", pair.low.name));
    let default = stage.by_default(tasks)?;
    print_step("each by itself under the shim, for the queue to measure".to_owned());
    stage.measure(measured)?;
    let single = stage.alone_in_sharing(tasks)?;
    print_step("both under the shim: Q0 and Q9".to_owned());
    let (tessera, [high_tally, low_tally]) = stage.shared(tasks)?;
    let mut steady = Value::Null;
    if arguments.steady > 0 {
        print_step("the low one once a second, beside the high one without a pause".to_owned());
        let [high, _] = programs;
        let setting = Setting { run_in: 1, ..setting };
        let stage = Stage::new(setting, [high, program(&pair.low, stretch, PAUSE)])?;
        stage.measure(arguments.measured)?;
        steady = spread(&stage.low_tasks(arguments.steady)?, PAUSE);
    }
    if let Some(file) = timeline {
        let lanes = [("alone", &alone), ("default", &default), ("Tessera", &tessera)];
        fs::write(file, drawing::draw(pair, &lanes))?;
    }
    let switch = Nanos::from_micros(arguments.switch_us);
    let ideal = |played: &Played| ideal(pair, stretch, switch, &pauses, played);
    let describe = |name: &str, played: &Played| {
        let (times, low) = (played.ratio_to(&alone), played.low_of_gaps(&alone));
        print_step(format!(
            "{name}, times {stretch}: {high} takes {times:.3} times as long as alone; the other gets \
             {:.0} % of the device's idle time, {:.0} % of what would fit, {:.0} % of what would fit at \
             the cost that the high one may have, {:.0} % of what a filler with perfect knowledge gets \
             that is woken as late",
            low * 100.0,
            played.fills(ideal(played).here) * 100.0,
            played.fills(ideal(played).bounded) * 100.0,
            played.fills(ideal(played).woken) * 100.0
        ));
    };
    describe("default sharing", &default);
    describe("Tessera", &tessera);
    Ok(json!({
        "pair": pair.letter.to_string(),
        "stretch": stretch,
        "high": high,
        "low": pair.low.name,
        "alone": shown(&alone, &alone, ideal(&alone)),
        "alone_in_sharing": shown(&single, &alone, ideal(&single)),
        "default_sharing": shown(&default, &alone, ideal(&default)),
        "tessera": shown(&tessera, &alone, ideal(&tessera)),
        "gaps": shown_gaps(&tessera, switch),
        "low_tasks_when_steady": steady,
        "queue": { "high": counted(&high_tally), "low": counted(&low_tally) },
    }))
}
