//! What users get of a live cluster, against what is due to them, over a half-life of usage in which all have jobs waiting.
//!
//! The controller has its default settings but for the half-life, which is a day by default. Nothing is known about the
//! jobs, and none can be moved. `tessera experiment FAIR-SHARE` measures the same in the simulator.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use serde_json::{Value, json};
use tessera_api_types::{ArrayRange, JobView, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, command};
use tessera_load_tests::{http, machine};
use tessera_simulator::cluster::number::count;
use time::OffsetDateTime;

#[derive(Parser)]
struct Arguments {
    /// The half-life of usage, and the length of each run, in seconds.
    #[arg(long, default_value_t = 120)]
    half_life_secs: u32,
    /// Runs of each case.
    #[arg(long, default_value_t = 2)]
    runs: u32,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// One user's jobs, all submitted at the start. Each needs a seventh of a GPU.
struct Demand {
    user: &'static str,
    shares: u32,
    jobs: u32,
    /// How long one runs, in thousandths of the half-life.
    lasts: u32,
}

struct Case {
    name: &'static str,
    gpus: &'static str,
    users: &'static [Demand],
}

/// Each user has more work than is due in a half-life.
const CASES: [Case; 2] = [
    Case {
        name: "2,000 short jobs of one user, 120 long ones of another",
        gpus: "a100-40gb",
        users: &[
            Demand { user: "many", shares: 1, jobs: 2_000, lasts: 15 },
            Demand { user: "few", shares: 1, jobs: 120, lasts: 70 },
        ],
    },
    Case {
        name: "three users with 1, 2 and 4 shares",
        gpus: "a100-40gb,a100-40gb",
        users: &[
            Demand { user: "one", shares: 1, jobs: 800, lasts: 10 },
            Demand { user: "two", shares: 2, jobs: 800, lasts: 15 },
            Demand { user: "four", shares: 4, jobs: 800, lasts: 20 },
        ],
    },
];

/// The memory of each job, which fits on the smallest slice.
const GIB: u64 = 4;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut rows = Vec::new();
    for case in &CASES {
        for run in 1..=arguments.runs {
            rows.push(play(case, run, arguments.half_life_secs)?);
            println!("{}", rows.last().map(Value::to_string).unwrap_or_default());
        }
    }
    let result = json!({
        "what": "what users got of a live cluster over a half-life, against what was due by their shares",
        "policy": "tessera",
        "machine": machine::facts(),
        "half_life_s": arguments.half_life_secs,
        "runs": rows,
    });
    machine::report(&result, arguments.out.as_deref())
}

fn play(case: &Case, run: u32, half_life_secs: u32) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let settings = folder.path().join("controller.toml");
    fs::write(&settings, settings_of(case, half_life_secs))?;
    let plan = Plan::new().node("n1", case.gpus);
    let cluster = plan.env("TESSERA_CONTROLLER_CONFIG", settings.display().to_string()).start();
    for demand in case.users {
        submit(&cluster, demand, half_life_secs)?;
    }
    let from = OffsetDateTime::now_utc();
    let lasts = Duration::from_secs(half_life_secs.into());
    std::thread::sleep(lasts);
    let jobs = cluster.all_jobs();
    let mut got: BTreeMap<&str, f64> = BTreeMap::new();
    for job in &jobs {
        *got.entry(job.user.as_str()).or_default() += slice_seconds(job, (from, from + lasts))?;
    }
    let waits = |user: &str| jobs.iter().any(|job| job.user == user && job.started_at.is_none());
    let all: f64 = got.values().sum();
    let shares: u32 = case.users.iter().map(|demand| demand.shares).sum();
    let mut worst = 0.0_f64;
    let mut users = Vec::new();
    for demand in case.users {
        anyhow::ensure!(waits(demand.user), "{} has no job that waits: submit more", demand.user);
        let part = got.get(demand.user).copied().unwrap_or(0.0) / all.max(1e-9);
        let due = f64::from(demand.shares) / f64::from(shares);
        worst = worst.max((part / due - 1.0).abs());
        users.push(json!({
            "user": demand.user,
            "got": thousandths(part),
            "due": thousandths(due),
            "ended": jobs.iter().filter(|job| job.user == demand.user && job.ended_at.is_some()).count(),
        }));
    }
    // Seven slices of each GPU.
    let slices = 7.0 * count(case.gpus.split(',').count());
    Ok(json!({
        "case": case.name,
        "run": run,
        "largest_deviation": thousandths(worst),
        "in_use": thousandths(all / (slices * f64::from(half_life_secs))),
        "users": users,
    }))
}

/// Each user is an account.
fn settings_of(case: &Case, half_life_secs: u32) -> String {
    let accounts = case.users.iter().map(|demand| {
        format!("{0} = {{ members = [\"{0}\"], share = {1} }}\n", demand.user, demand.shares)
    });
    let accounts: String = accounts.collect();
    format!("usage-half-life = \"{half_life_secs}s\"\n[accounts]\n{accounts}")
}

fn submit(cluster: &Cluster, demand: &Demand, half_life_secs: u32) -> anyhow::Result<()> {
    let millis = u64::from(half_life_secs) * u64::from(demand.lasts);
    let request = SubmitRequest {
        name: Some(format!("work of {}", demand.user)),
        gpu_memory_bytes: Some(GIB << 30),
        array: Some(ArrayRange { first: 1, last: demand.jobs }),
        ..command(["/bin/sleep".to_owned(), format!("{}.{:03}", millis / 1_000, millis % 1_000)])
    };
    let bearer = format!("Bearer {}", cluster.token_for(demand.user, "user"));
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    let body = serde_json::to_vec(&request)?;
    let answer = http::request(cluster.http(), "POST", "/v1/jobs", &headers, Some(&body))?;
    anyhow::ensure!(matches!(answer.status, 200..=202), "{}: {}", demand.user, answer.text());
    Ok(())
}

/// Returns for how long a job held compute slices in a span, times their number.
fn slice_seconds(
    job: &JobView,
    (from, until): (OffsetDateTime, OffsetDateTime),
) -> anyhow::Result<f64> {
    let Some(started) = job.started_at else { return Ok(0.0) };
    let profile = job.profile.as_deref().with_context(|| format!("job {} has no slice", job.id))?;
    let slices: u32 =
        profile.split('g').next().and_then(|digits| digits.parse().ok()).with_context(|| {
            format!("job {} has a slice of an unknown profile: {profile}", job.id)
        })?;
    let ended = job.ended_at.unwrap_or(until).min(until);
    let held = (ended - started.max(from)).as_seconds_f64().max(0.0);
    Ok(held * f64::from(slices))
}

fn thousandths(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
