//! `tessera simulate`: a workload on a cluster in virtual time, without any GPU.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tessera_sim::cluster::bounds::Bounds;
use tessera_sim::cluster::fleet::Fleet;
use tessera_sim::cluster::metrics::{Outcome, Summary};
use tessera_sim::cluster::overheads::{self, Overheads};
use tessera_sim::cluster::workload::{self, Workload};
use tessera_sim::cluster::{Setup, policy, report, run};
use utoipa::ToSchema;

use super::failure::Failure;
use super::session::{print, table};

/// Runs that take longer show how far they are.
const QUIET: Duration = Duration::from_secs(1);

/// Runs a workload on a cluster in virtual time, with the code that places jobs in a controller,
/// and says how each policy did: beside what no schedule can beat that gives each slice to one
/// job at a time.
#[derive(Args)]
pub struct Simulate {
    /// A .jsonl or .csv file, or a built-in workload such as miso or poisson:jobs=500,gap=20
    #[arg(value_name = "WORKLOAD")]
    workload: String,
    /// The GPUs, such as 8xa100-40gb,2xa30-24gb
    #[arg(long, value_name = "GPUS")]
    cluster: String,
    /// Policies, separated by commas
    #[arg(long, value_name = "NAME[,NAME…]", value_delimiter = ',', required = true)]
    policy: Vec<String>,
    /// What chance begins with: arrivals of generated workloads, errors of predictions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What moving a job costs: recover (each job's own), a time such as 30s, or a JSON file
    #[arg(long, value_name = "OVERHEADS", default_value = "recover")]
    overheads: String,
    /// Ask the policy only every so often, such as 10s; unset: whenever something happened
    #[arg(long, value_name = "TIME", value_parser = time_ms)]
    round: Option<u64>,
    /// Layout that the policy static keeps, as profiles: 3g.20gb,2g.10gb,2g.10gb
    #[arg(long, value_name = "PROFILES")]
    layout: Option<String>,
    /// Write a page with plots, and the raw data, to this folder
    #[arg(long, value_name = "FOLDER")]
    report: Option<std::path::PathBuf>,
    /// Write the workload as JSON lines to this file, too
    #[arg(long, value_name = "FILE.jsonl")]
    save: Option<std::path::PathBuf>,
}

/// What policies made of a workload.
#[derive(Debug, Serialize, ToSchema)]
pub struct Simulation {
    /// The workload, as it was named.
    pub workload: String,
    /// The GPUs.
    pub cluster: String,
    /// What chance began with.
    pub seed: u64,
    /// What moves and cuts cost.
    pub overheads: Overheads,
    /// Each policy's figures, in the order in which policies were named.
    pub results: Vec<Summary>,
}

impl Simulate {
    pub fn run(&self, json: bool) -> Result<u8, Failure> {
        let usage = |text: String| Failure::Usage(text);
        let mut fleet = Fleet::parse(&self.cluster).map_err(|bad| usage(bad.to_string()))?;
        let policies = self.policy.iter().map(|name| policy(name.trim()).map_err(usage));
        let policies: Vec<_> = policies.collect::<Result<_, _>>()?;
        if let Some(layout) = &self.layout {
            fleet.cut(layout).map_err(|bad| usage(bad.to_string()))?;
        } else if self.policy.iter().any(|name| name == "static") {
            return Err(usage("static needs --layout, such as 3g.20gb,2g.10gb,2g.10gb".to_owned()));
        }
        let overheads = self.overheads()?;
        let workload = self.workload()?;
        if let Some(file) = &self.save {
            let text = workload::file::write(&workload.jobs);
            std::fs::write(file, text).map_err(|bad| refused(file, &bad))?;
        }
        let bounds = Bounds::new(&workload.jobs, &fleet, &overheads);
        let (mut results, mut runs) = (Vec::new(), Vec::new());
        for policy in &policies {
            let setup = Setup {
                jobs: &workload.jobs,
                fleet: &fleet,
                policy: policy.as_ref(),
                overheads,
                round_ms: self.round.unwrap_or(0),
                seed: self.seed,
                plot: self.report.is_some(),
            };
            let outcome = shown(setup, policy.name())?;
            let summary = Summary::new(&outcome, &bounds);
            results.push(summary.clone());
            runs.push((outcome, summary));
        }
        if let Some(folder) = &self.report {
            let title = format!("{} on {}", workload.name, self.cluster);
            write_report(folder, &title, &runs)?;
        }
        let report = Simulation {
            workload: workload.name,
            cluster: self.cluster.clone(),
            seed: self.seed,
            overheads,
            results,
        };
        print(json, &report, drawn)?;
        Ok(0)
    }

