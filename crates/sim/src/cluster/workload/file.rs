//! Workloads in files: JSON lines or CSV, as `docs/policies.md` describes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_model::{Bytes, GangShape};
use tessera_placement::Demand;

use super::Workload;
use crate::cluster::job::{Class, Job, Seat, Times};
use crate::cluster::number::{seconds, whole};

/// Memory of the GPU that `gpu_fraction` counts from, in MiB: `tessera replay`'s default.
const FRACTION_OF_MIB: f64 = 16_384.0;

/// Compute slices of the GPU that `duration_s` and `gpu_fraction` count from.
const FRACTION_OF_SLICES: u8 = 7;

/// One job, as a line of a file has it; times in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What it is called.
    #[serde(default, alias = "job_id")]
    pub name: String,
    /// When it is submitted.
    pub submit_s: f64,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// `online` or `offline`.
    #[serde(default)]
    pub class: Class,
    /// 0 (highest) to 9; 5 if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// When it has to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
    /// Time alone, by GPU model (`*`: any) and compute slices.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times_s: BTreeMap<String, BTreeMap<u8, f64>>,
    /// Or: time alone on a whole GPU, of which it uses `gpu_fraction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<f64>,
    /// See `duration_s`; 1 if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_fraction: Option<f64>,
    /// Memory that it asks for.
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
    /// Part of its time alone on a whole GPU in which a kernel of it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<f64>,
    /// Part of its time that is transfers over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer_percent: Option<f64>,
    /// What a whole GPU draws while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// Time until it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_up_s: Option<f64>,
    /// Time that its checkpoint takes to restore; missing: it can't be moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_s: Option<f64>,
    /// On how many nodes it runs; 1 if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// On how many GPUs of each, with a process on each that takes the row's times; 1 if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<u32>,
}

/// Why a file is no workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadLine {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// Reads a file's text: CSV if its name ends so, JSON lines otherwise.
///
/// # Errors
///
/// [`BadLine`] names the first line that is no job.
pub fn read(name: &str, text: &str) -> Result<Workload, BadLine> {
    let rows = if name.ends_with(".csv") { from_csv(text)? } else { from_lines(text)? };
    let job = |(line, row): (usize, Row)| members(row).map_err(|what| BadLine { line, what });
    let jobs: Vec<Vec<Job>> = rows.into_iter().map(job).collect::<Result<_, _>>()?;
    let jobs: Vec<Job> = jobs.into_iter().flatten().collect();
    if jobs.is_empty() {
        return Err(BadLine { line: 1, what: "there is no job in it".to_owned() });
    }
    Ok(Workload::new(name, jobs))
}

fn from_lines(text: &str) -> Result<Vec<(usize, Row)>, BadLine> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let row = |(line, text): (usize, &str)| match serde_json::from_str(text) {
        Ok(row) => Ok((line, row)),
        Err(bad) => Err(BadLine { line, what: bad.to_string() }),
    };
    lines.map(row).collect()
}

/// CSV has a column a field; times as `t1_s`, `t2_s` … by compute slices, of the model in the
/// column `gpu_model` (any GPU, if missing). Other columns are passed over, as `tessera replay`
/// does.
fn from_csv(text: &str) -> Result<Vec<(usize, Row)>, BadLine> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let bad = |line: usize, bad: String| BadLine { line, what: bad };
    let heads = reader.headers().map_err(|e| bad(1, e.to_string()))?.clone();
    let mut rows = Vec::new();
    for (line, record) in (2..).zip(reader.records()) {
        let record = record.map_err(|e| bad(line, e.to_string()))?;
        let cells: BTreeMap<&str, &str> =
            heads.iter().zip(record.iter()).filter(|(_, cell)| !cell.is_empty()).collect();
        rows.push((line, cells_to_row(&cells).map_err(|what| bad(line, what))?));
    }
    Ok(rows)
}

