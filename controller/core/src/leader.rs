//! Operations of the leader on the state, other than rounds: settings, leases, commits, models. Each
//! function names the owners that it changes.

use crate::LaunchSpec;
use crate::accounts::Accounts;
use crate::answers::ModelStatus;
use crate::colocation::ColocationModel;
use crate::dispatch::{dispatch, set_launch_specs};
use crate::predicting::{model_status, record_task_load, use_colocation_model};
use crate::predictions::OutcomeCounts;
use crate::predictions::trained::RunTimeModel;
use crate::round::{Round, RoundEffect};
use crate::rows::findings::CommitFindings;
use crate::sessions::{grant_lease, is_braking};
use crate::state::ClusterState;
use crate::state::planner::Stopwatch;
use crate::state::settled::SettledQueue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tessera_frames::cluster::ToAgent;
use tessera_model::sizing::MemoryPrediction;
use tessera_model::{AttemptId, JobId, Millis, NodeId, NodeName};
use tessera_placement::TaskLoad;
use tessera_placement::power::PowerCap;
use tessera_placement::preemption::PreemptionRules;

impl ClusterState {
    /// Returns the leader's epoch.
    pub const fn epoch(&self) -> u64 {
        self.guards.epoch
    }

    /// Sets the offset of the wall clock from the boot clock. Users state deadlines on the wall
    /// clock.
    pub const fn set_wall_clock(&mut self, now: Millis, unix: Millis) {
        self.clock.set_wall_clock(now, unix);
    }

    /// Sets the migration cooldown: how long a job runs at least before it is migrated (again).
    pub const fn set_migration_cooldown(&mut self, cooldown: Millis) {
        self.migrations.cooldown = cooldown;
    }

    /// Sets the rules by which online jobs may send offline jobs back to the queue.
    pub const fn set_preemption_rules(&mut self, rules: PreemptionRules) {
        self.migrations.preemptions.rules = rules;
    }

    /// Sets the action on predictions that jobs exceed their slices, for jobs that set none.
    pub const fn set_memory_prediction(&mut self, default: MemoryPrediction) {
        self.watches.default = Some(default);
    }

    /// Sets the most power that all GPUs may draw together.
    pub fn set_power_cap(&mut self, cap: Option<PowerCap>) {
        if self.planner.power_cap != cap {
            self.planner.power_cap = cap;
            // What could not start under the former cap may start now.
            self.planner.settled.unsettle();
        }
    }

    /// Sets how long a round may search for better placements, measured by a stopwatch. Without a
    /// stopwatch only the policy's limit on searches applies.
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

    /// Replaces the accounts, and keeps what users used. The half-life of usage stays as it is, since the ledger
    /// has only sums that are weighted by it.
    pub fn replace_accounts(&mut self, accounts: Accounts) {
        self.accounting.accounts = accounts.with_half_life_of(&self.accounting.accounts);
        // What could not start under the former quotas may start now.
        self.planner.settled = SettledQueue::default();
    }

    /// Returns the policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.planner.policy.name()
    }

    /// Returns how long placement is still held; zero if it is not held (rule F14).
    pub fn placement_held_for(&self, now: Millis) -> Millis {
        self.guards.hold_until.minus(now)
    }

    /// Returns the outcomes of predicted memory since the last call. They are kept over a reload.
    pub fn take_memory_outcomes(&mut self) -> OutcomeCounts {
        std::mem::take(&mut self.predictions.memory_outcomes)
    }

    /// Returns the node with a name.
    pub fn node_named(&self, name: &NodeName) -> Option<NodeId> {
        self.inventory.nodes.iter().find(|(_, node)| node.name == *name).map(|(id, _)| *id)
    }

    /// Returns whether most nodes became silent at once. Then none is declared lost, since the
    /// controller itself is probably disconnected.
    pub fn is_braking(&self, now: Millis) -> bool {
        is_braking(&self.inventory, now)
    }

    /// Grants a node another lease. Its end is recorded here before the grant is sent (rule F6);
    /// the caller has checked that this controller still leads (rule F3).
    ///
    /// Returns `None` if the node is lost, has another generation, or is on another connection.
    pub fn renew_lease(
        &mut self,
        node: NodeId,
        session: u64,
        sent: Millis,
        generation: u64,
        now: Millis,
        now_unix: Millis,
    ) -> Option<ToAgent> {
        let expiry = self.guards.expiry_from(now);
        let connection = (node, session);
        grant_lease(&mut self.inventory, connection, generation, expiry, now_unix)?;
        self.clock.unix = now_unix;
        Some(ToAgent::RenewOk { sent, generation })
    }

    /// Gives reserved attempts their launch specifications, once their reservation is committed.
    pub fn set_launch_specs(
        &mut self,
        launch_specs: HashMap<JobId, LaunchSpec>,
        traces: &HashMap<AttemptId, String>,
    ) {
        set_launch_specs(&mut self.attempts, launch_specs, traces);
    }

    /// Returns what is to be sent now: plans that were committed, launches and stops that were
    /// never sent or stay unanswered.
    pub fn dispatch(&mut self, now: Millis) -> Vec<RoundEffect> {
        let Self { guards, accounting, inventory, migrations, layouts, attempts, .. } = self;
        dispatch((guards, &accounting.accounts), inventory, migrations, layouts, attempts, now)
    }

    /// Remembers the jobs that users changed: a later announcement is out of date.
    pub fn remember_commanded(&mut self, round: &Round, findings: &CommitFindings, now: Millis) {
        let commanded = round.taken(&findings.moved).map(|(job, _)| (job, now));
        self.queue.recently_commanded.extend(commanded);
    }

    /// Uses a new model of how slices compare, unless the outcomes of its newest predictions
    /// show that it is not accurate.
    pub fn use_run_time_model(&mut self, model: Arc<RunTimeModel>, outcomes: &[bool]) {
        self.predictions.estimator.use_model(model, outcomes);
    }

    /// Uses a new model of co-located jobs, unless the outcomes of its newest predictions show that
    /// it is not accurate.
    pub fn use_colocation_model(&mut self, model: Arc<ColocationModel>, outcomes: &[bool]) {
        use_colocation_model(&mut self.predictions, model, outcomes);
    }

    /// Returns the models that predictions come from, and whether each is trusted.
    pub fn model_status(&self) -> ModelStatus {
        model_status(&self.predictions)
    }

    /// Records the load of tasks, and updates all jobs that share slices.
    pub fn record_task_load(&mut self, tasks: Vec<(String, TaskLoad)>) {
        record_task_load(&mut self.predictions, &mut self.queue, &mut self.attempts, tasks);
    }
}
