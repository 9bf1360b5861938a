//! Generated workloads: jobs of MISO's measured models at arrivals of a seed's choosing.

use tessera_model::Bytes;

use super::miso;
use crate::cluster::job::Job;
use crate::cluster::number::{float, whole};
use crate::kernels::Chance;

/// Models that make up a mixture: small ones more often, as in clusters that share GPUs.
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

/// Shortest and longest job on a whole GPU, in seconds; lengths are drawn evenly by logarithm.
const LENGTHS_S: (f64, f64) = (60.0, 6_000.0);

/// Jobs of one burst.
const BURST: u64 = 25;

/// Exponential gaps with the given mean.
pub fn poisson(seed: u64, jobs: u64, gap_ms: u64) -> Vec<Job> {
    let mut chance = Chance::named(seed, "poisson");
    let mut now_ms = 0;
    let next = |_| {
        now_ms += whole(-even(&mut chance).ln() * float(gap_ms));
        Job { submit_ms: now_ms, ..drawn(&mut chance) }
    };
    (0..jobs).map(next).collect()
}

/// Bursts of 25 jobs at once, as far apart as their jobs would be.
pub fn bursts(seed: u64, jobs: u64, gap_ms: u64) -> Vec<Job> {
    let mut chance = Chance::named(seed, "bursts");
    let next = |number| {
        let submit_ms = number / BURST * BURST * gap_ms;
        Job { submit_ms, ..drawn(&mut chance) }
    };
    (0..jobs).map(next).collect()
}

/// Built to cut GPUs to pieces: waves of small long jobs, and between them jobs that need half a
/// GPU or a whole one while small ones are still spread about.
pub fn fragments(seed: u64, jobs: u64, gap_ms: u64) -> Vec<Job> {
    let mut chance = Chance::named(seed, "fragments");
    let next = |number| {
        let large = number % 8 >= 6;
        let model = match (large, chance.below(2)) {
            (false, 0) => "gnn_train64",
            (false, _) => "embedding_train64",
            (true, 0) => "bert_train8",
            (true, _) => "transformer_train128",
        };
        let length_s = if large { 200.0 } else { 100.0 + even(&mut chance) * 2_000.0 };
        let mut job = lasting(model, length_s);
        if large && number % 16 == 15 {
            // Nothing but a whole GPU holds it.
            job.asked = Bytes::from_mib(30_000);
            (job.memory_at_start, job.memory_at_end) = (job.asked, job.asked);
        }
        Job { submit_ms: number * gap_ms, ..job }
    };
    (0..jobs).map(next).collect()
}

fn drawn(chance: &mut Chance) -> Job {
    let count = u64::try_from(MIXTURE.len()).unwrap_or(1);
    let at = usize::try_from(chance.below(count)).unwrap_or(0);
    let (short, long) = LENGTHS_S;
    let length_s = short * (long / short).powf(even(chance));
    lasting(MIXTURE[at], length_s)
}

/// Returns a job of the mixture that lasts so long on a whole GPU.
pub(super) fn of_mixture(chance: &mut Chance, length_s: f64) -> Job {
    let count = u64::try_from(MIXTURE.len()).unwrap_or(1);
    let at = usize::try_from(chance.below(count)).unwrap_or(0);
    lasting(MIXTURE[at], length_s)
}

/// Returns a job of the model that lasts so long on a whole GPU.
fn lasting(model: &str, length_s: f64) -> Job {
    let once = miso::job(model, 1_000).expect("the mixture names measured models only");
    let batch_ms = float(once.fastest(&[miso::MODEL]).unwrap_or(1_000)) / 1_000.0;
    let iterations = whole(length_s * 1_000.0 / batch_ms).max(1);
    miso::job(model, iterations).unwrap_or(once)
}

/// Returns a number above 0 and at most 1.
pub(super) fn even(chance: &mut Chance) -> f64 {
    (float(chance.below(1 << 52)) + 1.0) / float(1 << 52)
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
    fn gaps_have_the_mean_that_was_asked_for() {
        let jobs = poisson(1, 4_000, 20_000);
        let mean_ms = jobs.last().unwrap().submit_ms / 4_000;
        assert!((19_000..21_000).contains(&mean_ms), "{mean_ms} ms");
    }
}
