//! How long a user waits: from submit to the running program on an existing slice, and to the end
//! of a program that does nothing.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use serde_json::json;
use tessera_api_types::JobView;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};
use tessera_load_tests::machine::{self, Spread};
use tessera_load_tests::programs::programs;
use tessera_load_tests::{peers, wait};

#[derive(Parser)]
struct Arguments {
    /// Jobs to measure, one after another.
    #[arg(long, default_value_t = 300)]
    jobs: usize,
    /// Python that has the package hyperqueue, for the comparison.
    #[arg(long)]
    hyperqueue_python: Option<PathBuf>,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    machine::forget_removed_files();
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    // The first job creates the slice that all others use.
    run(&cluster, 0)?;
    let (mut started, mut done) = (Vec::new(), Vec::new());
    for number in 1..=arguments.jobs {
        let (to_start, to_end) = run(&cluster, number)?;
        started.push(to_start);
        done.push(to_end);
    }
    drop(cluster);
    let (started, done) = (Spread::of(started), Spread::of(done));
    let (their_start, their_end) = match &arguments.hyperqueue_python {
        Some(python) => {
            machine::forget_removed_files();
            let tasks = arguments.jobs.min(100);
            let running = peers::hyperqueue_running(python, tasks)?;
            (Some(running), Some(peers::hyperqueue_done(python, tasks)?))
        }
        None => (None, None),
    };
    let result = json!({
        "what": "submit to running program on a standing slice; submit to done of a no-op",
        "machine": machine::facts(),
        "submit_to_running": started.millis(),
        "submit_to_done": done.millis(),
        "hyperqueue_submit_to_running": their_start.as_ref().map(Spread::millis),
        "hyperqueue_submit_to_done": their_end.as_ref().map(Spread::millis),
        "running_to_hyperqueue_ratio": their_start.map(|theirs| started.at(500) / theirs.at(500)),
        "done_to_hyperqueue_ratio": their_end.map(|theirs| done.at(500) / theirs.at(500)),
    });
    machine::report(&result, arguments.out.as_deref())
}

/// Runs one job and returns how long it took to its start and to its known end, in milliseconds.
fn run(cluster: &Cluster, number: usize) -> anyhow::Result<(f64, f64)> {
    let stamp = cluster.scratch().join(format!("stamp-{number}"));
    let program = programs().path("tessera-test-job").display().to_string();
    let request = command([program, "stamp".into(), stamp.display().to_string()]);
    let (submitted, clock) = (SystemTime::now(), Instant::now());
    let job = cluster.submit(&request).job_id;
    loop {
        let path = format!("/v1/jobs/{job}/wait?timeout_secs=20");
        let job: JobView = cluster.call("GET", &path, None).expect(200).json();
        if job.state == "succeeded" {
            break;
        }
    }
    let done = clock.elapsed();
    let stamped = wait::until(SOON, "the stamp", || fs::read_to_string(&stamp).ok());
    let stamped = UNIX_EPOCH + Duration::from_nanos(stamped.parse()?);
    let started = stamped.duration_since(submitted)?;
    Ok((started.as_secs_f64() * 1000.0, done.as_secs_f64() * 1000.0))
}