    fn overheads(&self) -> Result<Overheads, Failure> {
        let file = Path::new(&self.overheads);
        if !file.is_file() {
            return Overheads::parse(&self.overheads)
                .map_err(|bad| Failure::Usage(bad.to_string()));
        }
        let text = std::fs::read_to_string(file).map_err(|bad| refused(file, &bad))?;
        serde_json::from_str(&text)
            .map_err(|bad| Failure::Usage(format!("{}: {bad}", self.overheads)))
    }

    fn workload(&self) -> Result<Workload, Failure> {
        let file = Path::new(&self.workload);
        let is_file = file.extension().is_some_and(|end| end == "jsonl" || end == "csv");
        if !is_file {
            return workload::built_in(&self.workload, self.seed)
                .map_err(|unknown| Failure::Usage(unknown.to_string()));
        }
        let text = std::fs::read_to_string(file).map_err(|bad| refused(file, &bad))?;
        workload::file::read(&self.workload, &text)
            .map_err(|bad| Failure::Refused(format!("{}, {bad}", self.workload)))
    }
}

/// Runs one policy, with a bar if it takes long and somebody looks.
fn shown(setup: Setup<'_>, policy: &str) -> Result<Outcome, Failure> {
    let bar = ProgressBar::with_draw_target(
        u64::try_from(setup.jobs.len()).ok(),
        ProgressDrawTarget::hidden(),
    );
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} jobs, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(policy.to_owned());
    let mut quiet = true;
    let done = run(setup, &mut |ended| {
        if quiet && bar.elapsed() > QUIET {
            quiet = false;
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if !quiet {
            bar.set_position(u64::try_from(ended).unwrap_or(u64::MAX));
        }
    });
    bar.finish_and_clear();
    done.map_err(|refused| Failure::Refused(refused.to_string()))
}

/// Writes the page, and beside it what each policy did: jobs, and the cluster over time.
fn write_report(folder: &Path, title: &str, runs: &[(Outcome, Summary)]) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|bad| refused(folder, &bad))?;
    let page = folder.join("index.html");
    std::fs::write(&page, report::html(title, runs)).map_err(|bad| refused(&page, &bad))?;
    for (outcome, summary) in runs {
        let data = serde_json::json!({
            "summary": summary, "jobs": outcome.jobs,
            "segments": outcome.segments, "samples": outcome.samples,
        });
        let file = folder.join(format!("{}.json", outcome.policy));
        let text = serde_json::to_string(&data).map_err(std::io::Error::from)?;
        std::fs::write(&file, text).map_err(|bad| refused(&file, &bad))?;
    }
    Ok(())
}

fn refused(file: &Path, bad: &std::io::Error) -> Failure {
    Failure::Refused(format!("{}: {bad}", file.display()))
}

fn time_ms(text: &str) -> Result<u64, String> {
    overheads::duration_ms(text).ok_or_else(|| format!("{text:?} is no time: write 10s or 500ms"))
}

fn drawn(report: &Simulation) -> String {
    let header = [
        "POLICY",
        "JCT MEAN",
        "P50",
        "P95",
        "MAX",
        "MAKESPAN",
        "STP",
        "ENERGY",
        "CUTS",
        "MOVES",
        "PREEMPTED",
        "OOM",
        "LATE",
        "JCT/LB",
        "MAKESPAN/LB",
    ];
    let rows = report.results.iter().map(|r| {
        vec![
            r.policy.clone(),
            format!("{:.1} s", r.jct_mean_s),
            format!("{:.1} s", r.jct_p50_s),
            format!("{:.1} s", r.jct_p95_s),
            format!("{:.1} s", r.jct_max_s),
            format!("{:.1} s", r.makespan_s),
            format!("{:.3}", r.system_throughput),
            format!("{:.1} kJ", r.energy_j / 1_000.0),
            r.reconfigurations.to_string(),
            r.moves.to_string(),
            r.preemptions.to_string(),
            r.out_of_memory.to_string(),
            if r.deadlines == 0 {
                "–".to_owned()
            } else {
                format!("{}/{}", r.deadlines_missed, r.deadlines)
            },
            format!("{:.3}", r.jct_over_bound),
            format!("{:.3}", r.makespan_over_bound),
        ]
    });
    let bounds = report.results.first().map_or_else(String::new, |r| {
        format!(
            "No MIG-only schedule has a mean below {:.1} s or ends before {:.1} s.\n",
            r.bound_jct_mean_s, r.bound_makespan_s
        )
    });
    format!("{}{bounds}", table(Some(&header), rows))
}
