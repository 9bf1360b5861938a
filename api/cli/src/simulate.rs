//! `tessera simulate`: a workload on a cluster in virtual time, without any GPU.

mod bar;
pub mod check;
mod history;
mod past;
mod period;
mod values;

use std::path::Path;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use tessera_lab_policies::all_names;
use tessera_placement::Policy;
use tessera_placement::policy::is_settable;
use tessera_placement::power::PowerCap;
use tessera_placement::preemption::{PreemptionMode, PreemptionRules};
use tessera_simulator::cluster::bounds::WorkloadBounds;
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::metrics::{RunOutcome, Summary};
use tessera_simulator::cluster::overheads::{
    KernelSharingModel, Overheads, RunTimeKnowledge, SimulatedSharing,
};
use tessera_simulator::cluster::workload::{self, Workload};
use tessera_simulator::cluster::{SimulationSetup, policy_with, report, run};
use time::OffsetDateTime;
use utoipa::ToSchema;

pub(super) use self::bar::SimulationProgress;
use self::check::ReplayPolicy;
use self::period::{HistoryPeriod, HistoryTime};
use self::values::{
    parse_duration_ms, parse_kernel_sharing, parse_run_time_knowledge, parse_seed, parse_setting,
    parse_sharing,
};
use super::failure::CommandFailure;
use super::session::{CommandSession, print, table};

/// Simulates a workload on a cluster in virtual time, with the placement code of the controller,
/// and prints the results of each policy. They are compared with a lower bound for all schedules
/// that give each slice to one job at a time.
///
/// With --since, the workload consists of the jobs that a controller's users submitted since then.
/// With --check, the controller's recorded rounds are decided again, and compared with the record.
#[derive(Args)]
pub struct Simulate {
    /// A .jsonl or .csv file, or a built-in workload such as miso or poisson:jobs=500,gap=20
    #[arg(value_name = "WORKLOAD", required_unless_present = "since", conflicts_with = "since")]
    workload: Option<String>,
    /// The GPUs, such as 8xa100-40gb,2xa30-24gb
    #[arg(
        long,
        value_name = "GPUS",
        required_unless_present = "since",
        allow_hyphen_values = true
    )]
    cluster: Option<String>,
    /// Replay the controller's history since this time: 2h or 7d ago, or 2026-11-21T20:00:00Z
    #[arg(long, value_name = "WHEN")]
    since: Option<HistoryTime>,
    /// End of the history; by default now
    #[arg(long, value_name = "WHEN", requires = "since")]
    until: Option<HistoryTime>,
    /// Replay only jobs of this user
    #[arg(long, value_name = "USER", requires = "since", conflicts_with = "check")]
    user: Option<String>,
    /// Decide the controller's recorded rounds again, and compare: exit code 0 if all are equal, or
    /// 1 with the first difference. --policy live is the policy that decided them
    #[arg(long, requires = "since")]
    check: bool,
    /// Change a setting of the policy tessera; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    set: Vec<(String, Value)>,
    /// Policies, separated by commas
    #[arg(long, value_name = "NAME[,NAME…]", value_delimiter = ',', required = true)]
    policy: Vec<String>,
    /// Seed of the random numbers: arrivals of generated workloads, errors of predictions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_seed, allow_hyphen_values = true)]
    seed: u64,
    /// Cost of a migration: recover (each job's own), a time such as 30s, or a JSON file
    #[arg(long, value_name = "OVERHEADS", default_value = "recover", allow_hyphen_values = true)]
    overheads: String,
    /// How kernel-level sharing is simulated: modelled, queue (runs the kernel queue for each pair)
    /// or slices (the driver's time slices, without a queue); by default as in --overheads
    #[arg(long, value_name = "WAY", value_parser = parse_kernel_sharing)]
    kernel_sharing: Option<KernelSharingModel>,
    /// Which jobs share slices: policy (those that the policy pairs), exclusive (none) or auto (by the rules
    /// of submit --share auto); by default as in --overheads
    #[arg(long, value_name = "WHO", value_parser = parse_sharing)]
    share: Option<SimulatedSharing>,
    /// Which offline jobs an online job without a place sends back to the queue: off (none), checkpoint (those
    /// that can continue) or requeue (others, too); by default as in --overheads
    #[arg(long, value_name = "WHICH")]
    preemption: Option<PreemptionMode>,
    /// What the policies know of run times: known, learned (during the run, as a new controller
    /// does) or unknown; by default as in --overheads
    #[arg(long, value_name = "KNOWLEDGE", value_parser = parse_run_time_knowledge)]
    times: Option<RunTimeKnowledge>,
    /// Percentage of jobs that can be migrated, among those that the workload lets migrate
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    movable: Option<u8>,
    /// Interval of scheduling rounds, such as 10s; by default a round after each event
    #[arg(long, value_name = "TIME", value_parser = parse_duration_ms, allow_hyphen_values = true)]
    round: Option<u64>,
    /// Initial layout of the GPUs, as profiles: 3g.20gb,2g.10gb,2g.10gb; the policies static and
    /// static-promote keep it
    #[arg(long, value_name = "PROFILES")]
    layout: Option<String>,
    /// Most power that all GPUs may draw together by the limits of their boards, such as 2kW; jobs wait
    /// rather than exceed it
    #[arg(long, value_name = "POWER")]
    power_cap: Option<PowerCap>,
    /// Write a page with plots and the raw data to this folder
    #[arg(long, value_name = "FOLDER")]
    report: Option<std::path::PathBuf>,
    /// Write the workload to this file as JSON lines
    #[arg(long, value_name = "FILE.jsonl")]
    save: Option<std::path::PathBuf>,
}

