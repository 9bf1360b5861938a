//! The matrix of `docs/policies.md`: `tessera` and all other policies under the conditions of a
//! lab. These are what is known about run times, how many jobs can be moved, and whether all GPUs
//! are of one model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
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
    /// Only these policies, with the other figures from an earlier result (`--keep`).
    #[arg(long, value_delimiter = ',', requires = "keep")]
    policy: Vec<String>,
    /// An earlier result of the same seeds. Its figures are kept for the policies that do not run again, so that a new or
    /// changed policy needs no run of the others.
    #[arg(long, requires = "policy")]
    keep: Option<PathBuf>,
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

/// A workload and its cluster.
type Place<'p> = (&'p str, &'p str);

/// Each policy's figures by name, means over the seeds.
type FiguresByPolicy = BTreeMap<String, BTreeMap<String, f64>>;

/// One row of the matrix.
struct MatrixRow {
    figures: FiguresByPolicy,
    mean_over_bound: f64,
    makespan_over_bound: f64,
    /// The policies that ran.
    policies: Vec<String>,
    refused: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let begun = Instant::now();
    let kept = arguments.keep.as_deref().map(|file| kept(file, &arguments)).transpose()?;
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
                    .map(|(workload, cluster)| {
                        let known = match &kept {
                            Some(kept) => Some(kept_row(kept, &name, (workload, cluster))?),
                            None => None,
                        };
                        let found = runs(workload, cluster, (times, movable), &arguments)?;
                        as_json((workload, cluster), merged(known, found, &arguments)?)
                    })
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

/// Reads an earlier result, which has to be of the same seeds.
fn kept(file: &Path, arguments: &Arguments) -> anyhow::Result<Value> {
    let earlier: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let seeds = json!([arguments.first_seed, arguments.first_seed + arguments.seeds - 1]);
    anyhow::ensure!(
        earlier["seeds"] == seeds,
        "{} is of the seeds {}: run it on {seeds} first",
        file.display(),
        earlier["seeds"]
    );
    Ok(earlier)
}

/// Finds a row of an earlier result.
fn kept_row(
    earlier: &Value,
    cell: &str,
    (workload, cluster): Place<'_>,
) -> anyhow::Result<MatrixRow> {
    let named = |all: &Value, key: &str, name: &str| -> Option<Value> {
        all.as_array()?.iter().find(|one| one[key] == *name).cloned()
    };
    let cell = named(&earlier["cells"], "cell", cell).with_context(|| {
        format!("the earlier result has no cell {cell}: run it with all policies")
    })?;
    let rows = cell["rows"].as_array().context("no rows")?;
    let row = rows.iter().find(|row| row["workload"] == *workload && row["cluster"] == *cluster);
    let row = row.with_context(|| format!("the earlier result has no {workload} on {cluster}"))?;
    let names = |key: &str| -> Vec<String> {
        let all = row[key].as_array().into_iter().flatten();
        all.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    let mut figures: FiguresByPolicy =
        serde_json::from_value(row["figures"].clone()).unwrap_or_default();
    // Results without figures of all policies have those of `tessera` and of the best other policy.
    for Figure { name, .. } in FIGURES {
        let known = &row["against_the_best_other"][name];
        let own = figures.entry("tessera".to_owned()).or_default();
        own.insert(name.to_owned(), known["tessera"].as_f64().context("no figure of tessera")?);
        if let (Some(of), Some(best)) = (known["of"].as_str(), known["best_other"].as_f64()) {
            figures.entry(of.to_owned()).or_default().insert(name.to_owned(), best);
        }
    }
    let over = |key: &str| row[key].as_f64().with_context(|| format!("no {key}"));
    Ok(MatrixRow {
        figures,
        mean_over_bound: over("mean_over_bound")?,
        makespan_over_bound: over("makespan_over_bound")?,
        policies: names("policies"),
        refused: names("refused"),
    })
}

/// Adds what ran now to an earlier row.
fn merged(
    known: Option<MatrixRow>,
    found: MatrixRow,
    arguments: &Arguments,
) -> anyhow::Result<MatrixRow> {
    let Some(mut known) = known else { return Ok(found) };
    let is_complete =
        |policy: &String| known.figures.get(policy).map_or(0, BTreeMap::len) == FIGURES.len();
    let is_rerun = |policy: &&String| *policy != "tessera" && known.policies.contains(policy);
    // If a policy was the best and gets worse, the second best counts, and that one has to be known.
    if let Some(rerun) = arguments.policy.iter().find(is_rerun) {
        anyhow::ensure!(
            known.policies.iter().all(is_complete),
            "the earlier result has only the best policy of each figure, and {rerun} is among its policies: run all policies"
        );
    }
    if found.policies.iter().any(|policy| policy == "tessera") {
        known.mean_over_bound = found.mean_over_bound;
        known.makespan_over_bound = found.makespan_over_bound;
    }
    let is_again =
        |policy: &String| found.policies.contains(policy) || found.refused.contains(policy);
    known.figures.retain(|policy, _| !is_again(policy));
    known.policies.retain(|policy| !is_again(policy));
    known.refused.retain(|policy| !is_again(policy));
    known.figures.extend(found.figures);
    known.policies.extend(found.policies);
    known.refused.extend(found.refused);
    known.policies.sort_unstable();
    Ok(known)
}

/// Runs policies on one workload.
fn runs(
    named: &str,
    cluster: &str,
    (times, movable): (RunTimeKnowledge, u8),
    arguments: &Arguments,
) -> anyhow::Result<MatrixRow> {
    let fleet = GpuFleet::parse(cluster)?;
    let overheads = Overheads { times, ..Overheads::default() };
    let is_chosen =
        |name: &str| arguments.policy.is_empty() || arguments.policy.iter().any(|p| p == name);
    let mut found: BTreeMap<&'static str, Vec<Summary>> = BTreeMap::new();
    let mut refused: Vec<&'static str> = Vec::new();
    for seed in arguments.first_seed..arguments.first_seed + arguments.seeds {
        let mut jobs = workload::built_in(named, seed)?.jobs;
        elsewhere::fill(&mut jobs, &fleet.models());
        workload::limit_movable(&mut jobs, movable, seed);
        // Only the figures of `tessera` are compared with the bounds, which take longer than most runs.
        let bounds = match is_chosen("tessera") {
            true => WorkloadBounds::new(&jobs, &fleet, &overheads),
            false => WorkloadBounds { makespan_s: 0.0, jct_mean_s: 0.0 },
        };
        for name in tessera_lab_policies::all_names() {
            // These policies need a layout that was chosen for the workload.
            if name.starts_with("static") || refused.contains(&name) || !is_chosen(name) {
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
    let figures = found.iter().map(|(policy, runs)| {
        let of = |figure: &Figure| (figure.name.to_owned(), mean(runs, figure.of));
        ((*policy).to_owned(), FIGURES.iter().map(of).collect())
    });
    let over = |of: fn(&Summary) -> f64, bound: fn(&Summary) -> f64| {
        found.get("tessera").map_or(f64::NAN, |own| mean(own, of) / mean(own, bound))
    };
    Ok(MatrixRow {
        figures: figures.collect(),
        mean_over_bound: over(|r| r.jct_mean_s, |r| r.bound_jct_mean_s),
        makespan_over_bound: over(|r| r.makespan_s, |r| r.bound_makespan_s),
        policies: found.keys().map(|name| (*name).to_owned()).collect(),
        refused: refused.into_iter().map(str::to_owned).collect(),
    })
}

fn mean(runs: &[Summary], of: fn(&Summary) -> f64) -> f64 {
    runs.iter().map(of).sum::<f64>() / count(runs.len())
}

/// Compares `tessera` with the best other policy of each figure.
fn as_json((workload, cluster): Place<'_>, row: MatrixRow) -> anyhow::Result<Value> {
    let of = |policy: &str, figure: &str| row.figures.get(policy)?.get(figure).copied();
    let mut compared = serde_json::Map::new();
    for Figure { name, better, .. } in FIGURES {
        let own =
            of("tessera", name).with_context(|| format!("tessera ran nothing of {workload}"))?;
        let others = row.figures.keys().filter(|policy| *policy != "tessera");
        let others = others.filter_map(|policy| Some((policy.as_str(), of(policy, name)?)));
        let by = |a: &(&str, f64), b: &(&str, f64)| a.1.total_cmp(&b.1);
        let best = match better {
            Better::Less => others.min_by(by),
            Better::More => others.max_by(by),
        };
        let (policy, value) = best.unwrap_or(("none", f64::NAN));
        compared.insert(
            name.to_owned(),
            json!({ "tessera": own, "best_other": value, "of": policy, "ratio": own / value }),
        );
    }
    Ok(json!({
        "workload": workload, "cluster": cluster,
        "mean_over_bound": row.mean_over_bound, "makespan_over_bound": row.makespan_over_bound,
        "against_the_best_other": compared,
        "figures": row.figures,
        "policies": row.policies,
        "refused": row.refused,
    }))
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
