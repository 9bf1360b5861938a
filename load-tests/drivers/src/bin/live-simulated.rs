//! Whether a controller decides as the simulator does: the same jobs through both, with the same policy.
//!
//! No job can be moved, and nothing is known about the jobs at first. Where tasks repeat, the
//! controller and the simulator both learn from nothing.
//!
//! A controller's job takes some milliseconds longer than its program: its start, and the notice of its end. These are
//! measured before, with jobs that run one after the other, and each simulated job starts up for so long.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tessera_api_types::{JobView, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, command};
use tessera_load_tests::machine;
use tessera_model::Bytes;
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::{JobClass, SimulatedJob};
use tessera_simulator::cluster::number::count;
use tessera_simulator::cluster::overheads::{Overheads, RunTimeKnowledge};
use tessera_simulator::cluster::{SimulationSetup, policy, run};

#[derive(Parser)]
struct Arguments {
    /// Jobs of each run.
    #[arg(long, default_value_t = 80)]
    jobs: usize,
    /// Mean time between two submits, in milliseconds.
    #[arg(long, default_value_t = 600)]
    gap_ms: u64,
    /// Number of seeds, each with one run of each scene.
    #[arg(long, default_value_t = 2)]
    seeds: u64,
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The cluster of both: node and model.
const NODES: [(&str, &str); 2] = [("n1", "a100-40gb"), ("n2", "a30-24gb")];

/// Tasks of the scene in which tasks repeat.
const TASKS: u64 = 8;

/// Jobs with which the controller's own time of a job is measured, and their length.
const MEASURED_JOBS: usize = 9;
const MEASURED_MS: u64 = 500;

/// Minimum difference of a start that is shown. Chosen: more than a launch and the cutting of a
/// slice take.
const DIFFERS_MS: u128 = 500;

struct TraceJob {
    name: String,
    submit_ms: u64,
    runs_ms: u64,
    gib: u64,
}

/// When a job was submitted, began and ended, in milliseconds.
#[derive(Clone, Copy)]
struct Course {
    submitted: i128,
    began: i128,
    ended: i128,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let own_ms = own_time()?;
    println!("a job takes {own_ms} ms longer than its program");
    let mut rows = Vec::new();
    for repeats in [false, true] {
        for seed in arguments.first_seed..arguments.first_seed + arguments.seeds {
            let jobs = trace(&arguments, repeats, seed);
            let times = if repeats { RunTimeKnowledge::Learned } else { RunTimeKnowledge::Unknown };
            let (live, simulated) = (run_live(&jobs)?, run_simulated(&jobs, own_ms, times, seed)?);
            rows.push(compare(repeats, seed, &live, &simulated));
            println!("{}", rows.last().map(Value::to_string).unwrap_or_default());
        }
    }
    let result = json!({
        "what": "the same jobs through a controller with simulated GPUs and through the simulator",
        "policy": "tessera",
        "machine": machine::facts(),
        "jobs": arguments.jobs,
        "gap_ms": arguments.gap_ms,
        "start_up_ms": own_ms,
        "runs": rows,
    });
    machine::report(&result, arguments.out.as_deref())
}

/// Draws jobs of 1 to 20 seconds, a few of which are long.
fn trace(arguments: &Arguments, repeats: bool, seed: u64) -> Vec<TraceJob> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut submit_ms = 0;
    (0..arguments.jobs)
        .map(|number| {
            submit_ms += random.random_range(0..=2 * arguments.gap_ms);
            let task = if repeats { random.random_range(0..TASKS) } else { number as u64 };
            // A task has one length and one size.
            let mut of_task = StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(task));
            let runs_ms = match of_task.random_range(0..10) {
                0 => of_task.random_range(10_000..20_000),
                _ => of_task.random_range(1_000..6_000),
            };
            let gib = [2, 4, 4, 8, 8, 16, 20][of_task.random_range(0..7)];
            TraceJob { name: format!("task-{task}"), submit_ms, runs_ms, gib }
        })
        .collect()
}

