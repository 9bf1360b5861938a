//! Every policy on every workload, over seeds: the table of `docs/policies.md`, and how far MISO's
//! re-implementation is from its authors' program.

#[path = "policies/drawing.rs"]
mod drawing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use clap::Parser;
use serde_json::{Map, Value, json};
use tessera_load_tests::machine;
use tessera_placement::Policy;
use tessera_simulator::cluster::bounds::WorkloadBounds;
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::{JobClass, SimulatedJob};
use tessera_simulator::cluster::metrics::{RunOutcome, Summary};
use tessera_simulator::cluster::number::{count, float, seconds};
use tessera_simulator::cluster::overheads::Overheads;
use tessera_simulator::cluster::{SimulationSetup, policy_with, run, workload};

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// The first seed. The settings of `tessera` were chosen on 101 to 110.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Only cases whose name holds this.
    #[arg(long, default_value = "")]
    only: String,
    /// Only these policies.
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// What policies know of run times: known, learned (online, from nothing) or unknown.
    #[arg(long, default_value = "known")]
    times: String,
    /// Percentage of jobs that can be moved.
    #[arg(long, default_value_t = 100)]
    movable: u8,
    /// Other workloads on other GPUs than the cases', as `WORKLOAD@GPUS`; a workload may be a file such as
    /// `batch-SEED.jsonl`.
    #[arg(long, value_delimiter = ';')]
    also: Vec<String>,
    /// Other settings of `tessera`, for experiments, as `name=number`.
    #[arg(long, value_delimiter = ',')]
    set: Vec<String>,
    /// An earlier result. Its rows are kept where this run has none, so that a change of one policy needs no run of the
    /// others.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
    /// File for the result as a drawing.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// One row of the table: a workload on a cluster.
struct Case<'a> {
    name: &'a str,
    workload: &'a str,
    cluster: &'a str,
    layout: &'static str,
    overheads: &'static str,
    round_ms: u64,
    seeds_max: u64,
    /// Results of the authors' own program: policy, mean JCT and makespan in seconds.
    authors: &'static [(&'static str, f64, f64)],
}

const A100: &str = "8xa100-40gb";
const STATIC: &str = "3g.20gb,2g.10gb,2g.10gb";

/// MISO's program looks at its cluster every ten seconds.
const MISO_ROUND_MS: u64 = 10_000;

const CASES: &[Case<'static>] = &[
    Case {
        name: "miso-100-recover",
        workload: "miso",
        cluster: A100,
        layout: STATIC,
        overheads: "recover",
        round_ms: MISO_ROUND_MS,
        seeds_max: 10,
        authors: &[
            ("exclusive", 2468.91, 12212.0),
            ("miso", 1041.683, 10424.3),
            ("oracle", 1032.948, 10303.2),
            ("static-promote", 1237.877, 13070.6),
        ],
    },
    Case {
        name: "miso-100-30s",
        workload: "miso",
        cluster: A100,
        layout: "4g.20gb,2g.10gb,1g.5gb",
        overheads: "30s",
        round_ms: MISO_ROUND_MS,
        seeds_max: 10,
        authors: &[
            ("exclusive", 2468.91, 12212.0),
            ("miso", 1208.13, 11516.8),
            ("oracle", 1093.605, 10304.2),
            ("static-promote", 1250.688, 13032.2),
        ],
    },
    Case {
        name: "miso-1000-30s",
        workload: "miso:jobs=1000,gap=10",
        cluster: "40xa100-40gb",
        layout: STATIC,
        overheads: "30s",
        round_ms: MISO_ROUND_MS,
        seeds_max: 3,
        authors: &[
            ("exclusive", 5569.5033, 22933.3333),
            ("miso", 1704.313, 17741.6667),
            ("oracle", 1452.4163, 17404.6667),
            ("static-promote", 1517.361, 19942.3333),
        ],
    },
    Case {
        name: "dyna-p-50",
        workload: "dyna-p-50",
        cluster: "2xa30-24gb",
        layout: "2g.12gb,1g.6gb,1g.6gb",
        overheads: "recover",
        round_ms: 0,
        seeds_max: 10,
        authors: &[],
    },
    Case {
        name: "mmk-60",
        workload: "mmk-60",
        cluster: "4xa100-80gb",
        layout: "3g.40gb,2g.20gb,2g.20gb",
        overheads: "recover",
        round_ms: 0,
        seeds_max: 10,
        authors: &[],
    },
    Case {
        name: "mmk-1200",
        workload: "mmk-1200",
        cluster: "8xa100-80gb",
        layout: "3g.40gb,2g.20gb,2g.20gb",
        overheads: "recover",
        round_ms: 0,
        seeds_max: 3,
        authors: &[],
    },
    Case {
        name: "miso-100-recover-421",
        workload: "miso",
        cluster: A100,
        layout: "4g.20gb,2g.10gb,1g.5gb",
        overheads: "recover",
        round_ms: MISO_ROUND_MS,
        seeds_max: 10,
        authors: &[("static-promote", 1217.958, 12393.5)],
    },
    case("migm-ht1", "migm-ht1", "a100-40gb", 10),
    case("migm-ht2", "migm-ht2", "a100-40gb", 10),
    case("migm-ht3", "migm-ht3", "a100-40gb", 10),
    case("poisson", "poisson:jobs=300,gap=70", A100, 10),
    case("bursts", "bursts:jobs=300,gap=70", A100, 10),
    case("fragments", "fragments:jobs=300,gap=25", A100, 10),
    case("batch", "poisson:jobs=60,gap=0", "4xa100-40gb", 10),
    case("batch-fragments", "fragments:jobs=100,gap=0", "4xa100-40gb", 10),
    case("serving", "serving:jobs=300,gap=150", "4xa100-40gb", 5),
];

