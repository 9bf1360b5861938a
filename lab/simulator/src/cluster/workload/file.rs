//! Workloads in files: JSON lines or CSV, as `docs/policies.md` describes them.

mod csv;
mod parse;
mod problem;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_model::Bytes;

use super::Workload;
use crate::cluster::job::{JobClass, SimulatedJob};
use crate::cluster::number::seconds;

pub(super) use parse::by_fraction;

/// One job, as one line of a file; times in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadRow {
    /// The job, for messages and tables.
    #[serde(default, alias = "job_id")]
    pub name: String,
    /// When it is submitted.
    pub submit_s: f64,
    /// The user in the reckoning of fair share; if none, one user has all jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The account in that reckoning; if none, the user counts as an account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The account's shares; 1 if missing. The first job of an account decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<u32>,
    /// `online` or `offline`.
    #[serde(default)]
    pub class: JobClass,
    /// 0 (highest) to 9; 5 if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// When the job should have ended, after the start of the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
    /// How long it may run from a start on: then it ends, whatever is left of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<f64>,
    /// The only model of GPU that it may use, as users write it (`a100`, `h100`); if none, it may use all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_model: Option<String>,
    /// Time alone, by GPU model (`*`: any) and compute slices.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times_s: BTreeMap<String, BTreeMap<u8, f64>>,
    /// Or: time alone on a whole GPU, of which it uses `gpu_fraction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<f64>,
    /// See `duration_s`; 1 if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_fraction: Option<f64>,
    /// Memory that it requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Memory that it uses at first, if it grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_start_mib: Option<u64>,
    /// Memory that it uses at last, if it grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_end_mib: Option<u64>,
    /// Part of a whole GPU's SMs that it keeps busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<f64>,
    /// Part of a whole GPU's memory bandwidth that it keeps busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_percent: Option<f64>,
    /// Part of a whole GPU's L2 that it keeps busy; the worse of this and `bandwidth_percent` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2_percent: Option<f64>,
    /// Part of its time alone on a whole GPU in which one of its kernels runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<f64>,
    /// Part of its time that is transfers over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer_percent: Option<f64>,
    /// The power of a whole GPU while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// Time from its start until it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_up_s: Option<f64>,
    /// Time that its checkpoint takes to restore; missing: it can't be moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_s: Option<f64>,
    /// In how many equal steps it works: only whole ones are checkpointed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
    /// On how many nodes it runs; 1 if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// On how many GPUs of each, with a process on each that takes the row's times; 1 if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<u32>,
}

/// Why a file is not a workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct LineError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// Reads a file's text: CSV if its name ends so, JSON lines otherwise.
///
/// # Errors
///
/// [`LineError`] names the first line that is not a job.
pub fn read(name: &str, text: &str) -> Result<Workload, LineError> {
    let jobs = rows(name, text)?.into_iter().flat_map(|(_, jobs)| jobs).collect();
    Ok(Workload::new(name, jobs))
}

/// Reads a file's rows, in their order, each with its processes: one, or those of a gang.
///
/// # Errors
///
/// [`LineError`] names the first line that is not a job.
pub fn rows(name: &str, text: &str) -> Result<Vec<(WorkloadRow, Vec<SimulatedJob>)>, LineError> {
    let rows = if name.ends_with(".csv") { csv::rows(text)? } else { from_lines(text)? };
    if rows.is_empty() {
        return Err(LineError { line: 1, what: "there is no job in it".to_owned() });
    }
    let parsed = |(line, row): (usize, WorkloadRow)| match parse::members(&row) {
        Ok(jobs) => Ok((row, jobs)),
        Err(problem) => Err(LineError { line, what: problem.to_string() }),
    };
    rows.into_iter().map(parsed).collect()
}

fn from_lines(text: &str) -> Result<Vec<(usize, WorkloadRow)>, LineError> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let row = |(line, text): (usize, &str)| {
        if !text.trim_start().starts_with('{') {
            let what =
                "a line is one job, such as {\"submit_s\": 0, \"duration_s\": 90}".to_owned();
            return Err(LineError { line, what });
        }
        match serde_json::from_str(text) {
            Ok(row) => Ok((line, row)),
            Err(bad) => Err(LineError { line, what: plain(&bad) }),
        }
    };
    lines.map(row).collect()
}

/// States what is wrong with a line, without terms of a programming language.
fn plain(bad: &serde_json::Error) -> String {
    let text = bad.to_string();
    // Every line is its own document: its "line 1" would contradict the file's line.
    let text = text.split(" at line ").next().unwrap_or_default();
    let text = text.replace("expected f64", "expected a number");
    let whole = ["expected u64", "expected u32", "expected u8"];
    let text = whole.iter().fold(text, |text, kind| text.replace(kind, "expected a whole number"));
    format!("{text} (column {})", bad.column())
}

