//! The migration cooldown, by the controller's rule.

use tessera_model::Millis;
use tessera_placement::migration_cooldown::{has_rested, rested_at};

use super::{SimulationEvent, SimulationRun, SimulationSetup};

/// Returns the migration cooldown of a run, if its policy moves jobs in controllers. The papers' policies, which
/// no controller runs, move jobs whenever their papers do.
pub(super) fn cooldown_of(setup: &SimulationSetup<'_>) -> Option<Millis> {
    setup.policy.moves().then_some(Millis::new(setup.overheads.migration_cooldown_ms))
}

impl SimulationRun<'_> {
    /// Returns whether the cooldown lets a job be migrated now. A waiting job has none.
    pub(super) fn has_rested(&self, task: usize) -> bool {
        let Some((cooldown, spot)) = self.cooldown.zip(self.tasks[task].spot) else { return true };
        has_rested(spot.began.map(Millis::new), cooldown, Millis::new(self.now))
    }

    /// Lets the policy decide when a job that just began may be migrated again: a controller reviews the placements of
    /// running jobs every two seconds.
    pub(super) fn review_after_cooldown(&mut self, task: usize) {
        let is_movable = self.setup.overheads.move_ms(&self.setup.jobs[task]).is_some();
        let Some(cooldown) =
            self.cooldown.filter(|cooldown| is_movable && *cooldown > Millis::ZERO)
        else {
            return;
        };
        let at = rested_at(Millis::new(self.now), cooldown);
        self.schedule(at.get(), SimulationEvent::Rested { job: task, began: self.now });
    }

    /// The cooldown of a job has ended, if it is still where it was. A session keeps what it knows of a GPU until that
    /// GPU changes, and which of its jobs can be moved is a part of that.
    pub(super) fn rested(&mut self, task: usize, began: u64) -> bool {
        let here = self.tasks[task].spot.filter(|spot| spot.began == Some(began));
        if let Some(spot) = here {
            self.touch(spot.gpu);
        }
        here.is_some()
    }
}
