//! Time limits: a job that runs longer ends, whatever is left of it, as a controller's jobs do.

use super::{SimulationEvent, SimulationRun};

impl SimulationRun<'_> {
    /// Schedules the end of a job that just began at its time limit. A limit holds for one placement: a job that is
    /// moved or sent back has all of it again, as each attempt has in a controller.
    pub(super) fn schedule_limit(&mut self, task: usize) {
        let Some(limit) = self.setup.jobs[task].limit_ms else { return };
        let at = self.now.saturating_add(limit);
        self.schedule(at, SimulationEvent::Limit { job: task, began: self.now });
    }

    /// Ends a job at its time limit, with its whole gang, if it is still where it was; returns whether it ended. A job
    /// that finishes its work at that moment has kept its limit.
    pub(super) fn end_at_limit(&mut self, task: usize, began: u64) -> bool {
        if self.tasks[task].spot.is_none_or(|spot| spot.began != Some(began)) {
            return false;
        }
        let all = self.companions(task);
        all.iter().for_each(|task| self.settle(*task));
        if self.tasks[task].left == 0 {
            return false;
        }
        for task in all {
            self.leave(task);
            self.tasks[task].timed_out = self.tasks[task].left > 0;
            self.tasks[task].ended = Some(self.now);
            self.ended += 1;
        }
        true
    }
}