const fn case<'a>(name: &'a str, workload: &'a str, cluster: &'a str, seeds_max: u64) -> Case<'a> {
    let (layout, overheads) = (STATIC, "recover");
    Case { name, workload, cluster, layout, overheads, round_ms: 0, seeds_max, authors: &[] }
}

/// A policy's runs on one case.
#[derive(Default)]
struct Runs {
    policy: String,
    summaries: Vec<Summary>,
    /// The mean time of online jobs, in seconds, of each run that had some.
    online_s: Vec<f64>,
    took_s: f64,
    /// Why a run was refused.
    refused: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(&arguments.only)) {
        rows.push(table(case, &arguments)?);
    }
    for also in &arguments.also {
        let (workload, cluster) =
            also.split_once('@').context("--also is written WORKLOAD@GPUS")?;
        rows.push(table(&case(also, workload, cluster, u64::MAX), &arguments)?);
    }
    if let Some(keep) = &arguments.keep {
        let earlier: Value = serde_json::from_str(&std::fs::read_to_string(keep)?)?;
        rows = with_kept(earlier["cases"].as_array().context("no cases")?, rows);
    }
    if let Some(svg) = &arguments.svg {
        std::fs::write(svg, drawing::draw(&rows))?;
    }
    let result = json!({
        "what": "policies on workloads in the cluster simulator: means over seeds",
        "machine": machine::facts(),
        "cases": rows,
    });
    if let Some(out) = &arguments.out {
        std::fs::write(out, serde_json::to_string_pretty(&result)? + "\n")?;
    }
    Ok(())
}

/// Returns the earlier cases with the policies that were run again, then new cases.
fn with_kept(earlier: &[Value], rows: Vec<Value>) -> Vec<Value> {
    let mut cases = earlier.to_vec();
    for row in rows {
        let Some(known) = cases.iter_mut().find(|case| case["case"] == row["case"]) else {
            cases.push(row);
            continue;
        };
        let again = row["policies"].as_array().cloned().unwrap_or_default();
        for policy in again {
            let Some(all) = known["policies"].as_array_mut() else { continue };
            match all.iter_mut().find(|old| old["policy"] == policy["policy"]) {
                Some(old) => *old = policy,
                // A policy that is new has no earlier row.
                None => all.push(policy),
            }
        }
    }
    cases
}

