//! The matrix of `docs/policies.md`: `tessera` and all other policies under the conditions of a
//! lab. These are what is known about run times, how many jobs can be moved, and whether all GPUs
//! are of one model.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};
use tessera_load_tests::machine;
use tessera_simulator::cluster::bounds::WorkloadBounds;
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::metrics::Summary;
use tessera_simulator::cluster::number::count;
use tessera_simulator::cluster::overheads::{Overheads, RunTimeKnowledge};
use tessera_simulator::cluster::workload::elsewhere;
use tessera_simulator::cluster::{SimulationSetup, policy, run, workload};

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// The first seed. No setting was chosen on 201 and those after it.
    #[arg(long, default_value_t = 201)]
    first_seed: u64,
    /// Only cells whose name holds this, such as "unknown, 0 %".
    #[arg(long, default_value = "")]
    only: String,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
    /// File for the tables as Markdown.
    #[arg(long)]
    markdown: Option<PathBuf>,
}

/// Workloads on a cluster of one model.
const SAME: &[(&str, &str)] = &[
    ("miso", "8xa100-40gb"),
    ("poisson:jobs=200,gap=70", "8xa100-40gb"),
    ("bursts:jobs=200,gap=70", "8xa100-40gb"),
    ("fragments:jobs=200,gap=25", "8xa100-40gb"),
    ("philly:jobs=200,gap=200", "8xa100-40gb"),
    ("poisson:jobs=20,gap=0", "a100-40gb"),
    ("poisson:jobs=100,gap=0", "4xa100-40gb"),
];

/// The same on a cluster of several models.
const MIXED: &[(&str, &str)] = &[
    ("miso", "4xa100-40gb,4xa30-24gb,2xh100-80gb-sxm"),
    ("poisson:jobs=200,gap=70", "4xa100-40gb,4xa30-24gb,2xh100-80gb-sxm"),
    ("poisson:jobs=50,gap=0", "1xa100-40gb,2xa30-24gb"),
];

const MOVABLE: [u8; 3] = [0, 50, 100];

/// A figure that is compared.
struct Figure {
    name: &'static str,
    of: fn(&Summary) -> f64,
    better: Better,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
}

const FIGURES: [Figure; 5] = [
    Figure { name: "mean", of: |summary| summary.jct_mean_s, better: Better::Less },
    Figure { name: "p95", of: |summary| summary.jct_p95_s, better: Better::Less },
    Figure { name: "makespan", of: |summary| summary.makespan_s, better: Better::Less },
    Figure { name: "throughput", of: |summary| summary.system_throughput, better: Better::More },
    Figure { name: "energy", of: |summary| summary.energy_j, better: Better::Less },
];

/// A policy's means over the seeds.
struct PolicyFigures {
    policy: &'static str,
    figures: [f64; FIGURES.len()],
    mean_over_bound: f64,
    makespan_over_bound: f64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let begun = Instant::now();
    let (mut cells, mut text, mut summary) = (Vec::new(), String::new(), String::new());
    for times in [RunTimeKnowledge::Unknown, RunTimeKnowledge::Learned, RunTimeKnowledge::Known] {
        for movable in MOVABLE {
            for (models, workloads) in [("one model", SAME), ("mixed", MIXED)] {
                let name = format!("times {}, {movable} % movable, {models}", word(times));
                if !name.contains(&arguments.only) {
                    continue;
                }
                let rows = workloads
                    .iter()
                    .map(|(workload, cluster)| row(workload, cluster, times, movable, &arguments))
                    .collect::<anyhow::Result<Vec<_>>>()?;
                text.push_str(&table(&name, &rows));
                print!("{}", table(&name, &rows));
                summary.push_str(&summary_row(&name, &rows));
                cells.push(json!({ "cell": name, "rows": rows }));
            }
        }
    }
    let result = json!({
        "what": "policies by what is known of run times, what can be moved, and GPU models: means over seeds",
        "machine": machine::facts(),
        "seeds": [arguments.first_seed, arguments.first_seed + arguments.seeds - 1],
        "took_s": begun.elapsed().as_secs(),
        "cells": cells,
    });
    if let Some(file) = &arguments.markdown {
        std::fs::write(file, format!("{SUMMARY_HEADER}{summary}{text}"))?;
    }
    machine::report(&result, arguments.out.as_deref())
}

const fn word(times: RunTimeKnowledge) -> &'static str {
    match times {
        RunTimeKnowledge::Known => "known",
        RunTimeKnowledge::Learned => "learned",
        RunTimeKnowledge::Unknown => "unknown",
    }
}

