//! One round: inputs in, decisions out.
//!
//! Only this module, [`crate::input`] and [`crate::placing`] hold the whole state and the whole round. They
//! lead each decision to the owners and the rows that it may change.

use crate::attempt_changes::AttemptChanges;
use crate::commands::operator::{LayoutCommand, OperatorOutcome, OperatorRefusal, RefusalKind};
use crate::gate::give_up_never_satisfied;
use crate::gpu_changes::GpuChanges;
use crate::input::{Input, InputReach};
use crate::layouts::{LAYOUT_REQUESTS_MAX, find_same_plan};
use crate::mig_mode::give_up_mig_modes;
use crate::migration::PlacementLimits;
use crate::plans::{make_ready, order_plans};
use crate::round::Round;
use crate::sessions::{LostNode, close_lost_node, overdue_nodes, rolled_back_nodes};
use crate::state::ClusterState;
use std::sync::Arc;
use tessera_model::life::Outcome;
use tessera_model::{JobId, Millis};
use uuid::Uuid;

impl ClusterState {
    /// Handles `inputs` in their order and decides the round.
    ///
    /// `new_id` makes new ids, ordered by time.
    pub fn step(
        &mut self,
        inputs: Vec<Input>,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Round {
        let mut round = Round::default();
        self.clock.round_at = now;
        let arrived: Vec<JobId> = inputs.iter().flat_map(Input::new_jobs).collect();
        let reach = inputs.iter().map(Input::reach).max().unwrap_or(InputReach::Queue);
        for input in inputs {
            self.handle_input(input, now, &mut round);
        }
        give_up_never_satisfied(&mut self.queue, &mut round.jobs);
        self.welcome_successors(now, &mut round);
        self.expire_nodes(now, &mut round);
        self.attempt_changes(&mut round).resume_gangs();
        make_ready(&mut self.attempts, &self.inventory, &mut round.jobs, &mut round.effects);
        let (mut changes, limits) = self.placement_changes(&mut round);
        changes.give_up_impossible(limits.overrides);
        self.plan_requested_layouts(now, new_id, &mut round);
        give_up_mig_modes(&self.inventory, &mut self.layouts, now, &mut round.answers);
        let (mut changes, limits) = self.placement_changes(&mut round);
        changes.place_kept_jobs(limits, now, new_id);
        let record = match self.is_settled(reach, &arrived, &round, now) {
            true => None,
            false => self.place_waiting_jobs(now, new_id, &mut round),
        };
        let (inventory, layouts) = (&mut self.inventory, &mut self.layouts);
        let (attempts, overrides) = (&self.attempts, &self.overrides);
        order_plans(inventory, layouts, attempts, overrides, now, new_id, &mut round.plans);
        self.queue.dependencies.note_changes(&round.jobs);
        round.questions = self.queue.dependencies.take_questions();
        if let Some(record) = record.filter(|_| !round.is_empty()) {
            round.record = Some(Arc::new(self.planner.recorder.keep_record(record)));
        }
        round
    }

    /// Returns the parts of the state that attempts may change.
    pub(crate) const fn attempt_changes<'r>(
        &'r mut self,
        round: &'r mut Round,
    ) -> AttemptChanges<'r> {
        self.placement_changes(round).0
    }

    /// Returns the parts of the state that attempts may change, and the restrictions on new ones.
    pub(crate) const fn placement_changes<'r>(
        &'r mut self,
        round: &'r mut Round,
    ) -> (AttemptChanges<'r>, PlacementLimits<'r>) {
        let changes = AttemptChanges {
            attempts: &mut self.attempts,
            queue: &mut self.queue,
            migrations: &mut self.migrations,
            accounting: &mut self.accounting,
            predictions: &mut self.predictions,
            watches: &mut self.watches,
            inventory: &self.inventory,
            jobs: &mut round.jobs,
            effects: &mut round.effects,
            round_at: self.clock.round_at,
            unix: self.clock.unix,
        };
        let limits = PlacementLimits {
            overrides: &self.overrides,
            layouts: &self.layouts,
            hold_until: self.guards.hold_until,
        };
        (changes, limits)
    }

    /// Returns the parts of the state that plans and requested layouts may change.
    pub(crate) const fn gpu_changes<'r>(&'r mut self, round: &'r mut Round) -> GpuChanges<'r> {
        GpuChanges {
            inventory: &mut self.inventory,
            layouts: &mut self.layouts,
            overrides: &mut self.overrides,
            plan_writes: &mut round.plans,
            override_writes: &mut round.overrides,
            now_unix: self.clock.unix,
        }
    }

    /// Declares nodes with expired leases lost, and ends their attempts.
    fn expire_nodes(&mut self, now: Millis, round: &mut Round) {
        for lost in rolled_back_nodes(&self.inventory, self.guards.generation_min) {
            self.lose_node(&lost, round);
        }
        for lost in overdue_nodes(&self.inventory, now) {
            self.lose_node(&lost, round);
        }
    }

    fn lose_node(&mut self, lost: &LostNode, round: &mut Round) {
        close_lost_node(&mut self.inventory, lost, &mut round.nodes, &mut round.effects);
        self.gpu_changes(round).give_up_layouts(lost.node, &lost.detail);
        let attempts = self.attempts.on_node(lost.node);
        let mut changes = self.attempt_changes(round);
        for attempt in attempts {
            changes.end_without_exit(attempt, Outcome::Lost, &lost.detail);
        }
    }

    /// Plans the requested layouts whose GPUs are free, and answers those that are impossible.
    fn plan_requested_layouts(
        &mut self,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        for pending in std::mem::take(&mut self.layouts.pending) {
            let answer = self.plan_requested_layout(&pending.command, new_id, round);
            let changing = matches!(&answer, Err(refused) if refused.kind == RefusalKind::Changing);
            if changing && now < pending.until && self.layouts.pending.len() < LAYOUT_REQUESTS_MAX {
                self.layouts.pending.push(pending);
                continue;
            }
            round.answers.operators.push((pending.token, answer));
        }
    }

    fn plan_requested_layout(
        &mut self,
        command: &LayoutCommand,
        new_id: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) -> Result<OperatorOutcome, OperatorRefusal> {
        if let Some(plan) = find_same_plan(&self.inventory, command)? {
            return Ok(OperatorOutcome::Planned { plan });
        }
        let planned = self.plan_layout(&command.gpu, &command.desired)?;
        self.gpu_changes(round).begin_requested_layout(command, &planned, new_id)
    }
}
