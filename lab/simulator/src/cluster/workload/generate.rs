//! Generated workloads: jobs of MISO's measured models with arrivals that depend on a seed.

use std::collections::BTreeMap;
use tessera_model::number::clamped;

use tessera_model::Bytes;
use tessera_placement::Demand;

use super::miso;
use crate::cluster::job::{JobClass, SimulatedJob, SliceTimes};
use crate::cluster::number::{float, whole};
use tessera_predict::random::SeededRng;

/// Models that make up a mixture, of MISO's measured ones. Chosen: small ones more often, as in clusters
/// that share GPUs.
const MIXTURE: [&str; 12] = [
    "gnn_train64",
    "embedding_train64",
    "mobilenet_train64",
    "resnet_train128",
    "transformer_train16",
    "deepspeech2_train2",
    "bert_train2",
    "gnn_train512",
    "transformer_train64",
    "cyclegan_train3",
    "bert_train8",
    "transformer_train128",
];

/// Shortest and longest job on a whole GPU, in seconds; lengths are drawn evenly by logarithm. Chosen: a
/// minute to a hundred.
const LENGTHS_S: (f64, f64) = (60.0, 6_000.0);

/// Jobs of one burst. Chosen: about three for each of eight GPUs.
const BURST: u64 = 25;

/// Exponential gaps with the given mean.
pub fn poisson(seed: u64, jobs: u64, gap_ms: u64) -> Vec<SimulatedJob> {
    let mut rng = SeededRng::named(seed, "poisson");
    let mut now_ms = 0;
    let next = |_| {
        now_ms += whole(-even(&mut rng).ln() * float(gap_ms));
        SimulatedJob { submit_ms: now_ms, ..drawn(&mut rng) }
    };
    (0..jobs).map(next).collect()
}

/// Bursts of 25 jobs at once, as far apart as their jobs would be.
pub fn bursts(seed: u64, jobs: u64, gap_ms: u64) -> Vec<SimulatedJob> {
    let mut rng = SeededRng::named(seed, "bursts");
    let next = |number| {
        let submit_ms = number / BURST * BURST * gap_ms;
        SimulatedJob { submit_ms, ..drawn(&mut rng) }
    };
    (0..jobs).map(next).collect()
}

/// Designed to fragment GPUs. Between waves of small long jobs there are jobs that need half a
/// GPU or a whole one while small ones are still spread about. Its shares and lengths were chosen.
pub fn fragments(seed: u64, jobs: u64, gap_ms: u64) -> Vec<SimulatedJob> {
    let mut rng = SeededRng::named(seed, "fragments");
    let next = |number| {
        let large = number % 8 >= 6;
        let model = match (large, rng.below(2)) {
            (false, 0) => "gnn_train64",
            (false, _) => "embedding_train64",
            (true, 0) => "bert_train8",
            (true, _) => "transformer_train128",
        };
        let length_s = if large { 200.0 } else { 100.0 + even(&mut rng) * 2_000.0 };
        let mut job = lasting(model, length_s);
        if large && number % 16 == 15 {
            // Only a whole GPU holds it.
            job.requested = Bytes::from_mib(30_000);
            (job.memory_at_start, job.memory_at_end) = (job.requested, job.requested);
        }
        SimulatedJob { submit_ms: number * gap_ms, ..job }
    };
    (0..jobs).map(next).collect()
}

/// Users of a [`serving`] workload. Chosen: only jobs of one share a slice, and one alone would be no
/// limit.
const SERVING_USERS: u64 = 2;

/// Memory of a service, in MiB: small networks to language models of some billion parameters, which
/// hold more of a GPU than they keep busy. Chosen, so that each needs another of an A100-40GB's sizes.
const SERVICES_MIB: [u64; 4] = [4_000, 8_000, 16_000, 26_000];

/// Services that mostly wait for requests, one job in three, and offline jobs of the same users that
/// keep their slices busy.
///
/// A service's kernels run 15 to 45 % of its time and are as quick on any slice, as ParvaGPU measured of
/// most networks that answer one request at a time. (In its profile 1g is 0.9 to 1.1 of 7g at batch 1.)
/// Offline jobs are MISO's, busy 80 to 100 % of their time. A service's deadline is half as much again
/// as it needs. All figures of both except MISO's are drawn at random.
pub fn serving(seed: u64, jobs: u64, gap_ms: u64) -> Vec<SimulatedJob> {
    let mut rng = SeededRng::named(seed, "serving");
    let mut now_ms = 0;
    let next = |number: u64| {
        now_ms += whole(-even(&mut rng).ln() * float(gap_ms));
        let user = format!("user{}", rng.below(SERVING_USERS));
        let job = SimulatedJob { submit_ms: now_ms, user, ..drawn(&mut rng) };
        if number.is_multiple_of(3) { service(&mut rng, job) } else { batch(&mut rng, job) }
    };
    (0..jobs).map(next).collect()
}