/// Measures by how many milliseconds a job takes longer than its program, at the median: from its submit to its known end, on
/// an idle slice that stands.
fn own_time() -> anyhow::Result<u64> {
    let cluster = Plan::new().node(NODES[0].0, NODES[0].1).start();
    let mut own = Vec::new();
    for _ in 0..MEASURED_JOBS {
        let secs = format!("{}.{:03}", MEASURED_MS / 1_000, MEASURED_MS % 1_000);
        let request = SubmitRequest {
            gpu_memory_bytes: Some(4 << 30),
            ..command(["/bin/sleep".to_owned(), secs])
        };
        let id = cluster.submit(&request).job_id.to_string();
        let Course { submitted, ended, .. } = course(&cluster, &id)?;
        own.push(u64::try_from(ended - submitted)?.saturating_sub(MEASURED_MS));
    }
    own.sort_unstable();
    Ok(own[own.len() / 2])
}

fn run_live(jobs: &[TraceJob]) -> anyhow::Result<Vec<Course>> {
    // The simulated driver takes as long to create and destroy instances as the simulator assumes.
    let mut plan = Plan::new().env("TESSERA_SIM_LATENCY", "1");
    for (node, model) in NODES {
        plan = plan.node(node, model);
    }
    let cluster = plan.start();
    let began = Instant::now();
    let mut ids = Vec::new();
    for job in jobs {
        let due = Duration::from_millis(job.submit_ms);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let secs = format!("{}.{:03}", job.runs_ms / 1_000, job.runs_ms % 1_000);
        let request = SubmitRequest {
            name: Some(job.name.clone()),
            gpu_memory_bytes: Some(job.gib << 30),
            ..command(["/bin/sleep".to_owned(), secs])
        };
        ids.push(cluster.submit(&request).job_id);
    }
    ids.into_iter().map(|id| course(&cluster, &id.to_string())).collect()
}

/// Waits for a job's end.
fn course(cluster: &Cluster, id: &str) -> anyhow::Result<Course> {
    loop {
        let path = format!("/v1/jobs/{id}/wait?timeout_secs=20");
        let job: JobView = cluster.call("GET", &path, None).expect(200).json();
        if job.state == "succeeded" {
            let ms = |at: time::OffsetDateTime| at.unix_timestamp_nanos() / 1_000_000;
            let missing = || anyhow::anyhow!("job {id} has no times");
            return Ok(Course {
                submitted: ms(job.submitted_at),
                began: ms(job.started_at.ok_or_else(missing)?),
                ended: ms(job.ended_at.ok_or_else(missing)?),
            });
        }
        anyhow::ensure!(
            matches!(
                job.state.as_str(),
                "queued" | "reserved" | "starting" | "running" | "stopping"
            ),
            "job {id} is {}",
            job.state
        );
    }
}

fn run_simulated(
    jobs: &[TraceJob],
    own_ms: u64,
    times: RunTimeKnowledge,
    seed: u64,
) -> anyhow::Result<Vec<Course>> {
    let simulated: Vec<SimulatedJob> = jobs
        .iter()
        .map(|job| SimulatedJob {
            name: job.name.clone(),
            user: "root".to_owned(),
            account: None,
            shares: 1,
            submit_ms: job.submit_ms,
            class: JobClass::Offline,
            priority: 5,
            deadline_ms: None,
            limit_ms: None,
            place: None,
            // A program that sleeps is as fast on every slice.
            times: BTreeMap::from([("*".to_owned(), BTreeMap::from([(1, job.runs_ms)]))]),
            requested: Bytes::new(job.gib << 30),
            memory_at_start: Bytes::ZERO,
            memory_at_end: Bytes::ZERO,
            demand: None,
            busy: None,
            transfer: 0,
            power_milliwatts: None,
            start_up_ms: own_ms,
            restore_ms: None,
            iterations: None,
            gang: None,
        })
        .collect();
    let models: Vec<&str> = NODES.iter().map(|(_, model)| *model).collect();
    let fleet = GpuFleet::parse(&models.join(","))?;
    let decides = policy("tessera")?;
    let setup = SimulationSetup {
        jobs: &simulated,
        fleet: &fleet,
        policy: decides.as_ref(),
        overheads: Overheads { times, ..Overheads::default() },
        round_ms: 0,
        seed,
        plot: false,
    };
    let outcome = run(setup, &mut |_| {}).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(outcome
        .jobs
        .iter()
        .map(|job| Course {
            submitted: job.submit_ms.into(),
            began: job.start_ms.into(),
            ended: job.end_ms.into(),
        })
        .collect())
}

