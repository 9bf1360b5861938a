//! The outcome of a run that has ended.

use super::{SimulationRun, number};
use crate::cluster::job::{JobClass, WHOLE};
use crate::cluster::metrics::{JobOutcome, RunOutcome};
use crate::cluster::number::{count, float};
use tessera_model::number::clamped;

impl SimulationRun<'_> {
    pub(super) fn outcome(mut self) -> RunOutcome {
        let now = self.tasks.iter().filter_map(|task| task.ended).max().unwrap_or(0);
        let jobs: Vec<JobOutcome> = self.job_outcomes();
        let fleet = self.setup.fleet;
        let solo: u64 = self.finished_alone_ms();
        let capacity_ms = float(now.max(1)) * count(fleet.keys.len());
        let mut record = std::mem::take(&mut self.record);
        record.close_slices(now);
        RunOutcome {
            policy: self.setup.policy.name().to_owned(),
            jobs,
            makespan_ms: now,
            millijoules: self.energy_millijoules(now),
            reconfigurations: record.reconfigurations,
            cutting_ms: record.cutting_ms,
            cutting_millijoules: clamped(record.cutting_microjoules / 1_000),
            moves: record.moves,
            moving_ms: record.moving_ms,
            preemptions: record.preemptions,
            sent_back_ms: Some(self.sent_back_ms()),
            out_of_memory: record.out_of_memory,
            system_throughput: float(solo) / capacity_ms,
            samples: record.samples,
            segments: record.segments,
            slices: record.slices,
        }
    }

    /// Returns the time alone on whole GPUs of what was finished: of a job that ended at its limit, a part.
    fn finished_alone_ms(&self) -> u64 {
        let models = self.setup.fleet.models();
        let jobs = self.setup.jobs.iter().zip(&self.tasks);
        let alone = jobs.filter_map(|(job, task)| {
            let whole = u128::from(job.fastest(&models)?);
            Some(whole * u128::from(WHOLE - task.left) / u128::from(WHOLE))
        });
        clamped(alone.sum::<u128>())
    }

    fn energy_millijoules(&mut self, now: u64) -> u64 {
        let sum: u128 = self
            .gpu_states
            .iter_mut()
            .map(|gpu_state| {
                gpu_state.draw(now, 0);
                gpu_state.microjoules
            })
            .sum();
        clamped(sum / 1_000)
    }

    fn job_outcomes(&self) -> Vec<JobOutcome> {
        let jobs = self.setup.jobs.iter().zip(&self.tasks).enumerate();
        jobs.map(|(place, (job, task))| {
            let end_ms = task.ended.unwrap_or(self.now);
            JobOutcome {
                job: number(place),
                name: job.name.clone(),
                online: job.class == JobClass::Online,
                submit_ms: job.submit_ms,
                start_ms: task.first_start.unwrap_or(end_ms),
                end_ms,
                moves: task.moves,
                preemptions: task.preempted,
                out_of_memory: task.out_of_memory,
                timed_out: task.timed_out,
                // As in a controller: a job that was stopped at its limit has met no deadline.
                in_time: job.deadline_ms.map(|deadline| !task.timed_out && end_ms <= deadline),
            }
        })
        .collect()
    }
}