fn service(rng: &mut SeededRng, job: SimulatedJob) -> SimulatedJob {
    let lasts = job.fastest(&[miso::MODEL]).unwrap_or(1);
    let mib = SERVICES_MIB[rng.index_below(SERVICES_MIB.len())];
    let times = [1, 2, 3, 4, 7].map(|slices| (slices, lasts));
    SimulatedJob {
        name: "service".to_owned(),
        class: JobClass::Online,
        priority: 3,
        times: BTreeMap::from([(miso::MODEL.to_owned(), SliceTimes::from(times))]),
        requested: Bytes::from_mib(mib),
        memory_at_start: Bytes::from_mib(mib),
        memory_at_end: Bytes::from_mib(mib),
        deadline_ms: Some(job.submit_ms + lasts * 3 / 2),
        ..kept_busy(rng, job, 150, 300)
    }
}

fn batch(rng: &mut SeededRng, job: SimulatedJob) -> SimulatedJob {
    kept_busy(rng, job, 800, 200)
}

/// Memory of a [`light`] job, in MiB. Chosen: most pairs of them fit onto a slice of 10 GB and more.
const LIGHT_MIB: [u64; 4] = [2_000, 3_000, 4_500, 9_000];

/// Jobs of which two thirds leave their slices idle for most of the time, and one third keeps them busy. They are of
/// two users, have MISO's times on each size of slice, and can't be moved. Their figures but MISO's are drawn.
pub fn light(seed: u64, jobs: u64, gap_ms: u64) -> Vec<SimulatedJob> {
    let mut rng = SeededRng::named(seed, "light");
    let mut now_ms = 0;
    let next = |number: u64| {
        now_ms += whole(-even(&mut rng).ln() * float(gap_ms));
        let user = format!("user{}", rng.below(SERVING_USERS));
        let mib = LIGHT_MIB[rng.index_below(LIGHT_MIB.len())];
        let job = drawn(&mut rng);
        let job = SimulatedJob {
            submit_ms: now_ms,
            user,
            requested: Bytes::from_mib(mib),
            memory_at_start: Bytes::from_mib(mib),
            memory_at_end: Bytes::from_mib(mib),
            restore_ms: None,
            priority: clamped(4 + rng.below(3)),
            ..job
        };
        match number % 3 {
            0 => kept_busy(&mut rng, job, 800, 200),
            _ => kept_busy(&mut rng, job, 100, 400),
        }
    };
    (0..jobs).map(next).collect()
}

/// Returns a job whose kernels run for at least this many thousandths of its time, and fill four
/// fifths of the multiprocessors while they do.
fn kept_busy(rng: &mut SeededRng, job: SimulatedJob, least: u64, more: u64) -> SimulatedJob {
    let part = |thousandths: u64| clamped::<u16>(thousandths);
    let busy = least + rng.below(more + 1);
    let demand = Demand { sm: part(busy * 4 / 5), memory: part(rng.below(busy / 5 + 1)) };
    SimulatedJob { busy: Some(part(busy)), demand: Some(demand), ..job }
}

fn drawn(rng: &mut SeededRng) -> SimulatedJob {
    let at = rng.index_below(MIXTURE.len());
    let (short, long) = LENGTHS_S;
    let length_s = short * (long / short).powf(even(rng));
    lasting(MIXTURE[at], length_s)
}

/// Returns a job of the mixture that lasts this long on a whole GPU.
pub(super) fn of_mixture(rng: &mut SeededRng, length_s: f64) -> SimulatedJob {
    let at = rng.index_below(MIXTURE.len());
    lasting(MIXTURE[at], length_s)
}

/// Returns a job of the model that lasts this long on a whole GPU.
fn lasting(model: &str, length_s: f64) -> SimulatedJob {
    let once = miso::job(model, 1_000).expect("the mixture names measured models only");
    let batch_ms = float(once.fastest(&[miso::MODEL]).unwrap_or(1_000)) / 1_000.0;
    let iterations = whole(length_s * 1_000.0 / batch_ms).max(1);
    miso::job(model, iterations).unwrap_or(once)
}

/// Returns a number above 0 and at most 1.
pub(super) fn even(rng: &mut SeededRng) -> f64 {
    (float(rng.below(1 << 52)) + 1.0) / float(1 << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_jobs_and_another_seed_others() {
        assert_eq!(poisson(3, 50, 20_000), poisson(3, 50, 20_000));
        assert_ne!(poisson(3, 50, 20_000), poisson(4, 50, 20_000));
    }

    #[test]
    fn gaps_have_the_requested_mean() {
        let jobs = poisson(1, 4_000, 20_000);
        let mean_ms = jobs.last().unwrap().submit_ms / 4_000;
        assert!((19_000..21_000).contains(&mean_ms), "{mean_ms} ms");
    }
}
