//! The leader's state in memory: what it knows of the cluster, by owner.

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
pub(crate) mod queue;
pub(crate) mod settled;
pub(crate) mod watches;

/// The leader's state of the cluster. Each part has one owner.
#[derive(Debug)]
pub struct ClusterState {
    /// What this leader may do, and from when.
    pub(crate) guards: LeaderGuards,
    /// Nodes with their GPUs and connections.
    pub(crate) inventory: NodeInventory,
    /// Jobs that wait.
    pub(crate) queue: JobQueue,
    /// Attempts that hold placements.
    pub(crate) attempts: AttemptTable,
    /// Requested layouts, and plans that are not sent yet.
    pub(crate) layouts: LayoutRequests,
    /// Running jobs that are migrated, and the placements kept for them.
    pub(crate) migrations: Migrations,
    /// What accounts may hold, and what their users used recently.
    pub(crate) accounting: Accounting,
    /// What is known of how tasks behave.
    pub(crate) predictions: Predictions,
    /// The memory of running attempts, and what is predicted of it.
    pub(crate) watches: MemoryWatches,
    /// Administrative overrides in force.
    pub(crate) overrides: OverrideTable,
    /// The placement policy with what it needs besides the cluster.
    pub(crate) planner: Planner,
    pub(crate) clock: RoundClock,
}

/// Times that a round is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundClock {
    /// The wall clock as it was last given, milliseconds since 1970; for people only.
    pub(crate) unix: Millis,
    /// When the last round was decided, on the boot clock.
    pub(crate) round_at: Millis,
    /// How far the wall clock is ahead of the boot clock. It is kept while it is off by less than
    /// [`RoundClock::DRIFT_MAX`], so that a deadline stays the same from round to round.
    pub(crate) unix_ahead: Millis,
}

impl RoundClock {
    /// How far deadlines may be off. Chosen: nobody states one to the second.
    const DRIFT_MAX: Millis = Millis::from_secs(1);

    /// Takes in how the wall clock stands to the boot clock. Users state deadlines on the wall clock.
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