fn cells_to_row(cells: &BTreeMap<&str, &str>) -> Result<Row, String> {
    let number = |column: &str| match cells.get(column) {
        None => Ok(None),
        Some(text) => match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Some(value)),
            _ => Err(format!("{column} is {text:?}: write a number")),
        },
    };
    let count = |column: &str| number(column).map(|value| value.map(whole));
    let mut times = BTreeMap::new();
    for (column, text) in cells {
        let slices = column.strip_prefix('t').and_then(|rest| rest.strip_suffix("_s"));
        let Some(slices) = slices.and_then(|slices| slices.parse::<u8>().ok()) else { continue };
        let value = text.parse().map_err(|_| format!("{column} is {text:?}: write seconds"))?;
        times.insert(slices, value);
    }
    let text = |column: &str| cells.get(column).map(|text| (*text).to_owned());
    let model = text("gpu_model").unwrap_or_else(|| "*".to_owned());
    let online = text("class").is_some_and(|class| class == "online");
    let priority = count("priority")?.map(|p| u8::try_from(p).unwrap_or(u8::MAX));
    Ok(Row {
        name: text("name").or_else(|| text("job_id")).unwrap_or_default(),
        submit_s: number("submit_s")?.ok_or("there is no submit_s: write when the job comes")?,
        user: text("user"),
        class: if online { Class::Online } else { Class::Offline },
        priority,
        deadline_s: number("deadline_s")?,
        times_s: if times.is_empty() { BTreeMap::new() } else { [(model, times)].into() },
        duration_s: number("duration_s")?,
        gpu_fraction: number("gpu_fraction")?,
        memory_mib: count("memory_mib")?,
        memory_start_mib: count("memory_start_mib")?,
        memory_end_mib: count("memory_end_mib")?,
        sm_percent: number("sm_percent")?,
        bandwidth_percent: number("bandwidth_percent")?,
        busy_percent: number("busy_percent")?,
        transfer_percent: number("transfer_percent")?,
        power_w: number("power_w")?,
        start_up_s: number("start_up_s")?,
        restore_s: number("restore_s")?,
        nodes: count("nodes")?.map(|nodes| u32::try_from(nodes).unwrap_or(u32::MAX)),
        gpus_per_node: count("gpus_per_node")?.map(|gpus| u32::try_from(gpus).unwrap_or(u32::MAX)),
    })
}

/// Returns a row's processes: one, or those of a gang by rank.
fn members(row: Row) -> Result<Vec<Job>, String> {
    let (nodes, per_node) = (row.nodes.unwrap_or(1), row.gpus_per_node.unwrap_or(1));
    let shape = GangShape::new(nodes, per_node).map_err(|bad| bad.to_string())?;
    let job = parse(row)?;
    if shape.members() == 1 {
        return Ok(vec![job]);
    }
    let seat = |rank| Job { gang: Some(Seat { shape, rank }), ..job.clone() };
    Ok((0..shape.members()).map(seat).collect())
}

fn parse(row: Row) -> Result<Job, String> {
    let times = times(&row)?;
    for (field, value) in [
        ("submit_s", Some(row.submit_s)),
        ("deadline_s", row.deadline_s),
        ("start_up_s", row.start_up_s),
        ("restore_s", row.restore_s),
        ("power_w", row.power_w),
    ] {
        if value.is_some_and(|value| !value.is_finite() || value < 0.0) {
            return Err(format!("{field} is below 0"));
        }
    }
    let percents = [row.sm_percent, row.bandwidth_percent, row.busy_percent, row.transfer_percent];
    if percents.iter().flatten().any(|percent| !(0.0..=100.0).contains(percent)) {
        return Err("a percentage is 0 to 100".to_owned());
    }
    let priority = row.priority.unwrap_or(5);
    if priority > 9 {
        return Err(format!("priority is {priority}: 0 (highest) to 9"));
    }
    let fraction = row.gpu_fraction.unwrap_or(1.0);
    let by_fraction = || row.duration_s.map(|_| whole(fraction * FRACTION_OF_MIB));
    let asked = row.memory_mib.or_else(by_fraction).unwrap_or(0);
    let start = row.memory_start_mib.unwrap_or(row.memory_end_mib.unwrap_or(asked));
    let end = row.memory_end_mib.unwrap_or(start.max(asked));
    let thousandths = |percent: f64| u16::try_from(whole(percent * 10.0)).unwrap_or(1_000);
    let demand = row.sm_percent.zip(row.bandwidth_percent);
    Ok(Job {
        name: row.name,
        user: row.user.unwrap_or_else(|| "user".to_owned()),
        submit_ms: ms(row.submit_s),
        class: row.class,
        priority,
        deadline_ms: row.deadline_s.map(ms),
        times,
        asked: Bytes::from_mib(asked),
        memory_at_start: Bytes::from_mib(start),
        memory_at_end: Bytes::from_mib(end),
        demand: demand
            .map(|(sm, memory)| Demand { sm: thousandths(sm), memory: thousandths(memory) }),
        busy: row.busy_percent.map(thousandths),
        transfer: row.transfer_percent.map_or(0, thousandths),
        power_milliwatts: row.power_w.map(ms),
        start_up_ms: row.start_up_s.map_or(0, ms),
        restore_ms: row.restore_s.map(ms),
        gang: None,
    })
}

