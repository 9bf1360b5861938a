//! Other schedulers on the same machine, for figures beside ours. Each is used as its own
//! interface offers, with the settings that suit it best.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::machine::Spread;

/// Starts a server and one worker in one process, submits, waits, and prints seconds as JSON.
const HYPERQUEUE: &str = r#"
import json, os, sys, tempfile, time
from pathlib import Path
from hyperqueue import Client, Job
from hyperqueue.cluster import LocalCluster, WorkerConfig

mode, count, cores, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
folder = tempfile.mkdtemp()
os.chdir(folder)
with LocalCluster(Path(folder)) as cluster:
    for _ in range(workers):
        cluster.start_worker(WorkerConfig(cores=cores))
    client = cluster.client()
    def run(tasks):
        job = Job()
        for _ in range(tasks):
            job.program(["/bin/true"], stdout=None, stderr=None)
        started = time.monotonic()
        submitted = client.submit(job)
        client.wait_for_jobs([submitted])
        return time.monotonic() - started
    run(1)
    took = [run(count)] if mode == "throughput" else [run(1) for _ in range(count)]
print("RESULT " + json.dumps(took))
"#;

/// Measures submit to done of tasks that do nothing, in milliseconds.
///
/// # Errors
///
/// If it can't be run.
pub fn hyperqueue_latency(python: &Path, tasks: usize) -> anyhow::Result<Spread> {
    let secs = hyperqueue(python, "latency", tasks, 7, 1)?;
    Ok(Spread::of(secs.into_iter().map(|secs| secs * 1000.0).collect()))
}

/// Measures how many tasks a second go through `workers` of `cores` places each.
///
/// # Errors
///
/// If it can't be run.
pub fn hyperqueue_throughput(
    python: &Path,
    tasks: usize,
    cores: usize,
    workers: usize,
) -> anyhow::Result<f64> {
    let secs = hyperqueue(python, "throughput", tasks, cores, workers)?;
    let secs = secs.first().context("no figure")?;
    Ok(tasks as f64 / secs)
}

fn hyperqueue(
    python: &Path,
    mode: &str,
    count: usize,
    cores: usize,
    workers: usize,
) -> anyhow::Result<Vec<f64>> {
    let done = Command::new(python)
        .args(["-c", HYPERQUEUE, mode])
        .args([count, cores, workers].map(|number| number.to_string()))
        .output()
        .with_context(|| format!("{python:?} doesn't run"))?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let value: Value = serde_json::from_str(line.context("no result")?)?;
    let secs = value.as_array().context("no list")?.iter().filter_map(Value::as_f64);
    Ok(secs.collect())
}
