//! The leader's state in memory, by owner.

use crate::state::accounting::Accounting;
use crate::state::attempts::AttemptTable;
use crate::state::guards::LeaderGuards;
use crate::state::inventory::NodeInventory;
use crate::state::layouts::LayoutRequests;
use crate::state::migrations::Migrations;
use crate::state::overrides::OverrideTable;
use crate::state::planner::Planner;
use crate::state::predictions::Predictions;
use crate::state::queue::JobQueue;
use crate::state::watches::MemoryWatches;
use tessera_model::Millis;

pub(crate) mod accounting;
pub(crate) mod attempts;
pub(crate) mod dependencies;
pub(crate) mod guards;
pub(crate) mod inventory;
pub(crate) mod layouts;
pub(crate) mod migrations;
pub(crate) mod overrides;
pub(crate) mod planner;
pub(crate) mod predictions;
pub(crate) mod preemptions;
pub(crate) mod queue;
pub(crate) mod settled;
pub(crate) mod watches;

/// The leader's state of the cluster. Each part has one owner.
#[derive(Debug)]
pub struct ClusterState {
    /// The restrictions on this leader's actions.
    pub(crate) guards: LeaderGuards,
    /// Nodes with their GPUs and connections.
    pub(crate) inventory: NodeInventory,
    /// The waiting jobs.
    pub(crate) queue: JobQueue,
    /// Attempts that hold placements.
    pub(crate) attempts: AttemptTable,
    /// Requested layouts, and plans that are not sent yet.
    pub(crate) layouts: LayoutRequests,
    /// Running jobs that are migrated, and the placements kept for them.
    pub(crate) migrations: Migrations,
    /// Quotas of accounts, and the recent usage of their users.
    pub(crate) accounting: Accounting,
    /// The learned behaviour of tasks.
    pub(crate) predictions: Predictions,
    /// The memory of running attempts, and its predictions.
    pub(crate) watches: MemoryWatches,
    /// Administrative overrides in force.
    pub(crate) overrides: OverrideTable,
    /// The placement policy with what it needs in addition to the cluster.
    pub(crate) planner: Planner,
    pub(crate) clock: RoundClock,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundClock {
    /// The last known wall-clock time, in milliseconds since 1970; for display only.
    pub(crate) unix: Millis,
    /// When the last round was decided, on the boot clock.
    pub(crate) round_at: Millis,
    /// The lead of the wall clock over the boot clock. It is kept while it is wrong by less than
    /// [`RoundClock::DRIFT_MAX`], so that a deadline stays the same from round to round.
    pub(crate) unix_ahead: Millis,
}

impl RoundClock {
    /// The allowed error of deadlines. Chosen: users don't state deadlines to the second.
    const DRIFT_MAX: Millis = Millis::from_secs(1);

    /// Sets the offset of the wall clock from the boot clock. Users state deadlines on the wall
    /// clock.
    pub(crate) const fn set_wall_clock(&mut self, now: Millis, unix: Millis) {
        let ahead = unix.minus(now);
        if ahead.get().abs_diff(self.unix_ahead.get()) > Self::DRIFT_MAX.get() {
            self.unix_ahead = ahead;
        }
    }

    /// Returns a time of the wall clock on the boot clock; zero if it was before the boot.
    pub(crate) const fn on_boot_clock(&self, unix: Millis) -> Millis {
        unix.minus(self.unix_ahead)
    }
}
