//! The leader's state in memory: what it knows of the cluster, by owner.

use crate::accounts::Accounts;
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
use tessera_model::Millis;

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

/// The leader's state of the cluster. Each part has one owner.
#[derive(Debug)]
pub struct ClusterState {
    /// What this leader may do, and from when.
    pub(crate) guards: LeaderGuards,
    /// Nodes with their GPUs and connections.
    pub(crate) inventory: NodeInventory,
    /// Jobs that wait.
    pub(crate) queue: JobQueue,
    /// Attempts that hold places.
    pub(crate) attempts: AttemptTable,
    /// Requested layouts, and plans that are not sent yet.
    pub(crate) layouts: LayoutRequests,
    /// Running jobs that are moved, and the places kept for them.
    pub(crate) migrations: Migrations,
    /// What accounts may hold, and what their users used recently.
    pub(crate) accounting: Accounting,
    /// What is known of how tasks behave.
    pub(crate) predictions: Predictions,
    /// Administrative overrides in force.
    pub(crate) overrides: OverrideTable,
    /// The placement policy with what it needs beside the cluster.
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
}

impl ClusterState {
    /// Returns the leader's epoch.
    pub const fn epoch(&self) -> u64 {
        self.guards.epoch
    }

    /// Sets how long a job runs at least before it is asked to move, or to move again.
    pub const fn set_migration_cooldown(&mut self, rest: Millis) {
        self.migrations.cooldown = rest;
    }

    /// Sets how long a round may spend on improving placements, as a stopwatch measures it.
    /// Without a stopwatch only the policy's limit on searches applies.
    pub fn set_improve_budget(&mut self, time: Duration, stopwatch: Arc<dyn Stopwatch>) {
        self.planner.improve_for = time;
        self.planner.stopwatch = stopwatch;
    }

    /// Sets the accounts, and the users' usage before this leader's time, as time on one compute
    /// slice.
    pub fn set_accounts(&mut self, accounts: Accounts, had: Vec<(String, Millis)>, now: Millis) {
        self.accounting.accounts = accounts;
        self.accounting.ledger.begin(had, &self.accounting.accounts, now);
    }

    /// Returns the policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.planner.policy.name()
    }

    /// Returns how long placement is still held; zero if it goes on (rule F14).
    pub fn held_for(&self, now: Millis) -> Millis {
        self.guards.hold_until.minus(now)
    }
}
