//! How jobs that share an instance under MPS slow each other, as it was measured: what happens in a simulation.
//!
//! Policies predict by another model ([`tessera_predict::contention`]). This one has no formula for the losses. Its
//! table holds how far the measured speeds are below (or above) what an instance without any loss would give. That is
//! all of it, or equal parts of it where the loads add up to more than it has. A simulated job is somewhere between the best
//! and the worst measured job of its load, and stays there whatever its co-runners are. Policies do not know where.
//!
//! A load is measured here by the largest total throughput of several processes, and not by speeds alone on several
//! instances, as policies derive it.
//!
//! Source: ParvaGPU's measurements on an A100-80GB.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tessera_predict::contention::public::{MpsRow, PARVAGPU, read_mps_rows};

use super::number::{count, whole};

/// Upper ends of the ranges of a job's own load. Chosen: fifths.
const LOADS: [f64; 5] = [0.2, 0.4, 0.6, 0.8, 1.0];

/// Upper ends of the ranges of the sum of all loads. Chosen, so that most ranges have some dozens of measurements.
const SUMS: [f64; 9] = [0.5, 0.8, 1.0, 1.3, 1.7, 2.2, 2.8, 3.6, 5.0];

/// The fewest measurements that stand for a range; otherwise those of the next load are used. Chosen.
const MEASURED_LEAST: usize = 8;

/// A total throughput no longer grows if one more process adds less than this part of it. Chosen: above the noise of
/// the measurements.
const GROWS: f64 = 0.05;

/// The measured speeds, relative to those without any loss, in rising order, and the mean sum of loads, by the ranges
/// of the sum and of the job's own load.
type MeasuredLosses = Vec<[Option<(f64, Vec<f64>)>; SUMS.len()]>;

static LOSSES: LazyLock<MeasuredLosses> = LazyLock::new(|| {
    let rows = read_mps_rows(PARVAGPU).expect("part of the build and tested");
    losses(&rows)
});

/// A measured speed next to copies of the same task, with the task's load.
struct MeasuredSpeed {
    load: f64,
    sum: f64,
    /// The speed over that without any loss.
    relative: f64,
}

