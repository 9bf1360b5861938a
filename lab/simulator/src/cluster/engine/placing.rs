//! Jobs on their instances: placement, loading, work, and end.

use tessera_model::number::clamped;
use tessera_placement::{InstanceState, PlacedJob};

use super::{SimulationEvent, SimulationRun, TaskPhase, TaskPlacement, id, index};
use crate::cluster::job::WHOLE;

/// Returns how much of a job is finished in a number of milliseconds at a speed.
pub(super) fn progress(elapsed_ms: u64, pace: u64) -> u64 {
    let parts = u128::from(elapsed_ms) * 1_000 * u128::from(WHOLE) / u128::from(pace.max(1));
    clamped(parts)
}

/// Returns the milliseconds, rounded up, in which this many parts are done at a speed.
pub(super) fn lasts(parts: u64, pace: u64) -> u64 {
    let ms = (u128::from(parts) * u128::from(pace)).div_ceil(1_000 * u128::from(WHOLE));
    clamped(ms)
}

impl SimulationRun<'_> {
    pub(super) fn place_task(&mut self, task: usize, gpu: usize, placed: PlacedJob) {
        let PlacedJob { slot, sm, kernel_priority, .. } = placed;
        let now = self.now;
        self.running += 1;
        let phase = TaskPhase::Making;
        let spot = TaskPlacement {
            gpu,
            slot,
            sm,
            kernel_priority,
            since: now,
            began: None,
            phase,
            settled: now,
            pace: u64::MAX,
        };
        self.charge(task, &spot);
        self.tasks[task].spot = Some(spot);
    }

    /// Lets a job start or restore, with its whole gang, if its instance was just created.
    pub(super) fn load(&mut self, task: usize) {
        if self.all_stand(task) {
            self.companions(task).into_iter().for_each(|task| self.load_one(task));
        }
    }

    fn load_one(&mut self, task: usize) {
        let Some(mut spot) = self.tasks[task].spot.filter(|s| s.phase == TaskPhase::Making) else {
            return;
        };
        let job = &self.setup.jobs[task];
        let launch = self.setup.overheads.start_ms(job);
        let costs = match (self.tasks[task].saved, self.tasks[task].left < WHOLE) {
            (true, true) => self.setup.overheads.move_ms(job).unwrap_or(0),
            (true, false) => self.setup.overheads.move_ms(job).unwrap_or(0).max(launch),
            (false, _) => launch,
        };
        if self.tasks[task].saved {
            self.tasks[task].moves += 1;
            self.record.moves += 1;
            self.record.moving_ms += costs;
        }
        self.note_restart(task, costs);
        self.tasks[task].first_start.get_or_insert(self.now);
        spot.phase = TaskPhase::Loading(self.now + costs);
        spot.settled = self.now;
        spot.began = Some(self.now);
        self.tasks[task].spot = Some(spot);
        self.review_after_cooldown(task);
        self.schedule_limit(task);
        self.tasks[task].stamp += 1;
        let stamp = self.tasks[task].stamp;
        self.schedule(self.now + costs, SimulationEvent::Wakes { job: task, stamp });
    }

    /// Removes a job from its GPU and keeps its progress.
    pub(super) fn stop(&mut self, task: usize) {
        self.settle(task);
        let Some(spot) = self.tasks[task].spot.take() else { return };
        self.running -= 1;
        self.refund(task, &spot);
        self.receive(task, &spot);
        self.segment(task, &spot);
        self.tasks[task].stamp += 1;
        let keeps = self.setup.overheads.move_ms(&self.setup.jobs[task]).is_some();
        if keeps {
            // A launched job has to be launched again, whether or not it has work to checkpoint.
            self.tasks[task].saved |= spot.phase != TaskPhase::Making;
            let done = WHOLE - self.tasks[task].left;
            let kept = self.setup.jobs[task].kept(done);
            self.record.lost_parts += u128::from(done - kept);
            self.tasks[task].left = WHOLE - kept;
        } else {
            self.record.lost_parts += u128::from(WHOLE - self.tasks[task].left);
            self.tasks[task].left = WHOLE;
            self.tasks[task].saved = false;
        }
        self.stale.insert(spot.gpu);
    }

    /// Counts the time of a placement that ends.
    fn receive(&mut self, task: usize, spot: &TaskPlacement) {
        let model = self.gpu_states[spot.gpu].key;
        *self.tasks[task].received.entry(model).or_default() += self.now - spot.since;
    }

    /// Counts a job's progress until now.
    pub(super) fn settle(&mut self, task: usize) {
        let now = self.now;
        let Some(spot) = &mut self.tasks[task].spot else { return };
        if spot.phase == TaskPhase::Works {
            let done = progress(now - spot.settled, spot.pace);
            spot.settled = now;
            self.tasks[task].left = self.tasks[task].left.saturating_sub(done);
        }
    }

    /// Removes a job from its GPU permanently, or without its progress.
    pub(super) fn leave(&mut self, task: usize) {
        let Some(spot) = self.tasks[task].spot.take() else { return };
        self.running -= 1;
        self.refund(task, &spot);
        self.receive(task, &spot);
        self.segment(task, &spot);
        self.tasks[task].stamp += 1;
        self.stale.insert(spot.gpu);
        self.free(task, &spot);
    }

    /// Frees the part of an instance that a job had.
    pub(super) fn free(&mut self, task: usize, spot: &TaskPlacement) {
        self.touch(spot.gpu);
        let gpu = &mut self.view.gpus[spot.gpu];
        for instance in gpu.instances.iter_mut().filter(|i| i.slot == spot.slot) {
            match &mut instance.state {
                InstanceState::Shared(tenancy) => {
                    tenancy.remove(id(task));
                    if tenancy.sharers.is_empty() {
                        instance.state = InstanceState::Idle;
                    }
                }
                state => *state = InstanceState::Idle,
            }
        }
    }

    pub(super) fn jobs_on(&self, gpu: usize) -> Vec<usize> {
        let mut jobs = Vec::new();
        for instance in &self.view.gpus[gpu].instances {
            match &instance.state {
                InstanceState::Taken { job } => jobs.push(index(*job)),
                InstanceState::Shared(tenancy) => {
                    jobs.extend(tenancy.sharers.iter().map(|(job, _)| index(*job)));
                }
                InstanceState::Idle
                | InstanceState::Cut(_)
                | InstanceState::Foreign
                | InstanceState::Stuck
                | InstanceState::Leaving
                | InstanceState::Quarantined => {}
            }
        }
        jobs
    }
}
