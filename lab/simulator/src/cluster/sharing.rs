//! What jobs lose to each other under MPS: what happens, and what policies predict.
//!
//! Both start from the loads of the jobs on their instance. They differ in how loads become speeds: see
//! [`super::measured`], [`super::contention`] and [`tessera_predict::contention`].

use tessera_model::number::clamped;
use tessera_placement::{Demand, MpsClient, SpeedRange};
use tessera_predict::colocation::SharingClient;
use tessera_predict::contention::{
    ContentionModel, MEMORY_BOUND, MpsSharer, device_load, speeds_by_busy,
};
use tessera_predict::random::SeededRng;

use super::contention::{self, ContentionSharer};
use super::job::SimulatedJob;
use super::measured;
use super::overheads::ContentionTruth;

/// An instance that is shared.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedInstance<'a> {
    /// Its GPU, by its key in the catalogue.
    pub(super) gpu: &'a str,
    /// Its compute slices.
    pub(super) slices: u8,
    /// The GPU's compute slices.
    pub(super) whole: u8,
}

/// A job on a shared instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharingJob<'a> {
    pub(super) job: &'a SimulatedJob,
    /// Its percentage of the multiprocessors; 100 without a limit.
    pub(super) cap: u8,
}

impl SharingJob<'_> {
    pub(super) const fn contends(&self) -> ContentionSharer {
        ContentionSharer { demand: self.job.demand, cap: self.cap }
    }

    /// Returns where the job is between the fastest (0) and the slowest (1,000) ones of its load. Policies do not know
    /// that.
    fn place(&self) -> u16 {
        let Demand { sm, memory } = self.job.demand.unwrap_or(Demand { sm: 0, memory: 0 });
        let seed = (u64::from(sm) << 16) | u64::from(memory);
        clamped(SeededRng::named(seed, &self.job.name).below(1_001))
    }
}

