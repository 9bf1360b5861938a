//! How many jobs a second are accepted durably over REST, compared with the ceiling that the same
//! libraries, database and machine have.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use tessera_api_types::{ArrayRange, SubmitRequest};
use tessera_load_tests::cluster::{SOON, full_cluster};
use tessera_load_tests::daemon::Daemon;
use tessera_load_tests::lean::post;
use tessera_load_tests::load::{Outcome, closed_loop, open_loop};
use tessera_load_tests::{bare, http, machine, ports, wait};
use tokio::runtime::Runtime;

/// Number of tasks of an array.
const ARRAY_TASKS: u32 = 1_000;

#[derive(Parser)]
struct Arguments {
    /// Connections that are kept open.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 10)]
    secs: u64,
    /// Jobs a second at which the latency is measured.
    #[arg(long, default_value_t = 5_000)]
    open_loop: u32,
    /// Rounds; each measures everything once, in turn.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Serve as the ceiling instead, at this address.
    #[arg(long, hide = true, requires = "database")]
    bare: Option<SocketAddr>,
    #[arg(long, hide = true)]
    database: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let (Some(address), Some(database)) = (arguments.bare, &arguments.database) {
        return bare::serve(address, database);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rounds: Vec<Value> = (0..arguments.rounds)
        .map(|_| measure_round(&runtime, &arguments))
        .collect::<anyhow::Result<_>>()?;
    let median = |path: [&str; 2]| {
        let value = |round: &Value| round[path[0]][path[1]].as_f64().unwrap_or(0.0);
        machine::Spread::of(rounds.iter().map(value).collect()).at(500)
    };
    let (ours, ceiling) = (median(["single", "per_sec"]), median(["bare", "per_sec"]));
    let result = json!({
        "what": "jobs accepted durably over REST",
        "machine": machine::facts(),
        "connections": arguments.connections,
        "body_bytes": body(&single()).len(),
        "median": {
            "single_per_sec": ours,
            "bare_group_commit_per_sec": ceiling,
            "single_to_bare_ratio": ours / ceiling,
            "array_tasks_per_sec": median(["array", "tasks_per_sec"]),
            "open_loop_p99_ms": median(["open_loop", "p99_ms"]),
        },
        "rounds": rounds,
    });
    machine::report(&result, arguments.out.as_deref())
}

fn measure_round(runtime: &Runtime, arguments: &Arguments) -> anyhow::Result<Value> {
    let time = Duration::from_secs(arguments.secs);
    let cluster = full_cluster();
    let (address, connections) = (cluster.http(), arguments.connections);
    let request = post("/v1/jobs", Some(&cluster.token()), &body(&single()));
    let single = runtime.block_on(closed_loop(address, request, connections, time))?;
    drop(cluster);

    let cluster = full_cluster();
    let address = cluster.http();
    let request = post("/v1/jobs", Some(&cluster.token()), &body(&self::single()));
    let rate = arguments.open_loop;
    let open = runtime.block_on(open_loop(address, request, connections, rate, time))?;
    drop(cluster);

    let mut cluster = full_cluster();
    let address = cluster.http();
    let array =
        SubmitRequest { array: Some(ArrayRange { first: 1, last: ARRAY_TASKS }), ..self::single() };
    let array = runtime.block_on(closed_loop(
        address,
        post("/v1/jobs", Some(&cluster.token()), &body(&array)),
        4,
        time,
    ))?;

    // The ceiling uses the same server with the same settings.
    let bare = ports::free();
    let url = cluster.database.as_ref().map(|database| database.url()).unwrap_or_default();
    let mut daemon = Daemon::new("bare", std::env::current_exe()?, cluster.folder()).args([
        "--bare",
        &bare.to_string(),
        "--database",
        &url,
    ]);
    daemon.start();
    wait::until(SOON, "the bare server", || http::request(bare, "GET", "/healthz", &[], None).ok());
    cluster.agents[0].kill();
    cluster.controller.kill();
    let ceiling = post("/bare", None, &body(&self::single()));
    let ceiling = runtime.block_on(closed_loop(bare, ceiling, connections, time))?;
    Ok(json!({
        "single": shown(&single),
        "open_loop": shown(&open),
        "array": {
            "requests": array.answered,
            "refused": array.refused,
            "tasks_per_sec": array.per_sec() * f64::from(ARRAY_TASKS),
            "latency": array.latency.millis(),
        },
        "bare": shown(&ceiling),
    }))
}

/// Returns a typical job of a lab user: a script with a name, an environment, limits and an output file.
fn single() -> SubmitRequest {
    SubmitRequest {
        name: Some("resnet50-cifar".into()),
        user: Some("ada".into()),
        script: Some(
            "#!/bin/bash\nset -euo pipefail\nsource /opt/conda/bin/activate torch\n\
             cd /home/ada/resnet\npython3 train.py --epochs 90 --batch 256 --lr 0.1 \\\n  \
             --data /data/cifar10 --checkpoint /scratch/ada/resnet50\n"
                .into(),
        ),
        env: [("OMP_NUM_THREADS".into(), "8".into()), ("WANDB_PROJECT".into(), "cifar".into())]
            .into(),
        stdout: Some("/home/ada/logs/%x-%j.out".into()),
        gpu_memory_bytes: Some(4_000_000_000),
        time_limit_secs: Some(14_400),
        ..SubmitRequest::default()
    }
}

fn body(request: &SubmitRequest) -> Vec<u8> {
    serde_json::to_vec(request).expect("requests are plain data")
}

fn shown(outcome: &Outcome) -> Value {
    let mut shown = outcome.latency.millis();
    shown["per_sec"] = json!(outcome.per_sec().round());
    shown["refused"] = json!(outcome.refused);
    shown
}
