//! What it costs to establish who calls: the share of a request, and of the controller's processor time, that passes
//! until its caller is known and may go on.
//!
//! The controller itself counts that time (`tessera_http_admission_seconds_total`). With identity switched off, requests
//! would be faster by at most that.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, command, full_cluster};
use tessera_load_tests::lean::{Lean, get, post};
use tessera_load_tests::load::{closed_loop, open_loop};
use tessera_load_tests::machine::{self, Spread};
use tokio::runtime::Runtime;

/// Jobs in the queue while it is listed.
const QUEUED: u32 = 1_000;
/// Requests a second of a user: below the limit.
const USER_RATE: u32 = 400;

#[derive(Parser)]
struct Arguments {
    /// Connections that are kept open.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 6)]
    secs: u64,
    /// Rounds; each measures everything once, in turn.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rounds: Vec<Value> = (0..arguments.rounds)
        .map(|_| measure_round(&runtime, &arguments))
        .collect::<anyhow::Result<_>>()?;
    let median = |what: &str, figure: &str| {
        let value = |round: &Value| round[what][figure].as_f64().unwrap_or(f64::NAN);
        Spread::of(rounds.iter().map(value).collect()).at(500)
    };
    let kinds = ["submit_by_token", "submit_by_users_token", "queue_by_token", "queue_by_socket"];
    let medians = kinds.map(|what| {
        let of = |figure| median(what, figure);
        let figures = json!({
            "admission_us": of("admission_us"),
            "request_percent": of("request_percent"),
            "processor_percent": of("processor_percent"),
        });
        (what.to_owned(), figures)
    });
    let result = json!({
        "what": "time until the caller of a request is established",
        "machine": machine::facts(),
        "connections": arguments.connections,
        "median": medians.into_iter().collect::<serde_json::Map<_, _>>(),
        "rounds": rounds,
    });
    machine::report(&result, arguments.out.as_deref())
}

fn measure_round(runtime: &Runtime, arguments: &Arguments) -> anyhow::Result<Value> {
    let time = Duration::from_secs(arguments.secs);
    let cluster = full_cluster();
    let (address, connections) = (cluster.http(), arguments.connections);
    let (token, users) = (cluster.token(), cluster.token_for("ada", "user"));
    let body = serde_json::to_vec(&single()).expect("requests are plain data");
    let submit = post("/v1/jobs", Some(&token), &body);
    let submits = cost(&cluster, || {
        let load = closed_loop(address, submit.clone(), connections, time);
        Ok(runtime.block_on(load)?.latency)
    })?;
    let submit = post("/v1/jobs", Some(&users), &body);
    let of_user = cost(&cluster, || {
        let load = open_loop(address, submit.clone(), connections, USER_RATE, time);
        Ok(runtime.block_on(load)?.latency)
    })?;
    drop(cluster);

    let cluster = full_cluster();
    let array = SubmitRequest {
        array: Some(tessera_api_types::ArrayRange { first: 1, last: QUEUED }),
        ..single()
    };
    cluster.submit(&array);
    let list = get("/v1/jobs?limit=100", Some(&cluster.token()));
    let address = cluster.http();
    let queue = cost(&cluster, || {
        let load = closed_loop(address, list.clone(), 1, time);
        Ok(runtime.block_on(load)?.latency)
    })?;
    let socket = cluster.controller_data().join("api.sock");
    let list = get("/v1/jobs?limit=100", None);
    let by_socket = cost(&cluster, || {
        runtime.block_on(async {
            let mut lean = Lean::connect_unix(&socket).await?;
            let (started, mut millis) = (Instant::now(), Vec::new());
            while started.elapsed() < time {
                let sent = Instant::now();
                anyhow::ensure!(lean.send(&list).await? == 200, "the queue was not listed");
                millis.push(sent.elapsed().as_secs_f64() * 1_000.0);
            }
            Ok(Spread::of(millis))
        })
    })?;
    Ok(json!({
        "submit_by_token": submits,
        "submit_by_users_token": of_user,
        "queue_by_token": queue,
        "queue_by_socket": by_socket,
    }))
}

/// Runs a load, and returns what of its requests was establishing their callers.
fn cost(cluster: &Cluster, load: impl FnOnce() -> anyhow::Result<Spread>) -> anyhow::Result<Value> {
    let (before, used) = (counters(cluster)?, processor_secs(cluster));
    let latency = load()?;
    let (after, used) = (counters(cluster)?, processor_secs(cluster) - used);
    let (requests, admission) = (after.0 - before.0, after.1 - before.1);
    anyhow::ensure!(requests > 0.0 && admission > 0.0, "the controller counted no request");
    let each_us = admission / requests * 1e6;
    Ok(json!({
        "requests": requests,
        "admission_us": each_us,
        "latency": latency.millis(),
        "request_percent": each_us / (latency.at(500) * 1_000.0) * 100.0,
        "processor_percent": admission / used * 100.0,
    }))
}

/// Returns how many requests the controller answered, and the time in which it established their callers.
fn counters(cluster: &Cluster) -> anyhow::Result<(f64, f64)> {
    let text = cluster.call("GET", "/metrics", None).expect(200).text();
    let sum = |name: &str| -> f64 {
        let own =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
        text.lines().filter(own).filter_map(value).sum()
    };
    Ok((sum("tessera_http_requests_total"), sum("tessera_http_admission_seconds_total")))
}

/// Returns the processor time that the controller used so far. Clock ticks are hundredths of a second on Linux.
fn processor_secs(cluster: &Cluster) -> f64 {
    let is_controller = |pid: &&u32| {
        fs::read_link(format!("/proc/{pid}/exe"))
            .is_ok_and(|program| program.ends_with("tessera-controller"))
    };
    let of = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        let ticks = fields.split_whitespace().skip(11).take(2);
        ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
    };
    cluster.processes().iter().filter(is_controller).map(of).sum()
}

fn single() -> SubmitRequest {
    SubmitRequest {
        gpu_memory_bytes: Some(4_000_000_000),
        time_limit_secs: Some(14_400),
        ..command(["python3", "train.py", "--epochs", "90"])
    }
}