fn losses(rows: &[MpsRow<'_>]) -> MeasuredLosses {
    let speeds = measured_speeds(rows);
    let range = |ends: &[f64], value: f64| ends.iter().filter(|end| **end < value).count();
    let cell = |load: usize, sum: usize| {
        let there = speeds.iter().filter(|speed| {
            range(&LOADS, speed.load) == load && range(&SUMS, speed.sum.min(5.0)) == sum
        });
        let (sums, mut relative): (Vec<f64>, Vec<f64>) =
            there.map(|speed| (speed.sum, speed.relative)).unzip();
        relative.sort_by(f64::total_cmp);
        let mean = sums.iter().sum::<f64>() / count(sums.len().max(1));
        (relative.len() >= MEASURED_LEAST).then_some((mean, relative))
    };
    (0..LOADS.len()).map(|load| std::array::from_fn(|sum| cell(load, sum))).collect()
}

/// Measured rates of a task, by the slices that it had and the number of its processes.
type TaskRates = BTreeMap<u8, BTreeMap<u8, f64>>;

fn measured_speeds(rows: &[MpsRow<'_>]) -> Vec<MeasuredSpeed> {
    let mut tasks: BTreeMap<(&str, u32), TaskRates> = BTreeMap::new();
    for row in rows {
        let sizes = tasks.entry((row.model, row.batch)).or_default();
        sizes.entry(row.slices).or_default().insert(row.processes, row.rate);
    }
    let mut speeds = Vec::new();
    for sizes in tasks.values() {
        for (slices, rates) in sizes {
            let Some(alone) = rates.get(&1) else { continue };
            let Some(most) = capacity(sizes, *slices) else { continue };
            let load = (alone / most).min(1.0);
            for (processes, rate) in rates.iter().filter(|(processes, _)| **processes > 1) {
                let sum = load * f64::from(*processes);
                let relative = rate / alone * sum.max(1.0);
                speeds.push(MeasuredSpeed { load, sum, relative });
            }
        }
    }
    speeds
}

/// Returns the largest total throughput of a task's processes on an instance: as measured there, or in proportion to
/// the instance where processes filled one.
fn capacity(sizes: &BTreeMap<u8, BTreeMap<u8, f64>>, slices: u8) -> Option<f64> {
    let total = |(processes, rate): (&u8, &f64)| f64::from(*processes) * rate;
    let most = |rates: &BTreeMap<u8, f64>| rates.iter().map(total).fold(0.0, f64::max);
    let is_filled = |rates: &BTreeMap<u8, f64>| {
        let mut last = rates.iter().rev().map(total);
        matches!((last.next(), last.next()), (Some(last), Some(before)) if last < before * (1.0 + GROWS))
    };
    let here = sizes.get(&slices)?;
    if is_filled(here) {
        return Some(most(here));
    }
    let filled = sizes.iter().filter(|(_, rates)| is_filled(rates));
    let nearest = filled.min_by_key(|(size, _)| size.abs_diff(slices));
    let elsewhere = nearest.map(|(size, rates)| most(rates) / f64::from(*size) * f64::from(slices));
    // Where no process was slowed, all that is known is that the instance can do as much.
    Some(elsewhere.unwrap_or(0.0).max(most(here)))
}

/// Returns how much longer a job takes than alone on all of the instance, in thousandths. The device is busy with a
/// sum of loads meanwhile, of which its own is a part. `place` is where the job is between the fastest (0) and the
/// slowest (1,000) of the measured ones.
pub(super) fn slowed(load: f64, sum: f64, place: u16) -> u64 {
    let load = load.clamp(0.001, 1.0);
    let sum = sum.max(load);
    let own = LOADS.iter().filter(|end| **end < load).count().min(LOADS.len() - 1);
    let mut before = (load, 1.0_f64);
    for at in 0..SUMS.len() {
        let Some((mean, relative)) = losses_near(own, at) else { continue };
        if *mean <= load {
            continue;
        }
        // No job gets faster by more load.
        let here = ((*mean).max(1.0) / quantile(relative, place)).max(before.1);
        if sum <= *mean {
            let part = (sum - before.0) / (mean - before.0);
            return thousandths(before.1 + (here - before.1) * part);
        }
        before = (*mean, here);
    }
    // Beyond what was measured everything is in proportion.
    thousandths(before.1 * (sum / before.0.max(1.0)).max(1.0))
}

/// Returns the measurements of a range, or those of the nearest load that has some.
fn losses_near(load: usize, sum: usize) -> Option<&'static (f64, Vec<f64>)> {
    let mut by_distance: Vec<usize> = (0..LOADS.len()).collect();
    by_distance.sort_by_key(|other| other.abs_diff(load));
    by_distance.into_iter().find_map(|other| LOSSES[other][sum].as_ref())
}

/// Returns the figure at such a place from the last of some in rising order.
fn quantile(rising: &[f64], place: u16) -> f64 {
    let at = (1.0 - f64::from(place.min(1_000)) / 1_000.0) * count(rising.len().saturating_sub(1));
    let below = tessera_model::number::index(whole(at.floor()));
    let (low, high) = (rising.get(below), rising.get(below + 1));
    let low = low.copied().unwrap_or(1.0);
    low + (high.copied().unwrap_or(low) - low) * at.fract()
}

fn thousandths(value: f64) -> u64 {
    whole(value.max(1.0) * 1_000.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cluster::number::float;

    #[test]
    fn the_table_has_a_distribution_for_every_range_of_the_sum() {
        for (at, sum) in SUMS.iter().enumerate() {
            let (mean, relative) = losses_near(2, at).unwrap();
            assert!(*mean <= sum + 1e-9 && relative.len() >= MEASURED_LEAST, "{at}");
            assert!(relative.iter().all(|part| (0.2..2.0).contains(part)), "{at}: {relative:?}");
        }
    }

    #[test]
    fn measured_speeds_are_on_both_sides_of_the_middle() {
        let rows = read_mps_rows(PARVAGPU).unwrap();
        let speeds = measured_speeds(&rows);
        assert!(speeds.len() > 1_300, "{}", speeds.len());
        let below = |place: u16| {
            let slower = speeds.iter().filter(|speed| {
                let measured = speed.sum.max(1.0) / speed.relative;
                measured * 1_000.0 <= float(slowed(speed.load, speed.sum, place)) + 1.0
            });
            count(slower.count()) / count(speeds.len())
        };
        let (fast, middle, slow) = (below(50), below(500), below(950));
        assert!(
            fast < 0.3 && (0.3..0.75).contains(&middle) && slow > 0.85,
            "{fast} {middle} {slow}"
        );
    }

    proptest! {
        #[test]
        fn more_load_speeds_nobody_up_and_nobody_is_faster_than_alone(
            load in 0.001_f64..1.0,
            more in 0.0_f64..5.0,
            still_more in 0.0_f64..5.0,
            place in 0_u16..=1_000,
        ) {
            let one = slowed(load, load + more, place);
            let other = slowed(load, load + more + still_more, place);
            prop_assert!(1_000 <= one && one <= other, "{one} {other}");
        }

        #[test]
        fn a_slower_place_is_not_faster(load in 0.001_f64..1.0, more in 0.0_f64..5.0, place in 0_u16..1_000) {
            prop_assert!(slowed(load, load + more, place) <= slowed(load, load + more, place + 1));
        }
    }
}