/// Runs every policy on one workload.
fn row(
    named: &str,
    cluster: &str,
    times: RunTimeKnowledge,
    movable: u8,
    arguments: &Arguments,
) -> anyhow::Result<Value> {
    let fleet = GpuFleet::parse(cluster)?;
    let overheads = Overheads { times, ..Overheads::default() };
    let mut found: BTreeMap<&'static str, Vec<Summary>> = BTreeMap::new();
    let mut refused: Vec<&'static str> = Vec::new();
    for seed in arguments.first_seed..arguments.first_seed + arguments.seeds {
        let mut jobs = workload::built_in(named, seed)?.jobs;
        elsewhere::fill(&mut jobs, &fleet.models());
        workload::limit_movable(&mut jobs, movable, seed);
        let bounds = WorkloadBounds::new(&jobs, &fleet, &overheads);
        for name in tessera_lab_policies::all_names() {
            // These policies need a layout that was chosen for the workload.
            if name.starts_with("static") || refused.contains(&name) {
                continue;
            }
            let decides = policy(name)?;
            let setup = SimulationSetup {
                jobs: &jobs,
                fleet: &fleet,
                policy: decides.as_ref(),
                overheads,
                round_ms: 0,
                seed,
                plot: false,
            };
            match run(setup, &mut |_| {}) {
                Ok(outcome) => found.entry(name).or_default().push(Summary::new(&outcome, &bounds)),
                Err(_) => {
                    found.remove(name);
                    refused.push(name);
                }
            }
        }
    }
    let means: Vec<PolicyFigures> =
        found.iter().map(|(policy, runs)| means(policy, runs)).collect();
    let Some(own) = means.iter().find(|figures| figures.policy == "tessera") else {
        anyhow::bail!("tessera ran nothing of {named}")
    };
    let compared = FIGURES.iter().enumerate().map(|(at, Figure { name, better, .. })| {
        let others = means.iter().filter(|figures| figures.policy != "tessera");
        let by = |a: &&PolicyFigures, b: &&PolicyFigures| a.figures[at].total_cmp(&b.figures[at]);
        let best = match better {
            Better::Less => others.min_by(by),
            Better::More => others.max_by(by),
        };
        let (policy, value) =
            best.map_or(("none", f64::NAN), |best| (best.policy, best.figures[at]));
        (
            (*name).to_owned(),
            json!({
                "tessera": own.figures[at], "best_other": value, "of": policy,
                "ratio": own.figures[at] / value,
            }),
        )
    });
    Ok(json!({
        "workload": named, "cluster": cluster,
        "mean_over_bound": own.mean_over_bound, "makespan_over_bound": own.makespan_over_bound,
        "against_the_best_other": compared.collect::<serde_json::Map<_, _>>(),
        "policies": means.iter().map(|figures| figures.policy).collect::<Vec<_>>(),
        "refused": refused,
    }))
}

fn means(policy: &'static str, runs: &[Summary]) -> PolicyFigures {
    let mean = |of: &dyn Fn(&Summary) -> f64| runs.iter().map(of).sum::<f64>() / count(runs.len());
    PolicyFigures {
        policy,
        figures: FIGURES.map(|figure| mean(&figure.of)),
        mean_over_bound: mean(&|r| r.jct_mean_s) / mean(&|r| r.bound_jct_mean_s),
        makespan_over_bound: mean(&|r| r.makespan_s) / mean(&|r| r.bound_makespan_s),
    }
}

const SUMMARY_HEADER: &str = "\
# Policies under the conditions of a lab

This page is generated by `policy-matrix` ([policies](policies.md#what-a-lab-gets)). Each figure compares `tessera`
with the best other policy for that figure alone; that policy is in brackets. Lower is better, except for
*throughput*: the time of all jobs alone on a whole GPU, over the makespan and the number of GPUs.

| times | movable | cluster | mean | p95 | makespan | throughput | energy | mean / bound | makespan / bound |
|---|---|---|---|---|---|---|---|---|---|
";

/// Writes a cell as one row: geometric means over its workloads.
fn summary_row(name: &str, rows: &[Value]) -> String {
    let mean_of = |of: &dyn Fn(&Value) -> f64| {
        (rows.iter().map(|row| of(row).max(f64::MIN_POSITIVE).ln()).sum::<f64>()
            / count(rows.len()))
        .exp()
    };
    let against = |figure: &'static str| {
        let ratio = |row: &Value| {
            row["against_the_best_other"][figure]["ratio"].as_f64().unwrap_or(f64::NAN)
        };
        format!("{:+.0} %", 100.0 * (mean_of(&ratio) - 1.0))
    };
    let over = |key: &'static str| mean_of(&|row: &Value| row[key].as_f64().unwrap_or(f64::NAN));
    let cell = name.replace("times ", "").replace(" movable", "").replace(", ", " | ");
    format!(
        "| {cell} | {} | {} | {} | {} | {} | {:.2} | {:.2} |\n",
        against("mean"),
        against("p95"),
        against("makespan"),
        against("throughput"),
        against("energy"),
        over("mean_over_bound"),
        over("makespan_over_bound"),
    )
}

/// Writes a cell as a table: `tessera` over its bound, and over the best other policy of each figure.
fn table(name: &str, rows: &[Value]) -> String {
    let mut text = format!(
        "\n**{name}**\n\n| workload | mean / bound | makespan / bound | mean | p95 | makespan | throughput | energy |\n|---|---|---|---|---|---|---|---|\n"
    );
    for row in rows {
        let over = |key: &str| format!("{:.2}", row[key].as_f64().unwrap_or(f64::NAN));
        let against = |figure: &str| {
            let known = &row["against_the_best_other"][figure];
            let percent = 100.0 * (known["ratio"].as_f64().unwrap_or(f64::NAN) - 1.0);
            format!("{percent:+.0} % ({})", known["of"].as_str().unwrap_or_default())
        };
        text.push_str(&format!(
            "| {} on {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row["workload"].as_str().unwrap_or_default(),
            row["cluster"].as_str().unwrap_or_default(),
            over("mean_over_bound"),
            over("makespan_over_bound"),
            against("mean"),
            against("p95"),
            against("makespan"),
            against("throughput"),
            against("energy"),
        ));
    }
    text
}