/// Writes a workload as JSON lines, so that a generated one can be kept and replayed.
pub fn write(jobs: &[SimulatedJob]) -> String {
    let mib = |bytes: Bytes| Some(bytes.mib());
    let percent = |thousandths: u16| f64::from(thousandths) / 10.0;
    let line = |job: &SimulatedJob| {
        let grows = job.memory_at_start != job.memory_at_end || job.memory_at_end != job.requested;
        let times = job.times.iter().map(|(model, times)| {
            (model.clone(), times.iter().map(|(n, ms)| (*n, seconds(*ms))).collect())
        });
        let row = WorkloadRow {
            name: job.name.clone(),
            submit_s: seconds(job.submit_ms),
            user: Some(job.user.clone()),
            account: job.account.clone(),
            shares: (job.shares != 1).then_some(job.shares),
            class: job.class,
            priority: Some(job.priority),
            deadline_s: job.deadline_ms.map(seconds),
            time_limit_s: job.limit_ms.map(seconds),
            only_model: job.place.as_ref().and_then(|place| place.model.clone()),
            times_s: times.collect(),
            memory_mib: mib(job.requested),
            memory_start_mib: grows.then(|| job.memory_at_start.mib()),
            memory_end_mib: grows.then(|| job.memory_at_end.mib()),
            sm_percent: job.demand.map(|d| percent(d.sm)),
            bandwidth_percent: job.demand.map(|d| percent(d.memory)),
            busy_percent: job.busy.map(percent),
            iterations: job.iterations,
            transfer_percent: (job.transfer > 0).then(|| percent(job.transfer)),
            power_w: job.power_milliwatts.map(seconds),
            start_up_s: Some(seconds(job.start_up_ms)),
            restore_s: job.restore_ms.map(seconds),
            nodes: job.gang.map(|member| member.shape.nodes()),
            gpus_per_node: job.gang.map(|member| member.shape.per_node()),
            ..WorkloadRow::default()
        };
        serde_json::to_string(&row).unwrap_or_default() + "\n"
    };
    // A gang is one line.
    let first = |job: &&SimulatedJob| job.gang.is_none_or(|member| member.rank == 0);
    jobs.iter().filter(first).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::built_in;
    use super::*;

    #[test]
    fn a_written_workload_reads_back_unchanged() {
        for name in ["miso", "dyna-p-50", "migm-ht1", "mmk-60"] {
            let workload = built_in(name, 1).unwrap();
            let read = read("w.jsonl", &write(&workload.jobs)).unwrap();
            assert_eq!(read.jobs, workload.jobs, "{name}");
        }
    }

    #[test]
    fn a_gang_is_one_line_and_several_processes() {
        let text = "{\"submit_s\": 1, \"duration_s\": 9, \"nodes\": 2, \"gpus_per_node\": 2}\n";
        let jobs = read("w.jsonl", text).unwrap().jobs;

        let ranks: Vec<_> = jobs.iter().map(|job| job.gang.unwrap().rank).collect();
        assert_eq!(ranks, [0, 1, 2, 3]);
        assert_eq!(read("w.jsonl", &write(&jobs)).unwrap().jobs, jobs);
        let csv = read("w.csv", "submit_s,duration_s,gpus_per_node\n0,5,2\n").unwrap();
        assert_eq!(csv.jobs.len(), 2);
        let none =
            read("w.jsonl", "{\"submit_s\": 1, \"duration_s\": 9, \"nodes\": 0}").unwrap_err();
        assert!(none.what.contains("at least one node"), "{none}");
    }

    #[test]
    fn time_limits_and_accounts_are_read_and_written() {
        let text = "{\"submit_s\": 0, \"duration_s\": 9, \"time_limit_s\": 60, \"account\": \"lab\", \"shares\": 3}\n";
        let jobs = read("w.jsonl", text).unwrap().jobs;

        assert_eq!((jobs[0].limit_ms, jobs[0].account(), jobs[0].shares), (Some(60_000), "lab", 3));
        assert_eq!(read("w.jsonl", &write(&jobs)).unwrap().jobs, jobs);
        let csv = "submit_s,duration_s,time_limit_s,user,account,shares\n0,5,7,ada,,2\n";
        let csv = read("w.csv", csv).unwrap().jobs;
        assert_eq!((csv[0].limit_ms, csv[0].account(), csv[0].shares), (Some(7_000), "ada", 2));
    }

    #[test]
    fn a_line_that_is_not_a_job_is_named_with_the_expected_form() {
        let unknown = read("w.jsonl", "{\"submit_s\": 0, \"lenght\": 3}").unwrap_err();
        assert_eq!(unknown.line, 1);
        assert!(unknown.what.contains("lenght"), "{unknown}");
        let timeless = read("w.jsonl", "\n{\"submit_s\": 0}").unwrap_err();
        assert_eq!(timeless.line, 2);
        assert!(timeless.what.contains("duration_s"), "{timeless}");
        let csv = read("w.csv", "submit_s,duration_s\n0,soon\n").unwrap_err();
        assert!(csv.to_string().contains("soon"), "{csv}");
    }

    #[test]
    fn the_files_of_replay_are_workloads_too() {
        let text = "job_id,submit_s,duration_s,gpu_fraction,class\n7,1.5,100,0.5,online\n";
        let job = &read("t.csv", text).unwrap().jobs[0];
        assert_eq!((job.name.as_str(), job.submit_ms, job.class), ("7", 1_500, JobClass::Online));
        assert_eq!(job.time("a100-40gb", 7), Some(100_000));
        assert_eq!(job.time("a100-40gb", 4), Some(100_000));
        assert_eq!(job.time("a100-40gb", 1), Some(350_000));
        assert_eq!(job.requested, Bytes::from_mib(8_192));
    }
}
