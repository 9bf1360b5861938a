//! What an idle cluster costs, and how long a cold start takes.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use tessera_load_tests::cluster::Plan;
use tessera_load_tests::machine;

#[derive(Parser)]
struct Arguments {
    /// Seconds to measure.
    #[arg(long, default_value_t = 20)]
    secs: u64,
    /// Number of starts to measure.
    #[arg(long, default_value_t = 3)]
    starts: usize,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people: 52 bits are enough")]
fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let starts: Vec<f64> = (0..arguments.starts).map(|_| cold_start()).collect();
    let cluster = Plan::new().node("n1", "a100-40gb,a100-40gb").start();
    // Start-up work is over when nothing has happened for a while.
    thread::sleep(Duration::from_secs(3));
    let everyone = cluster.processes();
    let before: Vec<f64> = everyone.iter().map(|&pid| cpu_secs(pid)).collect();
    thread::sleep(Duration::from_secs(arguments.secs));
    let rows: Vec<Value> = everyone
        .iter()
        .zip(before)
        .map(|(&pid, before)| {
            json!({
                "program": program(pid),
                "core_percent": (cpu_secs(pid) - before) / arguments.secs as f64 * 100.0,
                "rss_mib": rss_mib(pid),
            })
        })
        .collect();
    let sum = |field: &str, name: &str| -> f64 {
        let mine = rows.iter().filter(|row| row["program"].as_str().is_some_and(|p| p == name));
        mine.filter_map(|row| row[field].as_f64()).sum()
    };
    let result = json!({
        "what": "a controller and an agent with two cards, nothing to do; cold starts",
        "machine": machine::facts(),
        "watched_secs": arguments.secs,
        "controller_core_percent": sum("core_percent", "tessera-controller"),
        "agent_core_percent": sum("core_percent", "tessera-agent"),
        "postgres_core_percent": sum("core_percent", "postgres"),
        "controller_rss_mib": sum("rss_mib", "tessera-controller"),
        "agent_rss_mib": sum("rss_mib", "tessera-agent"),
        "cold_start_secs": starts,
        "processes": rows,
    });
    machine::report(&result, arguments.out.as_deref())
}

/// Time from the start of a controller without any data to its first report that it is ready.
fn cold_start() -> f64 {
    let started = Instant::now();
    let cluster = Plan::new().start_without_agents_ready();
    cluster.wait_serving();
    started.elapsed().as_secs_f64()
}

fn program(pid: u32) -> String {
    fs::read_link(format!("/proc/{pid}/exe"))
        .ok()
        .and_then(|exe| Some(exe.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_default()
}

/// Returns the processor time used so far. Clock ticks are hundredths of a second on Linux.
fn cpu_secs(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit(") ").next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|f| f.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

fn rss_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
