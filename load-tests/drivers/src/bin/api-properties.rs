//! Requests that are generated from the description of the API, for each role. None may end in an error of the
//! server, or in an answer that is not described.
//!
//! Schemathesis generates them: single ones, and sequences in which one uses what another one made. The
//! jobs among them never run, since their users have no accounts here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use serde_json::{Value, json};
use tessera_load_tests::cluster::{Cluster, Plan};
use tessera_load_tests::{console, machine};

/// Checks that every answer must pass.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
/// How often jobs are cancelled.
const CANCEL_EVERY: Duration = Duration::from_secs(1);
/// Routes whose answers last as long as the client reads.
const STREAMS: [&str; 1] = ["/v1/events"];
/// The users of the tokens: none is an account of this machine.
const CALLERS: [(&str, &str); 4] = [
    ("fuzz-metrics", "metrics"),
    ("fuzz-user", "user"),
    ("fuzz-operator", "operator"),
    ("fuzz-admin", "admin"),
];

#[derive(Parser)]
struct Arguments {
    /// A Python with the package schemathesis.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Maximum number of cases for each route and phase.
    #[arg(long, default_value_t = 100)]
    cases: u32,
    /// Roles to test; all by default.
    #[arg(long, value_delimiter = ',')]
    roles: Vec<String>,
    /// Seed of the generator.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let version = Command::new(&arguments.python)
        .args(["-c", "import schemathesis; print(schemathesis.__version__)"])
        .output()
        .with_context(|| format!("{} does not run", arguments.python.display()))?;
    if !version.status.success() {
        eprintln!(
            "SKIPPED: {} has no schemathesis: pip install schemathesis",
            arguments.python.display()
        );
        return Ok(());
    }
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let cluster = Plan::new().run_as_submitter().node("n1", "a100-40gb").start();
    let folder = cluster.scratch();
    let mut roles = serde_json::Map::new();
    let (mut cases, mut failed) = (0, Vec::new());
    for (user, role) in CALLERS {
        if !arguments.roles.is_empty() && !arguments.roles.iter().any(|chosen| chosen == role) {
            continue;
        }
        let report =
            while_jobs_end(&cluster, || generate(&arguments, &cluster, (user, role), &folder))?;
        let generated = report["test_cases"]["generated"].as_u64().unwrap_or(0);
        ensure!(generated > 0, "nothing was generated for {role}");
        cases += generated;
        let failures = report["failures"].as_array().cloned().unwrap_or_default();
        failed.extend(failures.iter().map(|failure| format!("{role}: {failure}")));
        roles.insert(
            role.to_owned(),
            json!({
                "cases": generated,
                "routes": report["operations"]["tested"],
                "kinds_of_failures": failures.len(),
                "seconds": report["running_time"],
            }),
        );
    }
    let result = json!({
        "what": "requests generated from the description of the API, single ones and sequences, for each role",
        "machine": machine::facts(),
        "schemathesis": version,
        "checks": CHECKS,
        "seed": arguments.seed,
        "cases": cases,
        "failures": failed,
        "roles": roles,
    });
    machine::report(&result, arguments.out.as_deref())?;
    ensure!(failed.is_empty(), "{} kinds of failures", failed.len());
    Ok(())
}

/// Cancels all jobs again and again meanwhile. The node's certificate is among what is revoked, and an answer that waits
/// for a job's end, or that follows its output, lasts as long as the job waits.
fn while_jobs_end<T>(cluster: &Cluster, run: impl FnOnce() -> T) -> T {
    let (stop, stopped) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.recv_timeout(CANCEL_EVERY) == Err(RecvTimeoutError::Timeout) {
                // One that ended meanwhile is refused.
                let _ = console::tessera(cluster, &["cancel", "--state", "active"]);
            }
        });
        let result = run();
        drop(stop);
        result
    })
}

/// Sends generated requests as one caller, and returns the report.
fn generate(
    arguments: &Arguments,
    cluster: &Cluster,
    (user, role): (&str, &str),
    folder: &Path,
) -> anyhow::Result<Value> {
    let address = format!("http://{}", cluster.http());
    let report = folder.join(format!("{role}.json"));
    let mut command = Command::new(&arguments.python);
    command.args(["-m", "schemathesis.cli", "run"]).arg(format!("{address}/openapi.json"));
    command.args(["--url", &address, "--checks", CHECKS, "--continue-on-failure"]);
    command.args(["-H", &format!("Authorization: Bearer {}", cluster.token_for(user, role))]);
    command.args(["--phases", "examples,coverage,fuzzing,stateful", "--request-timeout", "30"]);
    command.args(["--max-examples", &arguments.cases.to_string()]);
    command.args(["--seed", &arguments.seed.to_string(), "--warnings", "off", "--no-color"]);
    command.args(["--suppress-health-check", "all"]);
    command.args(["--report", "json", "--report-json-path"]).arg(&report);
    for path in STREAMS {
        command.args(["--exclude-path", path]);
    }
    // Its own files are stored with the cluster's.
    let status = command.current_dir(folder).status().context("schemathesis does not run")?;
    let text = std::fs::read(&report).with_context(|| format!("{role}: no report ({status})"))?;
    Ok(serde_json::from_slice(&text)?)
}