fn times(row: &Row) -> Result<BTreeMap<String, Times>, String> {
    let given = row.times_s.iter().map(|(model, times)| {
        let bad = times.iter().find(|(_, s)| !s.is_finite() || **s <= 0.0);
        match bad {
            Some((slices, s)) => {
                Err(format!("{s} s on {slices} slices of {model}: write seconds above 0"))
            }
            None if times.is_empty() => Err(format!("times_s has no time for {model}")),
            None => Ok((model.clone(), times.iter().map(|(n, s)| (*n, ms(*s).max(1))).collect())),
        }
    });
    let given: BTreeMap<String, Times> = given.collect::<Result<_, _>>()?;
    if !given.is_empty() {
        return Ok(given);
    }
    let Some(duration) = row.duration_s.filter(|s| s.is_finite() && *s >= 0.0) else {
        return Err("it says neither times_s (or t1_s, t2_s …) nor duration_s".to_owned());
    };
    let fraction = row.gpu_fraction.unwrap_or(1.0);
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(format!("gpu_fraction is {fraction}: above 0, at most 1"));
    }
    Ok([("*".to_owned(), by_fraction(duration, fraction))].into())
}

/// Returns the times of a job that uses a part of a GPU: it is not slowed by a slice that is no
/// smaller than that.
pub(super) fn by_fraction(duration_s: f64, fraction: f64) -> Times {
    let time = |slices: u8| {
        let needs = fraction * f64::from(FRACTION_OF_SLICES) / f64::from(slices);
        (slices, ms(duration_s * needs.max(1.0)).max(1))
    };
    [1, 2, 3, 4, 7].into_iter().map(time).collect()
}

/// Writes a workload as JSON lines, so that a generated one can be kept and replayed.
pub fn write(jobs: &[Job]) -> String {
    let mib = |bytes: Bytes| Some(bytes.mib());
    let percent = |thousandths: u16| f64::from(thousandths) / 10.0;
    let line = |job: &Job| {
        let grows = job.memory_at_start != job.memory_at_end || job.memory_at_end != job.asked;
        let times = job.times.iter().map(|(model, times)| {
            (model.clone(), times.iter().map(|(n, ms)| (*n, seconds(*ms))).collect())
        });
        let row = Row {
            name: job.name.clone(),
            submit_s: seconds(job.submit_ms),
            user: Some(job.user.clone()),
            class: job.class,
            priority: Some(job.priority),
            deadline_s: job.deadline_ms.map(seconds),
            times_s: times.collect(),
            memory_mib: mib(job.asked),
            memory_start_mib: grows.then(|| job.memory_at_start.mib()),
            memory_end_mib: grows.then(|| job.memory_at_end.mib()),
            sm_percent: job.demand.map(|d| percent(d.sm)),
            bandwidth_percent: job.demand.map(|d| percent(d.memory)),
            busy_percent: job.busy.map(percent),
            transfer_percent: (job.transfer > 0).then(|| percent(job.transfer)),
            power_w: job.power_milliwatts.map(seconds),
            start_up_s: Some(seconds(job.start_up_ms)),
            restore_s: job.restore_ms.map(seconds),
            nodes: job.gang.map(|seat| seat.shape.nodes()),
            gpus_per_node: job.gang.map(|seat| seat.shape.per_node()),
            ..Row::default()
        };
        serde_json::to_string(&row).unwrap_or_default() + "\n"
    };
    // A gang is one line.
    let first = |job: &&Job| job.gang.is_none_or(|seat| seat.rank == 0);
    jobs.iter().filter(first).map(line).collect()
}

fn ms(seconds: f64) -> u64 {
    whole(seconds * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::super::built_in;
    use super::*;

    #[test]
    fn what_is_written_reads_back_as_it_was() {
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
    fn a_line_that_is_no_job_is_named_with_what_would_be_right() {
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
        assert_eq!((job.name.as_str(), job.submit_ms, job.class), ("7", 1_500, Class::Online));
        assert_eq!(job.time("a100-40gb", 7), Some(100_000));
        assert_eq!(job.time("a100-40gb", 4), Some(100_000));
        assert_eq!(job.time("a100-40gb", 1), Some(350_000));
        assert_eq!(job.asked, Bytes::from_mib(8_192));
    }
}
