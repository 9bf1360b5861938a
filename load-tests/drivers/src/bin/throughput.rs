//! How many jobs a second go through one node of seven slices, and through sixteen, compared with other
//! schedulers with as many places.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use serde_json::{Value, json};
use tessera_api_types::{ArrayRange, SubmitRequest};
use tessera_load_tests::cluster::{Plan, command, is_final};
use tessera_load_tests::peers::Output;
use tessera_load_tests::{machine, peers, postgres, wait};

/// Slices of the smallest profile on one GPU.
const SLICES: usize = 7;

#[derive(Parser)]
struct Arguments {
    /// Jobs that do nothing.
    #[arg(long, default_value_t = 10_000)]
    jobs: u32,
    /// Numbers of nodes to measure.
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    nodes: Vec<usize>,
    /// Python that has the package hyperqueue, for the comparison.
    #[arg(long)]
    hyperqueue_python: Option<PathBuf>,
    /// Measure Slurm as well; its programs must be installed, and it needs root.
    #[arg(long)]
    slurm: bool,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut rows = Vec::new();
    for &nodes in &arguments.nodes {
        for output in [Output::Discarded, Output::Kept] {
            rows.push(measure(&arguments, nodes, output)?);
        }
    }
    let result = json!({
        "what": "no-op jobs through whole clusters, from the submit to the end of the last",
        "machine": machine::facts(),
        "jobs": arguments.jobs,
        "slices_per_node": SLICES,
        "clusters": rows,
    });
    machine::report(&result, arguments.out.as_deref())
}

fn measure(arguments: &Arguments, nodes: usize, output: Output) -> anyhow::Result<Value> {
    machine::forget_removed_files();
    let plan = (1..=nodes).fold(Plan::new(), |plan, n| plan.node(&format!("n{n}"), "a100-40gb"));
    let cluster = plan.start();
    // Creates every layout once, since the figure measures jobs, not layouts.
    cluster.submit(&array(u32::try_from(nodes * SLICES * 2)?, output));
    wait_drained(&cluster, Duration::from_secs(300));

    let started = Instant::now();
    let submitted = cluster.submit(&array(arguments.jobs, output));
    anyhow::ensure!(submitted.tasks == arguments.jobs, "{submitted:?}");
    wait_drained(&cluster, Duration::from_secs(1_200));
    let took = started.elapsed();
    let counts = cluster.counts();
    anyhow::ensure!(counts.by_state.get("succeeded") == Some(&counts.total), "{counts:?}");
    let (rounds, bytes) = recorded(&cluster)?;
    drop(cluster);

    let ours = f64::from(arguments.jobs) / took.as_secs_f64();
    let theirs = match &arguments.hyperqueue_python {
        Some(python) => {
            machine::forget_removed_files();
            let tasks = usize::try_from(arguments.jobs)?;
            Some(peers::hyperqueue_throughput(python, tasks, SLICES, nodes, output)?)
        }
        None => None,
    };
    // The handling of outputs makes no difference at its pace: measured once.
    let slurm = match output {
        Output::Discarded if arguments.slurm => Some(peers::slurm_throughput(nodes * SLICES)?),
        _ => None,
    };
    Ok(json!({
        "nodes": nodes,
        "outputs": output.word(),
        "secs": took.as_secs_f64(),
        "jobs_per_sec": ours,
        "recorded_rounds": rounds,
        "recorded_bytes_per_job": bytes / f64::from(arguments.jobs),
        "hyperqueue_tasks_per_sec": theirs,
        "ratio_to_hyperqueue": theirs.map(|theirs| ours / theirs),
        "slurm_tasks_per_sec": slurm,
        "ratio_to_slurm": slurm.map(|slurm| ours / slurm),
    }))
}

/// Returns how many rounds the controller recorded, and how many bytes they take.
fn recorded(cluster: &tessera_load_tests::cluster::Cluster) -> anyhow::Result<(u64, f64)> {
    let socket = cluster.controller_data().join("pg/s").display().to_string();
    let output = Command::new(postgres::program("psql"))
        .args(["-h", &socket, "-U", "tessera", "-X", "-A", "-t", "-F", " ", "-d", "postgres", "-c"])
        .arg("SELECT count(*), sum(bytes) FROM placement_rounds")
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let (rounds, bytes) = text.trim().split_once(' ').context("two numbers")?;
    Ok((rounds.parse()?, bytes.parse()?))
}

fn array(tasks: u32, output: Output) -> SubmitRequest {
    let array = (tasks > 1).then_some(ArrayRange { first: 1, last: tasks });
    let given = matches!(output, Output::Discarded).then(|| "/dev/null".to_owned());
    SubmitRequest {
        array,
        gpu_profile: Some("1g.5gb".into()),
        // Where the peer runs its tasks too: all in one folder.
        work_dir: Some(std::env::temp_dir().display().to_string()),
        stdout: given.clone(),
        stderr: given,
        ..command(["/bin/true"])
    }
}

fn wait_drained(cluster: &tessera_load_tests::cluster::Cluster, within: Duration) {
    // Counting reads every job: at short intervals it would be a large part of the load.
    wait::until_every(Duration::from_millis(200), within, "every job at its end", || {
        let counts = cluster.counts();
        let over: u64 =
            counts.by_state.iter().filter(|(state, _)| is_final(state)).map(|(_, n)| n).sum();
        (over == counts.total).then_some(())
    });
}
