//! What is left to tell of a run that is over.

use super::{SimulationRun, number};
use crate::cluster::fleet::GpuFleet;
use crate::cluster::job::SimulatedJob;
use crate::cluster::metrics::{JobOutcome, RunRecord};

impl<'s> SimulationRun<'s> {
    pub(crate) const fn fleet(&self) -> &'s GpuFleet {
        self.setup.fleet
    }

    pub(crate) const fn workload(&self) -> &'s [SimulatedJob] {
        self.setup.jobs
    }

    pub(crate) fn policy_name(&self) -> &'static str {
        self.setup.policy.name()
    }

    /// When the last job was done.
    pub(crate) fn end_of_time(&self) -> u64 {
        self.tasks.iter().filter_map(|task| task.ended).max().unwrap_or(0)
    }

    pub(crate) fn take_record(&mut self) -> RunRecord {
        std::mem::take(&mut self.record)
    }

    pub(crate) fn energy_millijoules(&mut self, now: u64) -> u64 {
        let sum: u128 = self
            .cards
            .iter_mut()
            .map(|card| {
                card.draw(now, 0);
                card.microjoules
            })
            .sum();
        u64::try_from(sum / 1_000).unwrap_or(u64::MAX)
    }

    pub(crate) fn job_outcomes(&self) -> Vec<JobOutcome> {
        let jobs = self.setup.jobs.iter().zip(&self.tasks).enumerate();
        jobs.map(|(place, (job, task))| {
            let end_ms = task.ended.unwrap_or(self.now);
            JobOutcome {
                job: number(place),
                name: job.name.clone(),
                submit_ms: job.submit_ms,
                start_ms: task.first_start.unwrap_or(end_ms),
                end_ms,
                moves: task.moves,
                preemptions: task.preempted,
                out_of_memory: task.out_of_memory,
                in_time: job.deadline_ms.map(|deadline| end_ms <= deadline),
            }
        })
        .collect()
    }
}
