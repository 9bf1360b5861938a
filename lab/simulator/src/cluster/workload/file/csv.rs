//! Workloads as CSV.

use std::collections::BTreeMap;

use super::problem::RowProblem;
use super::{LineError, WorkloadRow};
use crate::cluster::job::JobClass;
use crate::cluster::number::whole;

/// CSV has one column per field; times as `t1_s`, `t2_s` … by compute slices, of the model in the
/// column `gpu_model` (any GPU, if missing). Other columns are ignored, as in `tessera replay`.
pub(super) fn rows(text: &str) -> Result<Vec<(usize, WorkloadRow)>, LineError> {
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let bad = |line: usize, bad: String| LineError { line, what: bad };
    let heads = reader.headers().map_err(|e| bad(1, e.to_string()))?.clone();
    if !heads.iter().any(|head| head.trim() == "submit_s") {
        let found = heads.iter().collect::<Vec<_>>().join(", ");
        let what = format!("there is no column submit_s (when a job arrives); found {found}");
        return Err(bad(1, what));
    }
    let mut rows = Vec::new();
    for (line, record) in (2..).zip(reader.records()) {
        let record = record.map_err(|e| bad(line, describe_error(&e)))?;
        let cells: BTreeMap<&str, &str> =
            heads.iter().zip(record.iter()).filter(|(_, cell)| !cell.is_empty()).collect();
        rows.push((line, cells_to_row(&cells).map_err(|what| bad(line, what.to_string()))?));
    }
    Ok(rows)
}

fn cells_to_row(cells: &BTreeMap<&str, &str>) -> Result<WorkloadRow, RowProblem> {
    let number = |column: &str| match cells.get(column) {
        None => Ok(None),
        Some(text) => match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Some(value)),
            _ => Err(RowProblem::NoNumber { column: column.to_owned(), text: (*text).to_owned() }),
        },
    };
    let count = |column: &str| match number(column)? {
        None => Ok(None),
        Some(value) if value >= 0.0 && value.fract() == 0.0 => Ok(Some(whole(value))),
        Some(value) => Err(RowProblem::NotWhole { column: column.to_owned(), value }),
    };
    let small_count = |column: &str| match count(column)? {
        None => Ok(None),
        Some(value) => u32::try_from(value).map(Some).map_err(|_| RowProblem::TooLarge {
            column: column.to_owned(),
            value,
            max: u32::MAX,
        }),
    };
    let mut times = BTreeMap::new();
    for (column, text) in cells {
        let slices = column.strip_prefix('t').and_then(|rest| rest.strip_suffix("_s"));
        let Some(slices) = slices.and_then(|slices| slices.parse::<u8>().ok()) else { continue };
        let value = text.parse().map_err(|_| RowProblem::NoSeconds {
            column: (*column).to_owned(),
            text: (*text).to_owned(),
        })?;
        times.insert(slices, value);
    }
    let text = |column: &str| cells.get(column).map(|text| (*text).to_owned());
    let model = text("gpu_model").unwrap_or_else(|| "*".to_owned());
    let class = match cells.get("class").copied() {
        Some("online") => JobClass::Online,
        // Alibaba's trace has a third class, which counts as offline.
        None | Some("offline" | "burstable") => JobClass::Offline,
        Some(other) => return Err(RowProblem::Class { class: other.to_owned() }),
    };
    let priority = |priority| u8::try_from(priority).map_err(|_| RowProblem::Priority { priority });
    let priority = count("priority")?.map(priority).transpose()?;
    Ok(WorkloadRow {
        name: text("name").or_else(|| text("job_id")).unwrap_or_default(),
        submit_s: number("submit_s")?.ok_or(RowProblem::NoSubmitTime)?,
        user: text("user"),
        account: text("account"),
        shares: small_count("shares")?,
        class,
        priority,
        deadline_s: number("deadline_s")?,
        time_limit_s: number("time_limit_s")?,
        only_model: text("only_model"),
        times_s: if times.is_empty() { BTreeMap::new() } else { [(model, times)].into() },
        duration_s: number("duration_s")?,
        gpu_fraction: number("gpu_fraction")?,
        memory_mib: count("memory_mib")?,
        memory_start_mib: count("memory_start_mib")?,
        memory_end_mib: count("memory_end_mib")?,
        sm_percent: number("sm_percent")?,
        bandwidth_percent: number("bandwidth_percent")?,
        l2_percent: number("l2_percent")?,
        busy_percent: number("busy_percent")?,
        transfer_percent: number("transfer_percent")?,
        power_w: number("power_w")?,
        start_up_s: number("start_up_s")?,
        restore_s: number("restore_s")?,
        iterations: count("iterations")?,
        nodes: small_count("nodes")?,
        gpus_per_node: small_count("gpus_per_node")?,
    })
}

fn describe_error(bad: &::csv::Error) -> String {
    match bad.kind() {
        ::csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} columns, but the headings are {expected_len}")
        }
        _ => bad.to_string(),
    }
}
