//! Other schedulers on the same machine, for comparison. Each is used as its own
//! interface offers, with the settings that suit it best.

mod slurm;

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::machine::Spread;
use crate::programs::programs;

pub use slurm::slurm_throughput;

/// Starts a server and workers in one process, submits, waits, and prints seconds as JSON.
///
/// The library's client looks only once a second whether a job has ended. So a task
/// reports by itself when it ran. The end of a short one is looked for every millisecond, by leaving
/// the client's wait after its first look. Only long measurements use its own wait.
const HYPERQUEUE: &str = r#"
import json, os, sys, tempfile, time
from hyperqueue import Client, Job
from hyperqueue.cluster import LocalCluster, WorkerConfig

mode, count, cores, workers, stamp, output = sys.argv[1], *map(int, sys.argv[2:5]), *sys.argv[5:7]
folder = tempfile.mkdtemp()
os.chdir(folder)
with LocalCluster(folder) as cluster:
    for _ in range(workers):
        cluster.start_worker(WorkerConfig(cores=cores))
    client = Client(folder)
    def wait_for(file):
        while True:
            try:
                text = open(file).read()
                if text:
                    return int(text) / 1e9
            except FileNotFoundError:
                pass
            time.sleep(0.002)
    def one(number):
        file = os.path.join(folder, f"stamp-{number}")
        job = Job()
        job.program([stamp, "stamp", file], stdout=None, stderr=None)
        started = time.time()
        client.submit(job)
        return wait_for(file) - started
    class NotYet(Exception):
        pass
    def look(jobs):
        if not all(job["completed"] for job in jobs.values()):
            raise NotYet
    def end(_):
        job = Job()
        job.program(["/bin/true"], stdout=None, stderr=None)
        started = time.monotonic()
        submitted = client.submit(job)
        while True:
            try:
                client.connection.wait_for_jobs((submitted.id,), look)
                return time.monotonic() - started
            except Exception as error:
                if "NotYet" not in repr(error):
                    raise
                time.sleep(0.001)
    def many(tasks):
        job = Job()
        # Its own default: two files a task, in the job's folder.
        kept = {} if output == "kept" else {"stdout": None, "stderr": None}
        for _ in range(tasks):
            job.program(["/bin/true"], **kept)
        started = time.monotonic()
        client.wait_for_jobs([client.submit(job)])
        return time.monotonic() - started
    one(0)
    each = {"running": one, "done": end}.get(mode)
    took = [each(n) for n in range(1, count + 1)] if each else [many(count)]
print("RESULT " + json.dumps(took))
"#;

/// How the outputs of measured tasks are handled, ours and the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nothing is kept.
    Discarded,
    /// Two files a task, as is the default of both.
    Kept,
}

impl Output {
    /// Returns its name in results.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Discarded => "discarded",
            Self::Kept => "kept",
        }
    }
}

/// Measures submit to running program, as the program itself reports, in milliseconds.
///
/// # Errors
///
/// If it can't be run.
pub fn hyperqueue_running(python: &Path, tasks: usize) -> anyhow::Result<Spread> {
    let secs = hyperqueue(python, "running", tasks, 7, 1, Output::Discarded)?;
    Ok(Spread::of(secs.into_iter().map(|secs| secs * 1000.0).collect()))
}

/// Measures submit to the known end of a program that does nothing, in milliseconds.
///
/// # Errors
///
/// If it can't be run.
pub fn hyperqueue_done(python: &Path, tasks: usize) -> anyhow::Result<Spread> {
    let secs = hyperqueue(python, "done", tasks, 7, 1, Output::Discarded)?;
    Ok(Spread::of(secs.into_iter().map(|secs| secs * 1000.0).collect()))
}

/// Measures how many tasks a second go through `workers` of `cores` places each.
///
/// # Errors
///
/// If it can't be run.
#[expect(clippy::cast_precision_loss, reason = "a figure for people: 52 bits are enough")]
pub fn hyperqueue_throughput(
    python: &Path,
    tasks: usize,
    cores: usize,
    workers: usize,
    output: Output,
) -> anyhow::Result<f64> {
    let secs = hyperqueue(python, "throughput", tasks, cores, workers, output)?;
    let secs = secs.first().context("no figure")?;
    Ok(tasks as f64 / secs)
}

fn hyperqueue(
    python: &Path,
    mode: &str,
    count: usize,
    cores: usize,
    workers: usize,
    output: Output,
) -> anyhow::Result<Vec<f64>> {
    let done = Command::new(python)
        .args(["-c", HYPERQUEUE, mode])
        .args([count, cores, workers].map(|number| number.to_string()))
        .arg(programs().path("tessera-test-job"))
        .arg(output.word())
        .output()
        .with_context(|| format!("{python:?} doesn't run"))?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let value: Value = serde_json::from_str(line.context("no result")?)?;
    let secs = value.as_array().context("no list")?.iter().filter_map(Value::as_f64);
    Ok(secs.collect())
}
