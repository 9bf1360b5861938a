//! Two real programs on one simulated slice, in real time: FIKIT's ten pairs played on the CUDA
//! driver's stand-in, alone, by the driver's time slices, and through the shim and the agent's
//! kernel queue.
//!
//! ```text
//! ./x build
//! cargo run --release -p tessera-load-tests --bin kernel-pairs -- \
//!     --out load-tests/results/kernel-pairs.json --timeline docs/kernel-pairs.svg
//! ```
//!
//! Times of the pairs are stretched, since a machine of two busy cores wakes a sleeper
//! milliseconds late; ratios are within one run. Everything is read from the device's own trace.

#[path = "kernel-pairs/drawing.rs"]
mod drawing;
#[path = "kernel-pairs/stage.rs"]
mod stage;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use tessera_agent::core::kernel::Tally;
use tessera_load_tests::machine;
use tessera_sim::kernels::{PAIRS, Pair};

use stage::{Played, Stage};

#[derive(Parser)]
struct Arguments {
    /// Letters of the pairs to play.
    #[arg(long, default_value = "ABCDEFGHIJ")]
    pairs: String,
    /// Tasks of the high program in each run.
    #[arg(long, default_value_t = 12)]
    tasks: u32,
    /// Tasks of each program by itself, for the queue to measure.
    #[arg(long, default_value_t = 12)]
    measured: u32,
    /// By how much all times of the pairs are stretched.
    #[arg(long, default_value_t = 10)]
    stretch: u64,
    /// What changing contexts costs the device, in microseconds.
    #[arg(long, default_value_t = 100)]
    switch_us: u64,
    /// Folder of the stand-in's libraries and programs; `./x build` makes it.
    #[arg(long, default_value = "target/stand-in")]
    stand_in: PathBuf,
    /// The shim; `./x build` makes it.
    #[arg(long, default_value = "target/kernel-shim/libcuda.so.1")]
    shim: PathBuf,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
    /// File for a drawing of the first pair.
    #[arg(long)]
    timeline: Option<PathBuf>,
    /// Tell in words what happens, instead of the result.
    #[arg(long)]
    tell: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut rows = Vec::new();
    for (number, letter) in arguments.pairs.chars().enumerate() {
        let Some(pair) = PAIRS.iter().find(|pair| pair.letter == letter) else {
            bail!("{letter} is no pair: use letters from A to J");
        };
        let drawing = arguments.timeline.as_ref().filter(|_| number == 0);
        rows.push(play(&arguments, pair, drawing)?);
    }
    let result = json!({
        "what": "two programs under the shim and the agent's kernel queue, on the driver's stand-in",
        "machine": machine::facts(),
        "tasks": arguments.tasks,
        "stretch": arguments.stretch,
        "switch_us": arguments.switch_us,
        "pairs": rows,
    });
    if arguments.tell {
        if let Some(file) = &arguments.out {
            fs::write(file, serde_json::to_string_pretty(&result)? + "\n")?;
        }
        return Ok(());
    }
    machine::report(&result, arguments.out.as_deref())
}

fn play(arguments: &Arguments, pair: &Pair, timeline: Option<&PathBuf>) -> Result<Value> {
    let tell = |line: String| {
        if arguments.tell {
            println!("    {line}");
        } else {
            eprintln!("pair {}: {line}", pair.letter);
        }
    };
    let stage = Stage::new(arguments, pair).context("the stage can't be set")?;
    let high = pair.high.name;
    tell(format!("{high} alone"));
    let alone = stage.alone()?;
    tell(format!("{high} and {} as the driver shares by default", pair.low.name));
    let default = stage.by_default()?;
    tell("each by itself under the shim, for the queue to measure".to_owned());
    stage.measure()?;
    tell("both under the shim: Q0 and Q9".to_owned());
    let (tessera, [high_tally, low_tally]) = stage.shared()?;
    if let Some(file) = timeline {
        let lanes = [("alone", &alone), ("default", &default), ("Tessera", &tessera)];
        fs::write(file, drawing::draw(pair, &lanes))?;
    }
    let ideal = stage.omniscient(&alone);
    let told = |name: &str, played: &Played| {
        let (times, low) = (played.ratio_to(&alone), played.low_of_gaps(&alone));
        tell(format!(
            "{name}: {high} takes {times:.3} times as long as alone; the other gets {:.0} % of \
             the device's idle time, {:.0} % of what would fit",
            low * 100.0,
            played.fills(&alone, ideal) * 100.0
        ));
    };
    told("default sharing", &default);
    told("Tessera", &tessera);
    Ok(json!({
        "pair": pair.letter.to_string(),
        "high": high,
        "low": pair.low.name,
        "alone": alone.shown(&alone, ideal),
        "default_sharing": default.shown(&alone, ideal),
        "tessera": tessera.shown(&alone, ideal),
        "queue": { "high": counted(&high_tally), "low": counted(&low_tally) },
    }))
}

/// What the queue counted for one of them, and what became of its launches.
fn counted(tally: &Tally) -> Value {
    let counters = serde_json::to_value(tally.counters).unwrap_or_default();
    json!({ "counters": counters, "passed": tally.passed, "lost": tally.lost, "unasked": tally.unasked })
}