/// Reads a workload: a built-in one, or a file, in whose name `SEED` stands for the seed.
fn jobs_of(workload: &str, seed: u64) -> anyhow::Result<Vec<SimulatedJob>> {
    if !workload.ends_with(".jsonl") {
        return Ok(workload::built_in(workload, seed)?.jobs);
    }
    let file = workload.replace("SEED", &seed.to_string());
    let text = std::fs::read_to_string(&file).with_context(|| file.clone())?;
    Ok(workload::file::read(&file, &text)?.jobs)
}

fn policies(arguments: &Arguments) -> anyhow::Result<Vec<Box<dyn Policy>>> {
    let set = settings(&arguments.set)?;
    let mut chosen: Vec<Box<dyn Policy>> = Vec::new();
    for name in tessera_lab_policies::all_names() {
        if !arguments.policy.is_empty() && !arguments.policy.iter().any(|p| p == name) {
            continue;
        }
        chosen.push(policy_with(name, &set)?);
    }
    Ok(chosen)
}

/// Reads the changed settings of `tessera`.
fn settings(set: &[String]) -> anyhow::Result<Map<String, Value>> {
    let pair = |text: &String| {
        let (name, value) = text.split_once('=').context("a setting is written name=number")?;
        Ok((name.to_owned(), serde_json::from_str(value)?))
    };
    set.iter().map(pair).collect()
}

/// Returns the mean time from submit to end of online jobs, in seconds.
fn online_s(jobs: &[SimulatedJob], outcome: &RunOutcome) -> Option<f64> {
    let online = jobs.iter().zip(&outcome.jobs).filter(|(job, _)| job.class == JobClass::Online);
    let times: Vec<f64> = online.map(|(_, done)| seconds(done.jct_ms())).collect();
    (!times.is_empty()).then(|| times.iter().sum::<f64>() / count(times.len()))
}

fn table(case: &Case<'_>, arguments: &Arguments) -> anyhow::Result<Value> {
    let mut overheads = Overheads::parse(case.overheads)?;
    overheads.times = serde_json::from_value(json!(arguments.times))
        .context("--times is known, learned or unknown")?;
    let seeds = arguments.seeds.min(case.seeds_max);
    let mut by_policy: BTreeMap<usize, Runs> = BTreeMap::new();
    for seed in arguments.first_seed..arguments.first_seed + seeds {
        let mut jobs = jobs_of(case.workload, seed)?;
        workload::limit_movable(&mut jobs, arguments.movable, seed);
        let free = GpuFleet::parse(case.cluster)?;
        let mut cut = free.clone();
        if arguments.policy.is_empty() || arguments.policy.iter().any(|p| p.starts_with("static")) {
            cut.cut(case.layout)?;
        }
        let bounds = WorkloadBounds::new(&jobs, &free, &overheads);
        for (place, policy) in policies(arguments)?.iter().enumerate() {
            let fleet = if policy.name().starts_with("static") { &cut } else { &free };
            let setup = SimulationSetup {
                jobs: &jobs,
                fleet,
                policy: policy.as_ref(),
                overheads,
                round_ms: case.round_ms,
                seed,
                plot: false,
            };
            let begun = Instant::now();
            let done = run(setup, &mut |_| {});
            let runs = by_policy.entry(place).or_default();
            policy.name().clone_into(&mut runs.policy);
            runs.took_s += begun.elapsed().as_secs_f64();
            match done {
                Ok(outcome) => {
                    runs.summaries.push(Summary::new(&outcome, &bounds));
                    runs.online_s.extend(online_s(&jobs, &outcome));
                }
                Err(refused) => runs.refused = Some(refused.to_string()),
            }
        }
    }
    println!(
        "{} ({} on {}, moving {}, {seeds} seeds)",
        case.name, case.workload, case.cluster, case.overheads
    );
    let mut rows = Vec::new();
    for runs in by_policy.into_values() {
        if let Some(refused) = runs.refused {
            println!("  {:15} {refused}", runs.policy);
            rows.push(json!({ "policy": runs.policy, "refused": refused }));
            continue;
        }
        rows.push(row(case, &runs).context("no run")?);
    }
    Ok(json!({
        "case": case.name, "workload": case.workload, "cluster": case.cluster,
        "overheads": case.overheads, "round_ms": case.round_ms, "seeds": seeds,
        "first_seed": arguments.first_seed, "policies": rows,
    }))
}

