//! What the kernel plane's queue gives and costs: FIKIT's ten pairs in virtual time, and the
//! price of a decision on this machine.
//!
//! ```text
//! cargo run --release -p tessera-load-drivers --bin kernel-queue -- \
//!     --out load-tests/results/kernel-queue.json --timeline docs/kernel-plane.svg
//! ```

#[path = "kernel-queue/cost.rs"]
mod cost;
#[path = "kernel-queue/equals.rs"]
mod equals;
#[path = "kernel-queue/pairs.rs"]
mod pairs;
#[path = "kernel-queue/timeline.rs"]
mod timeline;

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use serde_json::json;
use tessera_load_tests::machine;

#[derive(Parser)]
struct Arguments {
    /// Tasks of the high program in each run.
    #[arg(long, default_value_t = 1_000)]
    tasks: usize,
    /// Seed of the random number generator.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Decisions to time in each case.
    #[arg(long, default_value_t = 200_000)]
    decisions: usize,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
    /// File for the drawn timeline.
    #[arg(long)]
    timeline: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(file) = &arguments.timeline {
        fs::write(file, timeline::draw(arguments.seed))?;
    }
    let (tasks, seed) = (arguments.tasks, arguments.seed);
    let result = json!({
        "what": "two programs on one slice in virtual time; the cost of decisions in real time",
        "machine": machine::facts(),
        "tasks": tasks,
        "seed": seed,
        "pairs_gaps_vary_by_5_percent": pairs::sharing(50, tasks, seed),
        "pairs_gaps_vary_by_30_percent": pairs::sharing(300, tasks, seed),
        "pairs_with_context_switches": pairs::with_switches(50, tasks, seed),
        "pairs_with_context_switches_gaps_vary_by_30_percent": pairs::with_switches(300, tasks, seed),
        "equal_priorities": equals::sharing(tasks.div_ceil(5), seed),
        "steady_low_task_every_second": pairs::steady(tasks.div_ceil(10), seed),
        "preempting_high_task_every_second": pairs::preempting(tasks.div_ceil(10), seed),
        "decisions": cost::measure(arguments.decisions),
    });
    machine::report(&result, arguments.out.as_deref())
}