impl SharedInstance<'_> {
    /// Returns how much longer each job takes than alone on all of the instance, in thousandths.
    pub(super) fn slowed(self, truth: ContentionTruth, jobs: &[SharingJob<'_>]) -> Vec<u64> {
        let is_study = truth == ContentionTruth::Study || self.gpu.starts_with("a30");
        match (truth, self.sharers(jobs)) {
            (_, None) => vec![contention::with_unknown(jobs.len().saturating_sub(1)); jobs.len()],
            (ContentionTruth::Predicted, Some(sharers)) => self.predicted(&sharers),
            (_, Some(_)) if is_study => {
                let sharers: Vec<ContentionSharer> =
                    jobs.iter().map(SharingJob::contends).collect();
                contention::under_mps(&sharers, self.slices, self.whole)
            }
            (_, Some(sharers)) => {
                let slowed = |(at, job): (usize, &SharingJob<'_>)| {
                    let (load, sum) = device_load(&sharers, at);
                    measured::slowed(load, sum, job.place())
                };
                jobs.iter().enumerate().map(slowed).collect()
            }
        }
    }

    fn predicted(self, sharers: &[MpsSharer]) -> Vec<u64> {
        let (model, _) = ContentionModel::of_gpu(self.gpu);
        model.speeds(sharers).into_iter().map(|speed| 1_000_000 / speed.value.max(1)).collect()
    }

    /// Returns the speeds that a controller predicts from how busy jobs keep a whole GPU.
    pub(super) fn speeds_by_busy(self, clients: &[MpsClient]) -> Vec<SpeedRange> {
        let client = |known: &MpsClient| SharingClient {
            online: known.online,
            sm_percent: known.sm.get(),
            busy: known.busy,
        };
        let clients: Vec<SharingClient> = clients.iter().map(client).collect();
        let slice = u16::from(self.slices) * 1_000 / u16::from(self.whole.max(1));
        let range = |found: tessera_predict::Prediction| {
            let [low, expected, high] = [found.low, found.value, found.high].map(clamped::<u32>);
            SpeedRange { low, expected, high }
        };
        speeds_by_busy(self.gpu, slice, &clients).into_iter().map(range).collect()
    }

    fn sharers(self, jobs: &[SharingJob<'_>]) -> Option<Vec<MpsSharer>> {
        let sharer = |sharing: &SharingJob<'_>| {
            let Demand { sm, memory } = sharing.job.demand?;
            let is_memory_bound = memory >= MEMORY_BOUND;
            Some(MpsSharer { load: self.load(sm.max(memory)), cap: sharing.cap, is_memory_bound })
        };
        jobs.iter().map(sharer).collect()
    }

    /// Returns the load on this instance of a job with such a load on the whole GPU.
    fn load(self, on_whole: u16) -> u16 {
        let whole = u32::from(on_whole) * u32::from(self.whole);
        clamped((whole / u32::from(self.slices.max(1))).clamp(1, 1_000))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tessera_model::share::SmPercent;

    use super::*;
    use crate::cluster::job::tests::job;
    use crate::cluster::number::{count, float};

    const ON: SharedInstance<'static> = SharedInstance { gpu: "a100-80gb", slices: 3, whole: 7 };

    fn demanding(name: &str, sm: u16, memory: u16) -> SimulatedJob {
        SimulatedJob { name: name.to_owned(), demand: Some(Demand { sm, memory }), ..job() }
    }

    fn slowed(
        on: SharedInstance<'_>,
        truth: ContentionTruth,
        jobs: &[(SimulatedJob, u8)],
    ) -> Vec<u64> {
        let jobs: Vec<SharingJob<'_>> =
            jobs.iter().map(|(job, cap)| SharingJob { job, cap: *cap }).collect();
        on.slowed(truth, &jobs)
    }

    /// Random pairs with percentages that add up to 100, or without limits.
    fn pairs(seed: u64) -> Vec<[(SimulatedJob, u8); 2]> {
        let mut rng = SeededRng::new(seed);
        let mut draw = |number: u64| {
            let sm = clamped(20 + rng.below(420));
            demanding(&format!("job {number} {}", rng.below(1 << 32)), sm, 0)
        };
        let caps = [(100, 100), (50, 50), (30, 70)];
        let pair =
            |(number, (one, other)): (u64, (u8, u8))| [(draw(number), one), (draw(number), other)];
        (0..600).zip(caps.into_iter().cycle()).map(pair).collect()
    }

    #[test]
    fn what_happens_is_near_to_what_is_predicted_but_not_the_same() {
        let mut off = Vec::new();
        for pair in pairs(1) {
            let happens = slowed(ON, ContentionTruth::Measured, &pair);
            let predicted = slowed(ON, ContentionTruth::Predicted, &pair);
            off.extend(
                happens.iter().zip(&predicted).map(|(a, b)| (float(*b) / float(*a) - 1.0).abs()),
            );
        }
        off.sort_by(f64::total_cmp);
        let median = off[off.len() / 2];
        assert!((0.02..0.12).contains(&median), "{median}");
        let same = off.iter().filter(|off| **off < 0.005).count();
        assert!(same * 3 < off.len(), "{same} of {} are the same", off.len());
    }

    #[test]
    fn an_a30_follows_the_study_and_a_job_of_unknown_demands_misos_constant() {
        let pair = [(demanding("a", 300, 250), 100), (demanding("b", 300, 250), 100)];
        let a30 = SharedInstance { gpu: "a30-24gb", slices: 4, whole: 4 };
        let study = slowed(a30, ContentionTruth::Study, &pair);
        assert_eq!(slowed(a30, ContentionTruth::Measured, &pair), study);
        assert_ne!(
            slowed(ON, ContentionTruth::Measured, &pair),
            slowed(ON, ContentionTruth::Study, &pair)
        );
        let unknown = [pair[0].clone(), (job(), 100)];
        assert_eq!(slowed(ON, ContentionTruth::Measured, &unknown), [1_150, 1_150]);
    }

    #[test]
    fn a_controller_predicts_no_more_than_the_speed_of_a_job_whose_kernels_fill_the_gpu() {
        let client = |busy| MpsClient { online: false, sm: SmPercent::WHOLE, busy };
        let light = ON.speeds_by_busy(&[client(Some(100)), client(Some(100))]);
        let unknown = ON.speeds_by_busy(&[client(None), client(Some(100))]);
        assert!(light[0].low <= light[0].expected && light[0].expected <= light[0].high);
        assert!(
            light[0].expected > 950 && unknown[1].expected < light[1].expected,
            "{light:?} {unknown:?}"
        );
        let alone = ON.speeds_by_busy(&[client(Some(900))]);
        assert_eq!((alone[0].low, alone[0].expected), (1_000, 1_000));
    }

    #[test]
    fn most_speeds_that_happen_are_in_the_intervals_that_are_predicted() {
        let (mut inside, mut all) = (0, 0);
        for pair in pairs(2) {
            let happens = slowed(ON, ContentionTruth::Measured, &pair);
            let sharers: Vec<MpsSharer> = ON
                .sharers(&pair.each_ref().map(|(job, cap)| SharingJob { job, cap: *cap }))
                .unwrap();
            let predicted = ContentionModel::A100.speeds(&sharers);
            for (slowed, predicted) in happens.iter().zip(predicted) {
                all += 1;
                inside += usize::from(predicted.covers(1_000_000 / slowed));
            }
        }
        let part = count(inside) / count(all);
        assert!((0.8..=0.99).contains(&part), "{part}");
    }

    proptest! {
        #[test]
        fn the_order_of_jobs_has_no_effect_and_one_more_speeds_nobody_up(
            demands in prop::collection::vec((10_u16..1_000, 0_u16..300, 10_u8..=100), 2..5),
            turn in 0_usize..4,
        ) {
            let jobs: Vec<(SimulatedJob, u8)> = (0..)
                .zip(demands)
                .map(|(at, (sm, memory, cap)): (u8, _)| (demanding(&format!("job {at}"), sm, memory), cap))
                .collect();
            for truth in [ContentionTruth::Measured, ContentionTruth::Predicted, ContentionTruth::Study] {
                let all = slowed(ON, truth, &jobs);
                let mut turned = jobs.clone();
                turned.rotate_left(turn % jobs.len());
                let mut expected = all.clone();
                expected.rotate_left(turn % jobs.len());
                prop_assert_eq!(slowed(ON, truth, &turned), expected);
                prop_assert!(all.iter().all(|slowed| *slowed >= 1_000), "{truth:?}: {all:?}");
                if truth != ContentionTruth::Study {
                    let fewer = slowed(ON, truth, &jobs[..jobs.len() - 1]);
                    prop_assert!(fewer.iter().zip(&all).all(|(fewer, all)| fewer <= all), "{truth:?}");
                }
            }
        }
    }
}