fn row(case: &Case<'_>, runs: &Runs) -> Option<Value> {
    let Runs { policy: name, summaries: runs, online_s, took_s, .. } = runs;
    let online =
        (!online_s.is_empty()).then(|| online_s.iter().sum::<f64>() / count(online_s.len()));
    let of_online_jobs = online.map_or_else(String::new, |mean| format!("  online jct {mean:.1}"));
    if runs.is_empty() {
        return None;
    }
    let mean = |of: &dyn Fn(&Summary) -> f64| runs.iter().map(of).sum::<f64>() / count(runs.len());
    let spread = |of: &dyn Fn(&Summary) -> f64| {
        let middle = mean(of);
        (runs.iter().map(|r| (of(r) - middle).powi(2)).sum::<f64>() / count(runs.len())).sqrt()
    };
    let jct = mean(&|r| r.jct_mean_s);
    let makespan = mean(&|r| r.makespan_s);
    let per_job = |of: &dyn Fn(&Summary) -> u64| mean(&|r| float(of(r)));
    let jct_over = jct / mean(&|r| r.bound_jct_mean_s);
    let makespan_over = makespan / mean(&|r| r.bound_makespan_s);
    let authors = case.authors.iter().find(|(policy, ..)| policy == name);
    let off = authors.map(|(_, a, b)| (100.0 * (jct / a - 1.0), 100.0 * (makespan / b - 1.0)));
    let against_authors =
        off.map_or_else(String::new, |(a, b)| format!("  authors {a:+.1} % {b:+.1} %"));
    println!(
        "  {name:15} jct {jct:9.1} ±{:.1} (x{jct_over:.3}) p50 {:8.1} p95 {:9.1} max {:9.1} makespan {makespan:9.1} ±{:.1} (x{makespan_over:.3}) stp {:.3} energy {:9.0} kJ cuts {:6.0} moves {:6.0} late {:4.1} wait max {:8.0}  {took_s:.2} s{of_online_jobs}{against_authors}",
        spread(&|r| r.jct_mean_s),
        mean(&|r| r.jct_p50_s),
        mean(&|r| r.jct_p95_s),
        mean(&|r| r.jct_max_s),
        spread(&|r| r.makespan_s),
        mean(&|r| r.system_throughput),
        mean(&|r| r.energy_j) / 1_000.0,
        per_job(&|r| r.reconfigurations),
        per_job(&|r| r.moves),
        mean(&|r| count(r.deadlines_missed)),
        mean(&|r| r.wait_max_s),
    );
    Some(json!({
        "policy": name,
        "jct_mean_s": jct, "jct_mean_s_spread": spread(&|r| r.jct_mean_s), "jct_over_bound": jct_over,
        "jct_p50_s": mean(&|r| r.jct_p50_s), "jct_p95_s": mean(&|r| r.jct_p95_s),
        "jct_mean_online_s": online,
        "jct_max_s": mean(&|r| r.jct_max_s), "wait_max_s": mean(&|r| r.wait_max_s),
        "makespan_s": makespan, "makespan_s_spread": spread(&|r| r.makespan_s),
        "makespan_over_bound": makespan_over,
        "system_throughput": mean(&|r| r.system_throughput),
        "system_throughput_spread": spread(&|r| r.system_throughput), "energy_j": mean(&|r| r.energy_j),
        "jct_p95_s_spread": spread(&|r| r.jct_p95_s), "energy_j_spread": spread(&|r| r.energy_j),
        "reconfigurations": per_job(&|r| r.reconfigurations), "moves": per_job(&|r| r.moves),
        "preemptions": per_job(&|r| r.preemptions),
        "deadlines_missed": mean(&|r| count(r.deadlines_missed)),
        "simulated_in_s": took_s,
        "against_authors_percent": off.map(|(a, b)| json!({ "jct_mean": a, "makespan": b })),
    }))
}
