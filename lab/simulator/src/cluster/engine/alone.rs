//! Times of jobs alone, laid out so that they are found without looking anything up: policies use
//! them more often than anything else.

use super::super::job::SimulatedJob;
use crate::cluster::fleet::GpuFleet;

/// Sizes that are laid out: no known model has more compute slices.
const SIZES: usize = 9;

/// The time of a job where it doesn't run.
const NEVER: u64 = u64::MAX;

/// Every job's times on the models of a fleet.
#[derive(Clone, Debug)]
pub(super) struct SoloTimes<'s> {
    jobs: &'s [SimulatedJob],
    models: Vec<&'s str>,
    /// For each job and each model, the time by compute slices.
    times: Vec<[u64; SIZES]>,
}

impl<'s> SoloTimes<'s> {
    pub(super) fn of(jobs: &'s [SimulatedJob], fleet: &'s GpuFleet) -> Self {
        let mut models: Vec<&str> = Vec::new();
        for gpu in &fleet.view.gpus {
            if !models.contains(&gpu.model.as_str()) {
                models.push(&gpu.model);
            }
        }
        let times = jobs.iter().flat_map(|job| models.iter().map(move |model| (job, *model)));
        let times = times.map(|(job, model)| {
            let mut sizes = 0..;
            [NEVER; SIZES].map(|never| {
                let slices = sizes.next().unwrap_or(u8::MAX);
                job.time(model, slices).unwrap_or(never)
            })
        });
        let times = times.collect();
        Self { jobs, models, times }
    }

    /// Returns [`SimulatedJob::time`] of a job by its number in the workload.
    pub(super) fn time(&self, job: usize, model: &str, slices: u8) -> Option<u64> {
        let size = usize::from(slices);
        match self.models.iter().position(|known| *known == model) {
            Some(place) if size < SIZES => {
                let known = self.times.get(job * self.models.len() + place)?[size];
                (known != NEVER).then_some(known)
            }
            _ => self.jobs.get(job)?.time(model, slices),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::job::tests::job;

    #[test]
    fn times_are_those_of_the_jobs() {
        let slow = SimulatedJob { times: [("*".to_owned(), [(4, 9_000)].into())].into(), ..job() };
        let jobs = [job(), slow];
        let fleet = GpuFleet::parse("1xa100-40gb,1xa30-24gb").expect("a fleet");

        let alone = SoloTimes::of(&jobs, &fleet);

        for (number, job) in jobs.iter().enumerate() {
            for (model, slices) in [("a100-40gb", 0), ("a100-40gb", 3), ("a30-24gb", 7), ("x", 40)]
            {
                assert_eq!(alone.time(number, model, slices), job.time(model, slices));
            }
        }
        assert_eq!(alone.time(2, "a100-40gb", 7), None);
    }
}