/// The results of policies on a workload.
#[derive(Debug, Serialize, ToSchema)]
pub struct Simulation {
    /// The workload's name.
    pub workload: String,
    /// The GPUs.
    pub cluster: String,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Costs of migrations and of carrying out layout plans.
    pub overheads: Overheads,
    /// The results of each policy, in the given order. For a controller's history, the recorded
    /// outcome comes first, as `recorded`.
    pub results: Vec<Summary>,
    /// Settings of `tessera` that were changed.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub set: Map<String, Value>,
    /// Assumptions: what a history does not contain, on which GPUs nothing was measured, and what
    /// was used instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The simulated workload.
struct SimulationScene {
    workload: Workload,
    fleet: GpuFleet,
    cluster: String,
    /// The recorded outcome, if it is a history.
    recorded: Option<RunOutcome>,
    notes: Vec<String>,
}

impl Simulate {
    pub fn run(&self, json: bool) -> Result<u8, CommandFailure> {
        let cluster = self.cluster.clone().unwrap_or_default();
        let fleet = GpuFleet::parse(&cluster).map_err(CommandFailure::usage)?;
        self.checked()?;
        let (workload, notes) = self.workload(&fleet.models())?;
        let scene = SimulationScene { workload, fleet, cluster, recorded: None, notes };
        self.simulate(scene, json)
    }

    /// Checks the options before anything is read or fetched.
    fn checked(&self) -> Result<Vec<Box<dyn Policy>>, CommandFailure> {
        let names: Vec<&str> = self.policy.iter().map(|name| name.trim()).collect();
        let keeps_layout = |name: &&&str| matches!(**name, "static" | "static-promote");
        if let Some(name) = names.iter().find(keeps_layout).filter(|_| self.layout.is_none()) {
            let text = format!("{name} needs --layout, such as 3g.20gb,2g.10gb,2g.10gb");
            return Err(CommandFailure::usage(text));
        }
        if let Some(name) =
            (1..names.len()).find_map(|at| names[..at].iter().find(|n| **n == names[at]))
        {
            return Err(CommandFailure::usage(format!(
                "--policy contains {name} twice; name each policy once"
            )));
        }
        let set = self.set();
        let named = |name: &str| policy_with(name, &set).map_err(CommandFailure::usage);
        let policies: Vec<Box<dyn Policy>> =
            names.into_iter().map(named).collect::<Result<_, _>>()?;
        if !set.is_empty() && !policies.iter().any(|policy| is_settable(policy.as_ref())) {
            let text = "--set changes settings of tessera, which --policy does not contain; other \
                        policies have no settings";
            return Err(CommandFailure::usage(text.to_owned()));
        }
        Ok(policies)
    }

    fn set(&self) -> Map<String, Value> {
        self.set.iter().cloned().collect()
    }