fn compare(repeats: bool, seed: u64, live: &[Course], simulated: &[Course]) -> Value {
    let (own, theirs) = (start_order(live), start_order(simulated));
    let same = own.iter().zip(&theirs).filter(|(a, b)| a == b).count();
    let in_order = longest_common_order(&own, &theirs);
    let mean = |of: &[Course], from: fn(&Course) -> i128, to: fn(&Course) -> i128| {
        let sum: i128 = of.iter().map(|course| to(course) - from(course)).sum();
        count(usize::try_from(sum).unwrap_or_default()) / count(of.len())
    };
    let completion = |of: &[Course]| mean(of, |c| c.submitted, |c| c.ended);
    let wait = |of: &[Course]| mean(of, |c| c.submitted, |c| c.began);
    json!({
        "times": if repeats { "learned from nothing" } else { "unknown" },
        "seed": seed,
        "started_in_the_same_position": count_ratio(same, own.len()),
        "started_in_the_same_order": count_ratio(in_order, own.len()),
        "mean_completion_s": { "live": completion(live) / 1e3, "simulated": completion(simulated) / 1e3 },
        "mean_wait_s": { "live": wait(live) / 1e3, "simulated": wait(simulated) / 1e3 },
        "mean_ratio": completion(live) / completion(simulated),
        "first_that_differ": first_that_differ(live, simulated),
    })
}

/// Returns the first jobs that began at another time, in milliseconds after the first submit.
fn first_that_differ(live: &[Course], simulated: &[Course]) -> Vec<Value> {
    let first = |of: &[Course]| of.first().map_or(0, |course| course.submitted);
    let (zero, simulated_zero) = (first(live), first(simulated));
    let mut pairs: Vec<_> = live.iter().zip(simulated).enumerate().collect();
    pairs.sort_by_key(|(_, (_, simulated))| simulated.began);
    let differ = pairs.iter().filter(|(_, (live, simulated))| {
        (live.began - zero).abs_diff(simulated.began - simulated_zero) > DIFFERS_MS
    });
    let shown = differ.take(4).map(|(job, (live, simulated))| {
        json!({
            "job": job + 1,
            "live": i64::try_from(live.began - zero).ok(),
            "simulated": i64::try_from(simulated.began - simulated_zero).ok(),
        })
    });
    shown.collect()
}

fn count_ratio(part: usize, all: usize) -> f64 {
    count(part) / count(all.max(1))
}

/// Returns the jobs in the order in which they began.
fn start_order(courses: &[Course]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..courses.len()).collect();
    order.sort_by_key(|job| (courses[*job].began, *job));
    order
}

/// Returns how many jobs follow each other directly in both orders.
fn longest_common_order(one: &[usize], other: &[usize]) -> usize {
    let mut row = vec![0; other.len() + 1];
    for job in one {
        let mut diagonal = 0;
        for (at, candidate) in other.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = if job == candidate { diagonal + 1 } else { above.max(row[at]) };
            diagonal = above;
        }
    }
    row.last().copied().unwrap_or(0)
}
