//! Online jobs that send offline jobs back to the queue, by the same rules as in a controller.

use tessera_model::Millis;
use tessera_model::number::clamped;
use tessera_placement::policy::session::LOOK_AT_MAX;
use tessera_placement::preemption::{Preemption, PreemptionMode, PreemptionPrice, RunningJob};
use tessera_placement::preemption_search::add_preemptions;
use tessera_placement::{Decision, QueuedJob};

use super::{SimulationError, SimulationRun, TaskPhase, forecast, gangs, index, placing};
use crate::cluster::job::{JobClass, WHOLE};

impl SimulationRun<'_> {
    /// Returns whether a waiting job may send others back now.
    pub(super) fn may_preempt(&self, task: usize) -> bool {
        let Some(job) = self.setup.jobs.get(task) else { return false };
        let waited = Millis::new(self.now.saturating_sub(job.submit_ms));
        self.setup.overheads.preemption.may_preempt(job.class == JobClass::Online, waited)
    }

    /// Returns what sending a running job back costs, if that is allowed. `rest` is when it is expected to end.
    pub(super) fn preemption_price(
        &self,
        task: usize,
        rest: Option<Millis>,
    ) -> Option<PreemptionPrice> {
        let (job, state) = (self.setup.jobs.get(task)?, self.tasks.get(task)?);
        let spot = state.spot.filter(|spot| spot.phase == TaskPhase::Works)?;
        let restore = self.setup.overheads.move_ms(job);
        let running = RunningJob {
            online: job.class == JobClass::Online,
            saves: restore.is_some(),
            requeueable: true,
            has_deadline: job.deadline_ms.is_some(),
            gang: gangs::member(job, task),
            began: Some(Millis::new(spot.since)),
            preempted: state.sent_back,
            // A simulated job stops at once.
            stop: Millis::ZERO,
            restore: Millis::new(restore.unwrap_or_else(|| self.setup.overheads.start_ms(job))),
            ends_in: rest,
        };
        self.setup.overheads.preemption.price(&running, Millis::new(self.now)).ok()
    }

    /// Lets waiting online jobs send offline jobs back at the end of a round, like a controller.
    pub(super) fn preempt(&self, decisions: &mut Vec<Decision>) {
        let rules = self.setup.overheads.preemption;
        if rules.online_over_offline == PreemptionMode::Off || self.queue.is_empty() {
            return;
        }
        let waiting = self.queue.iter().take(LOOK_AT_MAX);
        let waiting: Vec<QueuedJob> = waiting.map(|(_, job)| self.queued(index(*job))).collect();
        let waiting: Vec<&QueuedJob> = waiting.iter().collect();
        let forecast = forecast::RunPredictions::new(self);
        let (policy, now) = (self.setup.policy, Millis::new(self.now));
        add_preemptions(policy, &self.view, forecast.knowledge(), &waiting, decisions, now);
    }

    /// Sends jobs back to the queue, and starts the other one on their place.
    pub(super) fn send_back(&mut self, preemption: &Preemption) -> Result<(), SimulationError> {
        for job in &preemption.sent_back {
            let task = index(*job);
            let Some(spot) = self.tasks.get(task).and_then(|known| known.spot) else {
                return Err(self.impossible(format!("{job:?} is sent back, but doesn't run")));
            };
            self.settle(task);
            let done = WHOLE - self.tasks[task].left;
            self.stop(task);
            let kept = WHOLE - self.tasks[task].left;
            self.free(task, &spot);
            let repeated = if done > kept { placing::lasts(done - kept, spot.pace) } else { 0 };
            let state = &mut self.tasks[task];
            state.sent_back += 1;
            state.sent_back_ms += repeated;
            state.resumes = true;
            self.preempted.insert(task);
            self.enqueue(task);
        }
        self.start(preemption.job, &preemption.place)
    }

    /// Counts the restart of a job that was sent back; `costs` is how long it takes.
    pub(super) fn note_restart(&mut self, task: usize, costs: u64) {
        let state = &mut self.tasks[task];
        if std::mem::take(&mut state.resumes) {
            state.sent_back_ms += costs;
        }
    }

    /// Returns the time that all jobs lost by being sent back, in milliseconds.
    pub(super) fn sent_back_ms(&self) -> u64 {
        clamped(self.tasks.iter().map(|task| u128::from(task.sent_back_ms)).sum::<u128>())
    }
}
