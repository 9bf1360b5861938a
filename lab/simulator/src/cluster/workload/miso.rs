//! MISO's jobs: measured speeds of 32 training jobs on slices of an A100-40GB, and its trace.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use tessera_model::number::{clamped, index};

use serde::Deserialize;
use tessera_model::Bytes;

use super::twister::MersenneTwister;
use crate::cluster::job::{JobClass, SimulatedJob};
use crate::cluster::number::{float, seconds, whole};

const DATA: &str = include_str!("../../../data/miso.json");

/// The GPU that was measured.
pub const MODEL: &str = "a100-40gb";

#[derive(Deserialize)]
struct MisoData {
    start_up_s: u64,
    restore_s: BTreeMap<String, u64>,
    models: BTreeMap<String, MisoModel>,
    trace: Vec<(String, u64)>,
}

#[derive(Deserialize)]
struct MisoModel {
    arch: String,
    memory_mib: u64,
    batch_s: BTreeMap<u8, f64>,
}

static MEASURED: LazyLock<MisoData> =
    LazyLock::new(|| serde_json::from_str(DATA).expect("part of the build and tested"));

/// Memory of an A100-40GB's instances in MiB, by compute slices, as the driver reports it.
const CAPACITY_MIB: [(u8, u64); 5] =
    [(1, 4_864), (2, 9_856), (3, 19_968), (4, 19_968), (7, 40_192)];

/// Returns MISO's trace, repeated as often as needed, with arrivals as its authors draw them. They have a
/// drawn order and Poisson gaps, and the first third of the jobs is twice as dense.
///
/// The same seeds give the authors' arrivals: a test checks this by their bounds.
pub fn jobs(seed: u64, jobs: u64, gap_ms: u64) -> Vec<SimulatedJob> {
    let small = clamped(seed);
    let count = index(jobs);
    let order = MersenneTwister::python(small).shuffled(count);
    let mut rng = MersenneTwister::numpy(small.wrapping_add(1));
    let gap_s = float(gap_ms) / 1_000.0;
    let mut now_s = 0;
    let mut drawn = Vec::with_capacity(count);
    for (place, number) in order.into_iter().enumerate() {
        let dense = place <= count / 3;
        let mean = if dense { gap_s / 2.0 } else { gap_s };
        now_s += if mean >= 10.0 { rng.poisson(mean) } else { rng.small_poisson(mean) };
        let (model, iterations) = &MEASURED.trace[number % MEASURED.trace.len()];
        let job = job(model, *iterations).expect("the trace names measured models only");
        drawn.push(SimulatedJob { submit_ms: now_s * 1_000, ..job });
    }
    drawn
}

/// Returns one job of a measured model, submitted at once.
pub fn job(model: &str, iterations: u64) -> Option<SimulatedJob> {
    let measured = MEASURED.models.get(model)?;
    let times: BTreeMap<u8, u64> = measured
        .batch_s
        .iter()
        .map(|(slices, batch)| (*slices, whole(batch * float(iterations) * 1_000.0)))
        .collect();
    let requested = Bytes::from_mib(memory_mib(measured));
    Some(SimulatedJob {
        name: model.to_owned(),
        user: "miso".to_owned(),
        account: None,
        shares: 1,
        submit_ms: 0,
        class: JobClass::Offline,
        priority: 5,
        deadline_ms: None,
        limit_ms: None,
        place: None,
        times: BTreeMap::from([(MODEL.to_owned(), times)]),
        requested,
        memory_at_start: requested,
        memory_at_end: requested,
        demand: None,
        busy: None,
        transfer: 0,
        power_milliwatts: None,
        start_up_ms: MEASURED.start_up_s * 1_000,
        restore_ms: MEASURED.restore_s.get(&measured.arch).map(|s| s * 1_000),
        iterations: None,
        gang: None,
    })
}

/// Returns what a model needs. The memory that was measured on the whole GPU is what TensorFlow
/// reserved, not what it needs. The smallest slice that ran it bounds that from above, the next
/// smaller from below.
fn memory_mib(model: &MisoModel) -> u64 {
    let smallest = model.batch_s.keys().next().copied().unwrap_or(7);
    let held = CAPACITY_MIB.iter().find(|(slices, _)| *slices == smallest);
    let most = held.map_or(model.memory_mib, |(_, mib)| *mib);
    let below = CAPACITY_MIB.iter().rev().find(|(_, mib)| *mib < most).map_or(0, |(_, mib)| *mib);
    model.memory_mib.clamp(below + 1, most)
}

/// Returns how long the whole trace takes alone on whole GPUs, in seconds.
pub fn trace_s() -> f64 {
    let alone = MEASURED.trace.iter().filter_map(|(model, n)| job(model, *n)?.fastest(&[MODEL]));
    seconds(alone.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_those_that_the_authors_program_draws() {
        // Critical paths of seeds 1 to 10, worked out from their program's arrivals.
        let paths =
            [9626.8, 9882.8, 9308.8, 7865.0, 9614.0, 9381.0, 10990.8, 8078.0, 7910.8, 9422.0];
        for (seed, expected) in (1..).zip(paths) {
            let path = jobs(seed, 100, 60_000)
                .iter()
                .map(|job| {
                    seconds(job.submit_ms + job.fastest(&[MODEL]).unwrap() + job.start_up_ms)
                })
                .fold(0.0, f64::max);
            assert!((path - expected).abs() < 0.06, "seed {seed}: {path} against {expected}");
        }
    }

    #[test]
    fn every_job_fits_the_smallest_slice_that_ran_it_and_none_below() {
        for (name, model) in &MEASURED.models {
            let job = job(name, 10).unwrap();
            for (slices, mib) in CAPACITY_MIB {
                let fits = Bytes::from_mib(mib) >= job.requested;
                assert_eq!(fits, model.batch_s.contains_key(&slices), "{name} on {slices}g");
            }
        }
    }
}
