//! From a row of a file to a job: every error states what would be right.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::mig::catalog;
use tessera_model::number::clamped;
use tessera_model::place::PlaceFilter;
use tessera_model::{Bytes, GangShape};
use tessera_placement::Demand;

use super::WorkloadRow;
use super::problem::RowProblem;
use crate::cluster::job::{GangMembership, SimulatedJob, SliceTimes};
use crate::cluster::number::whole;

/// Memory of the GPU that `gpu_fraction` counts from, in MiB: `tessera replay`'s default. Chosen: Alibaba's
/// trace, for which the column is, has no memory.
const FRACTION_OF_MIB: f64 = 16_384.0;

/// Compute slices of the GPU that `duration_s` and `gpu_fraction` count from: an A100's.
const FRACTION_OF_SLICES: u8 = 7;

/// Longest time that makes sense, a hundred years: more indicates a wrong unit.
pub(super) const SECS_MAX: f64 = 3.2e9;

/// The maximum power of a GPU: above that of any GPU, and small enough to be added up.
pub(super) const WATTS_MAX: f64 = 100_000.0;

/// Maximum number of steps of a job: each is a thousand of the parts in which progress is counted.
pub(super) const ITERATIONS_MAX: u64 = 1_000_000_000;

/// Returns a row's processes: one, or those of a gang by rank.
pub(super) fn members(row: &WorkloadRow) -> Result<Vec<SimulatedJob>, RowProblem> {
    let (nodes, per_node) = (row.nodes.unwrap_or(1), row.gpus_per_node.unwrap_or(1));
    let shape = GangShape::new(nodes, per_node)?;
    let job = parse(row)?;
    if shape.members() == 1 {
        return Ok(vec![job]);
    }
    let member = |rank| SimulatedJob { gang: Some(GangMembership { shape, rank }), ..job.clone() };
    Ok((0..shape.members()).map(member).collect())
}

fn parse(row: &WorkloadRow) -> Result<SimulatedJob, RowProblem> {
    check_numbers(row)?;
    let times = times(row)?;
    let priority = row.priority.unwrap_or(5);
    if priority > 9 {
        return Err(RowProblem::Priority { priority: priority.into() });
    }
    let fraction = row.gpu_fraction.unwrap_or(1.0);
    let by_fraction = || row.duration_s.map(|_| whole(fraction * FRACTION_OF_MIB));
    let requested = row.memory_mib.or_else(by_fraction).unwrap_or(0);
    let start = row.memory_start_mib.unwrap_or(row.memory_end_mib.unwrap_or(requested));
    let end = row.memory_end_mib.unwrap_or(start.max(requested));
    if end < start {
        return Err(RowProblem::ShrinkingMemory { start, end });
    }
    let thousandths = |percent: f64| clamped(whole(percent * 10.0));
    Ok(SimulatedJob {
        name: row.name.clone(),
        user: row.user.clone().unwrap_or_else(|| "user".to_owned()),
        account: row.account.clone(),
        shares: row.shares.unwrap_or(1).max(1),
        submit_ms: ms(row.submit_s),
        class: row.class,
        priority,
        deadline_ms: row.deadline_s.map(ms),
        limit_ms: row.time_limit_s.map(|limit| ms(limit).max(1)),
        place: row
            .only_model
            .clone()
            .map(|model| Arc::new(PlaceFilter { model: Some(model), ..PlaceFilter::default() })),
        times,
        requested: Bytes::from_mib(requested),
        memory_at_start: Bytes::from_mib(start),
        memory_at_end: Bytes::from_mib(end),
        demand: demand(row)?
            .map(|(sm, memory)| Demand { sm: thousandths(sm), memory: thousandths(memory) }),
        busy: row.busy_percent.map(thousandths),
        transfer: row.transfer_percent.map_or(0, thousandths),
        power_milliwatts: row.power_w.map(ms),
        start_up_ms: row.start_up_s.map_or(0, ms),
        restore_ms: row.restore_s.map(ms),
        iterations: row.iterations,
        gang: None,
    })
}