    fn simulate(&self, mut scene: SimulationScene, json: bool) -> Result<u8, CommandFailure> {
        let policies = self.checked()?;
        if let Some(layout) = &self.layout {
            scene.fleet.cut(layout).map_err(CommandFailure::usage)?;
        }
        let overheads = self.overheads()?;
        let SimulationScene { mut workload, fleet, cluster, recorded, notes } = scene;
        let fleet = fleet.with_power_cap(self.power_cap);
        if let Some(movable) = self.movable {
            workload::limit_movable(&mut workload.jobs, movable, self.seed);
        }
        if let Some(file) = &self.save {
            let text = workload::file::write(&workload.jobs);
            std::fs::write(file, text).map_err(|bad| unwritten(file, &bad))?;
        }
        if let Some(folder) = &self.report {
            // Before the simulation, so that an error shows at once.
            std::fs::create_dir_all(folder).map_err(|bad| unwritten(folder, &bad))?;
        }
        let bounds = WorkloadBounds::new(&workload.jobs, &fleet, &overheads);
        let summed = |outcome: RunOutcome| {
            let summary = Summary::new(&outcome, &bounds);
            (outcome, summary)
        };
        let mut runs: Vec<(RunOutcome, Summary)> = recorded.into_iter().map(summed).collect();
        for policy in &policies {
            let setup = SimulationSetup {
                jobs: &workload.jobs,
                fleet: &fleet,
                policy: policy.as_ref(),
                overheads,
                round_ms: self.round.unwrap_or(0),
                seed: self.seed,
                plot: self.report.is_some(),
            };
            runs.push(summed(shown(setup, policy.name())?));
        }
        if let Some(folder) = &self.report {
            let title = format!("{} on {cluster}", workload.name);
            write_report(folder, &title, &runs)?;
        }
        let report = Simulation {
            workload: workload.name,
            cluster,
            seed: self.seed,
            overheads,
            set: self.set(),
            results: runs.into_iter().map(|(_, summary)| summary).collect(),
            notes,
        };
        print(json, &report, drawn)?;
        Ok(0)
    }

    /// Replays a controller's history.
    #[expect(clippy::disallowed_methods, reason = "measures the time that the user waits")]
    pub async fn run_past(
        &self,
        session: &CommandSession,
        since: HistoryTime,
    ) -> Result<u8, CommandFailure> {
        let period = HistoryPeriod::new(since, self.until, OffsetDateTime::now_utc())?;
        if !self.check {
            return self.run_history(session, &period).await;
        }
        let [policy] = self.policy.as_slice() else {
            return Err(CommandFailure::usage(
                "--check compares with one policy; name exactly one",
            ));
        };
        check::run(session, period, ReplayPolicy { policy: policy.trim(), set: self.set() }).await
    }

    async fn run_history(
        &self,
        session: &CommandSession,
        period: &HistoryPeriod,
    ) -> Result<u8, CommandFailure> {
        if self.policy.iter().any(|name| name.trim() == check::LIVE) {
            return Err(CommandFailure::usage(format!(
                "{} is for --check; name the policies to simulate: {}",
                check::LIVE,
                all_names().join(", ")
            )));
        }
        self.checked()?;
        let mut past = history::fetch(session, period, self.user.as_deref()).await?;
        let mut notes = past.notes;
        let (fleet, cluster) = match &self.cluster {
            None => (past.fleet, past.cluster),
            Some(cluster) => {
                notes.push(format!(
                    "the recorded jobs ran on {}, not on this cluster",
                    past.cluster
                ));
                let fleet = GpuFleet::parse(cluster).map_err(CommandFailure::usage)?;
                let jobs = &mut past.workload.jobs;
                notes.extend(workload::elsewhere::fill(jobs, &fleet.models()));
                (fleet, cluster.clone())
            }
        };
        let recorded = Some(past.recorded);
        let scene = SimulationScene { workload: past.workload, fleet, cluster, recorded, notes };
        self.simulate(scene, session.json)
    }

    /// Returns the time since which history is replayed, if any.
    pub const fn since(&self) -> Option<HistoryTime> {
        self.since
    }

    fn overheads(&self) -> Result<Overheads, CommandFailure> {
        let known = self.named_overheads()?;
        Ok(Overheads {
            kernel_sharing: self.kernel_sharing.unwrap_or(known.kernel_sharing),
            times: self.times.unwrap_or(known.times),
            sharing: self.share.unwrap_or(known.sharing),
            preemption: match self.preemption {
                Some(online_over_offline) => {
                    PreemptionRules { online_over_offline, ..PreemptionRules::default() }
                }
                None => known.preemption,
            },
            ..known
        })
    }

