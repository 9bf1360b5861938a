//! The leader's state in memory: what it knows of the cluster, by owner.

use crate::accounts::Accounts;
use crate::predictions::OutcomeCounts;
use crate::state::accounting::Accounting;
use crate::state::attempts::AttemptTable;
use crate::state::guards::LeaderGuards;
use crate::state::inventory::NodeInventory;
use crate::state::layouts::LayoutRequests;
use crate::state::migrations::Migrations;
use crate::state::overrides::OverrideTable;
use crate::state::planner::{Planner, Stopwatch};
use crate::state::predictions::Predictions;
use crate::state::queue::JobQueue;
use std::sync::Arc;
use std::time::Duration;
use tessera_model::{GpuId, Millis, NodeId, NodeName};

pub(crate) mod accounting;
pub(crate) mod attempts;
pub(crate) mod guards;
pub(crate) mod inventory;
pub(crate) mod layouts;
pub(crate) mod migrations;
pub(crate) mod overrides;
pub(crate) mod planner;
pub(crate) mod predictions;
pub(crate) mod queue;
pub(crate) mod settled;

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

    /// Returns a time of the wall clock on the boot clock; zero if it was before the boot.
    pub(crate) const fn on_boot_clock(&self, unix: Millis) -> Millis {
        unix.minus(self.unix_ahead)
    }
}

impl ClusterState {
    /// Takes in how the wall clock stands to the boot clock. Users state deadlines on the wall clock.
    pub fn set_wall_clock(&mut self, now: Millis, unix: Millis) {
        let ahead = unix.minus(now);
        let off = ahead.get().abs_diff(self.clock.unix_ahead.get());
        if off > RoundClock::DRIFT_MAX.get() {
            self.clock.unix_ahead = ahead;
        }
    }

    /// Returns the leader's epoch.
    pub const fn epoch(&self) -> u64 {
        self.guards.epoch
    }

    /// Sets the migration cooldown: how long a job runs at least before it is migrated (again).
    pub const fn set_migration_cooldown(&mut self, cooldown: Millis) {
        self.migrations.cooldown = cooldown;
    }

    /// Sets how long a round may spend on improving placements, as a stopwatch measures it.
    /// Without a stopwatch only the policy's limit on searches applies.
    pub fn set_improve_budget(&mut self, time: Duration, stopwatch: Arc<dyn Stopwatch>) {
        self.planner.improve_for = time;
        self.planner.stopwatch = stopwatch;
    }

    /// Sets the accounts, and the users' usage before this leader's time, as time on one compute
    /// slice.
    pub fn set_accounts(
        &mut self,
        accounts: Accounts,
        earlier: Vec<(String, Millis)>,
        now: Millis,
    ) {
        self.accounting.accounts = accounts;
        self.accounting.ledger.begin(earlier, &self.accounting.accounts, now);
    }

    /// Returns the policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.planner.policy.name()
    }

    /// Returns how long placement is still held; zero if it goes on (rule F14).
    pub fn placement_held_for(&self, now: Millis) -> Millis {
        self.guards.hold_until.minus(now)
    }

    /// Returns the outcomes of predicted memory since the last call. They outlast a reload.
    pub fn take_memory_outcomes(&mut self) -> OutcomeCounts {
        std::mem::take(&mut self.predictions.memory_outcomes)
    }

    /// Returns the node of a name.
    pub fn node_named(&self, name: &NodeName) -> Option<NodeId> {
        self.inventory.nodes.iter().find(|(_, node)| node.name == *name).map(|(id, _)| *id)
    }

    /// Returns the node that a GPU is in, if it is known and connected.
    pub fn node_of_gpu(&self, gpu: &GpuId) -> Option<NodeId> {
        let node = self.inventory.gpus.get(gpu)?.node;
        self.inventory.nodes.get(&node)?.session.as_ref().map(|_| node)
    }
}
