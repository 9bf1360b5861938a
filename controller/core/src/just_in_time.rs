//! What a program allocates before its first kernel, and what the driver refused it: needs that are known just in time
//! (MIGM §2.2).
//!
//! They are lower bounds for the job's next attempt. A slice that can't hold what was allocated, as with managed memory, is
//! reported, and the job is moved at once if its predictions are acted on.

use crate::attempt_changes::AttemptChanges;
use crate::memory_growth::next_size_of;
use crate::rows::growth::GrowthRow;
use crate::rows::needs::NeedRow;
use tessera_frames::cluster::AttemptNeeds;
use tessera_model::life::JobState;
use tessera_model::readings::ReadingUnit;
use tessera_model::sizing::MemoryPrediction;
use tessera_model::{Bytes, Millis, NodeId};
use tessera_predict::peak::GrowthForecast;

impl AttemptChanges<'_> {
    /// Records the minimum that an attempt needs.
    pub(crate) fn record_needs(&mut self, node: NodeId, needs: &AttemptNeeds, now: Millis) {
        let AttemptNeeds { attempt, held, multiprocessors, refused } = *needs;
        let Some(live) = self.attempts.live.get_mut(&attempt) else { return };
        if live.node != node || !matches!(live.state, JobState::Running | JobState::Stopping) {
            return;
        }
        live.refused = refused;
        // Sharers have their own limits, and the members of a gang have one size.
        let is_alone = live.share.is_none() && live.gang.is_none();
        let Some(launch_spec) = live.launch_spec.as_mut().filter(|_| is_alone) else { return };
        let own = launch_spec.own;
        let held = Some(held).filter(|held| *held > Bytes::ZERO);
        let multiprocessors = Some(multiprocessors).filter(|number| *number > 0);
        if held <= own.held && multiprocessors <= own.multiprocessors {
            return;
        }
        launch_spec.own.held = own.held.max(held);
        launch_spec.own.multiprocessors = own.multiprocessors.max(multiprocessors);
        self.jobs.needs.push(NeedRow { job: live.job, attempt, held, multiprocessors });
        if held > Some(live.gpu_memory) && live.state == JobState::Running {
            self.outgrow(needs, now);
        }
    }

    /// Reports that an attempt's slice can't hold what it allocated, and moves its job if that is to be done.
    fn outgrow(&mut self, needs: &AttemptNeeds, now: Millis) {
        let AttemptNeeds { attempt, held, .. } = *needs;
        let Some(live) = self.attempts.live.get(&attempt) else { return };
        let next = match self.watches.mode_of(live) {
            MemoryPrediction::Off => return,
            MemoryPrediction::Advise => None,
            MemoryPrediction::Act => {
                next_size_of(self.inventory, self.migrations, live, attempt, held, self.unix)
            }
        };
        let capacity = live.gpu_memory;
        let mut row = GrowthRow::of(live.job, attempt, capacity);
        row.forecast = Some(GrowthForecast {
            unit: ReadingUnit::Iterations,
            position: 0,
            used: held,
            capacity,
            crossing: 0,
            earliest: 0,
            after: Millis::ZERO,
            peak: None,
        });
        let what = format!(
            "it allocated {held} of GPU memory before its first kernel, more than its {capacity}"
        );
        row.event = Some(match next {
            Some(next) => format!("{what}: it is moved to a slice with at least {next}"),
            None => what,
        });
        (row.is_first, row.at_least) = (true, next);
        self.jobs.growths.push(row);
        let watched = self.watches.live.entry(attempt).or_default();
        watched.reported = true;
        watched.moving |= next.is_some();
        if let Some(next) = next {
            self.begin_growth(attempt, next, now);
        }
    }
}