    fn named_overheads(&self) -> Result<Overheads, CommandFailure> {
        let file = Path::new(&self.overheads);
        let is_path = self.overheads.ends_with(".json") || self.overheads.contains('/');
        if !file.is_file() && !is_path {
            return Overheads::parse(&self.overheads).map_err(CommandFailure::usage);
        }
        let text = std::fs::read_to_string(file).map_err(|bad| refused(file, &bad))?;
        Overheads::from_json(&text)
            .map_err(|bad| CommandFailure::usage(format!("{}: {bad}", self.overheads)))
    }

    /// Reads or generates the workload. Built-in ones get estimated run times on GPUs without
    /// measurements; a file contains the run times of its jobs.
    fn workload(&self, models: &[&'static str]) -> Result<(Workload, Vec<String>), CommandFailure> {
        let named = self.workload.as_deref().unwrap_or_default();
        let file = Path::new(named);
        let is_file = file.extension().is_some_and(|end| end == "jsonl" || end == "csv");
        if !is_file {
            let mut workload =
                workload::built_in(named, self.seed).map_err(CommandFailure::usage)?;
            let mut notes = workload::elsewhere::fill(&mut workload.jobs, models);
            // The papers' mixes are meant for one model.
            let anywhere = workload::elsewhere::anywhere(&workload.jobs, models);
            notes.extend(anywhere.filter(|_| models.len() > 1));
            return Ok((workload, notes));
        }
        let text = std::fs::read_to_string(file).map_err(|bad| refused(file, &bad))?;
        let workload = workload::file::read(named, &text)
            .map_err(|bad| CommandFailure::refused(format!("{named}, {bad}")))?;
        let unused = models
            .iter()
            .filter(|model| workload.jobs.iter().all(|job| job.times_on(model).is_none()));
        let notes = unused.map(|model| {
            format!("no job has run times on {model}, so these GPUs stay idle: add times_s for it")
        });
        let notes = notes.chain(workload::elsewhere::anywhere(&workload.jobs, models)).collect();
        Ok((workload, notes))
    }
}

/// Runs one policy, with a progress bar if it takes long.
fn shown(setup: SimulationSetup<'_>, policy: &str) -> Result<RunOutcome, CommandFailure> {
    let bar = SimulationProgress::of(setup.jobs.len(), policy.to_owned());
    let done = run(setup, &mut |ended| bar.set(ended as u64));
    bar.finish();
    done.map_err(CommandFailure::refused)
}

/// Writes the page, and the raw data of each policy: jobs, and the cluster over time.
fn write_report(
    folder: &Path,
    title: &str,
    runs: &[(RunOutcome, Summary)],
) -> Result<(), CommandFailure> {
    let page = folder.join("index.html");
    let text = report::render_page(title, runs).map_err(CommandFailure::refused)?;
    std::fs::write(&page, text).map_err(|bad| unwritten(&page, &bad))?;
    for (outcome, summary) in runs {
        let data = serde_json::json!({
            "summary": summary, "jobs": outcome.jobs,
            "segments": outcome.segments, "slices": outcome.slices,
            "samples": outcome.samples,
        });
        let file = folder.join(format!("{}.json", outcome.policy));
        let text = serde_json::to_string(&data).map_err(std::io::Error::from)?;
        std::fs::write(&file, text).map_err(|bad| unwritten(&file, &bad))?;
    }
    Ok(())
}

fn refused(file: &Path, bad: &std::io::Error) -> CommandFailure {
    CommandFailure::refused(format!("{}: {bad}", file.display()))
}

fn unwritten(file: &Path, bad: &std::io::Error) -> CommandFailure {
    CommandFailure::refused(format!(
        "can't write {}: {bad}; choose a writable path",
        file.display()
    ))
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
        "RECONFIGS",
        "MIGRATIONS",
        "PREEMPTED",
        "OOM",
        "TIMED OUT",
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
            r.timed_out.to_string(),
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
            "Lower bounds of all MIG-only schedules: mean {:.1} s, makespan {:.1} s.\n",
            r.bound_jct_mean_s, r.bound_makespan_s
        )
    });
    let notes: String = report.notes.iter().map(|note| format!("Note: {note}.\n")).collect();
    format!("{}{bounds}{notes}", table(Some(&header), rows))
}