fn check_numbers(row: &WorkloadRow) -> Result<(), RowProblem> {
    for (field, value) in [
        ("submit_s", Some(row.submit_s)),
        ("duration_s", row.duration_s),
        ("deadline_s", row.deadline_s),
        ("time_limit_s", row.time_limit_s),
        ("start_up_s", row.start_up_s),
        ("restore_s", row.restore_s),
    ] {
        if let Some(value) = value.filter(|value| !(0.0..=SECS_MAX).contains(value)) {
            return Err(RowProblem::Seconds { field, value });
        }
    }
    for (field, value) in [
        ("sm_percent", row.sm_percent),
        ("bandwidth_percent", row.bandwidth_percent),
        ("l2_percent", row.l2_percent),
        ("busy_percent", row.busy_percent),
        ("transfer_percent", row.transfer_percent),
    ] {
        if let Some(value) = value.filter(|value| !(0.0..=100.0).contains(value)) {
            return Err(RowProblem::Percentage { field, value });
        }
    }
    if let Some(power) = row.power_w.filter(|power| !(0.0..=WATTS_MAX).contains(power)) {
        return Err(RowProblem::Power { power });
    }
    let steps = row.iterations.filter(|steps| !(1..=ITERATIONS_MAX).contains(steps));
    steps.map_or(Ok(()), |steps| Err(RowProblem::Iterations { steps }))
}

/// Returns what a job keeps busy of multiprocessors and memory, in percent. L2 and DRAM are one
/// resource to the model of contention, as the study names both as one cause: the worse counts.
fn demand(row: &WorkloadRow) -> Result<Option<(f64, f64)>, RowProblem> {
    let memory = match (row.bandwidth_percent, row.l2_percent) {
        (Some(bandwidth), Some(l2)) => Some(bandwidth.max(l2)),
        (bandwidth, l2) => bandwidth.or(l2),
    };
    match (row.sm_percent, memory) {
        (Some(sm), Some(memory)) => Ok(Some((sm, memory))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(RowProblem::MultiprocessorsAlone),
        (None, Some(_)) => Err(RowProblem::MemoryAlone),
    }
}

fn times(row: &WorkloadRow) -> Result<BTreeMap<String, SliceTimes>, RowProblem> {
    if row.times_s.is_empty() {
        let Some(duration) = row.duration_s else {
            return Err(RowProblem::NoTimes);
        };
        let fraction = row.gpu_fraction.unwrap_or(1.0);
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(RowProblem::Fraction { fraction });
        }
        return Ok([("*".to_owned(), by_fraction(duration, fraction))].into());
    }
    let given = row.times_s.iter().map(|(model, times)| {
        check_model(model, times)?;
        let bad = times.iter().find(|(_, s)| !(**s > 0.0 && **s <= SECS_MAX));
        match bad {
            Some((slices, secs)) => {
                Err(RowProblem::Time { secs: *secs, slices: *slices, model: model.clone() })
            }
            None => Ok((model.clone(), times.iter().map(|(n, s)| (*n, ms(*s).max(1))).collect())),
        }
    });
    given.collect()
}

/// Refuses times for sizes that no GPU has: they would never be requested.
fn check_model(model: &str, times: &BTreeMap<u8, f64>) -> Result<(), RowProblem> {
    if times.is_empty() {
        return Err(RowProblem::NoTimeFor { model: model.to_owned() });
    }
    if model == "*" {
        return Ok(());
    }
    let known = catalog::find(model)?;
    let geometry = known.geometry();
    let mut sizes: Vec<u8> = geometry.profiles.iter().map(|p| p.compute_slices).collect();
    sizes.sort_unstable();
    sizes.dedup();
    match times.keys().find(|slices| !sizes.contains(slices)) {
        None => Ok(()),
        Some(slices) => Err(RowProblem::NoInstance {
            model: model.to_owned(),
            slices: *slices,
            sizes: sizes.iter().map(u8::to_string).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// Returns the times of a job that uses a part of a GPU: it is not slowed by a slice that is no
/// smaller than that.
pub(in crate::cluster::workload) fn by_fraction(duration_s: f64, fraction: f64) -> SliceTimes {
    let time = |slices: u8| {
        let needs = fraction * f64::from(FRACTION_OF_SLICES) / f64::from(slices);
        (slices, ms(duration_s * needs.max(1.0)).max(1))
    };
    [1, 2, 3, 4, 7].into_iter().map(time).collect()
}

fn ms(seconds: f64) -> u64 {
    whole(seconds * 1_000.0)
}
