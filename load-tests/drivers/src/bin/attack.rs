//! Normal requests while thousands of slow connections and unfinished QUIC handshakes are open, and the
//! controller's memory afterwards.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use serde_json::json;
use tessera_load_tests::attack::{SlowClients, abandon_handshakes};
use tessera_load_tests::cluster::Plan;
use tessera_load_tests::lean::{Lean, get, post};
use tessera_load_tests::machine::{self, Spread};

#[derive(Parser)]
struct Arguments {
    /// Slow connections.
    #[arg(long, default_value_t = 2_000)]
    slow: usize,
    /// Unfinished handshakes.
    #[arg(long, default_value_t = 10_000)]
    handshakes: usize,
    /// Number of addresses that they come from.
    #[arg(long, default_value_t = 40)]
    attackers: usize,
    /// Seconds of normal requests before, and at least as many during the attack.
    #[arg(long, default_value_t = 15)]
    secs: u64,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// How long the release of memory may take: each deadline has passed by then.
const QUIET_SECS: u64 = 40;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    tessera_controller::listeners::raise_open_files();
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let pid = cluster.controller.pid().context("the controller runs")?;
    let (api, agents) = (cluster.http(), cluster.quic());
    let token = cluster.token_for("ada", "user");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        // A controller's one-time allocations are made before the first figure is taken.
        let _ = normal(api, &token, Duration::from_secs(arguments.secs)).await?;
        let before = normal(api, &token, Duration::from_secs(arguments.secs)).await?;
        let memory_before = Memory::of(pid);
        let (slow, handshakes, during) = {
            let slow = SlowClients::open(api, arguments.slow, arguments.attackers).await;
            let attack = tokio::spawn(abandon_handshakes(
                agents,
                arguments.handshakes,
                arguments.attackers,
            ));
            let mut during = Vec::new();
            let began = Instant::now();
            while !attack.is_finished() || began.elapsed() < Duration::from_secs(arguments.secs) {
                during.extend(normal(api, &token, Duration::from_secs(1)).await?);
            }
            let open = Memory::of(pid);
            let handshakes = attack.await??;
            (json!({
                "opened": slow.counts.opened.load(Ordering::Relaxed),
                "not_opened": slow.counts.failed.load(Ordering::Relaxed),
                "ended_by_the_server": slow.counts.ended.load(Ordering::Relaxed),
                "controller_during": open.json(),
            }), handshakes, during)
        };
        tokio::time::sleep(Duration::from_secs(QUIET_SECS)).await;
        let after = normal(api, &token, Duration::from_secs(arguments.secs)).await?;
        let memory_after = Memory::of(pid);
        anyhow::Ok(json!({
            "what": "normal requests (a read and a submit in turn, a connection for each ten) while slow \
                     connections and unfinished QUIC handshakes are open; memory before and after",
            "machine": machine::facts(),
            "slow_connections": arguments.slow,
            "addresses": arguments.attackers,
            "slow": slow,
            "handshakes": {
                "begun": handshakes.begun,
                "requested_to_prove_their_address": handshakes.retried,
                "proved_it_and_fell_silent": handshakes.abandoned,
            },
            "requests_before": Spread::of(before).millis(),
            "requests_during": Spread::of(during).millis(),
            "requests_after": Spread::of(after).millis(),
            "controller_before": memory_before.json(),
            "controller_after": memory_after.json(),
            "memory_after_to_before": memory_after.rss_mib / memory_before.rss_mib,
        }))
    })?;
    machine::report(&result, arguments.out.as_deref())
}

/// Sends normal requests for a while, and returns how long each took, in milliseconds. Every tenth one opens
/// a connection.
async fn normal(api: SocketAddr, token: &str, within: Duration) -> anyhow::Result<Vec<f64>> {
    let body = br##"{"script":"#!/bin/sh\ntrue","hold":true}"##;
    // The same submit is repeated: it is processed completely, but adds no jobs to memory.
    let submit = String::from_utf8(post("/v1/jobs", Some(token), body))?;
    let submit = submit.replacen("\r\n", "\r\nidempotency-key: attack\r\n", 1);
    let requests = [get("/v1/jobs?limit=10", Some(token)), submit.into_bytes()];
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < within {
        let mut connection: Option<Lean> = None;
        for index in 0..10 {
            let started = Instant::now();
            let mut open = match connection.take() {
                Some(open) => open,
                None => Lean::connect(api).await?,
            };
            let status = open.send(&requests[index % 2]).await?;
            times.push(started.elapsed().as_secs_f64() * 1_000.0);
            anyhow::ensure!(
                (200..300).contains(&status),
                "status {status}: {}",
                String::from_utf8_lossy(open.body())
            );
            connection = Some(open);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(times)
}

/// Memory of the controller.
struct Memory {
    rss_mib: f64,
    files: usize,
}

impl Memory {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        let files = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Self { rss_mib: kib.unwrap_or(0.0) / 1024.0, files }
    }

    fn json(&self) -> serde_json::Value {
        json!({ "rss_mib": self.rss_mib, "open_files": self.files })
    }
}
