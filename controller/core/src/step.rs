//! One round: inputs in, decisions out.

use crate::input::Input;
use crate::plans::make_ready;
use crate::round::Round;
use crate::state::ClusterState;
use std::sync::Arc;
use tessera_model::{JobId, Millis};
use uuid::Uuid;

impl ClusterState {
    /// Decides what follows from `inputs`, in their order.
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
        for input in inputs {
            self.handle_input(input, now, &mut round);
        }
        self.welcome_successors(now, &mut round);
        self.expire_nodes(now, &mut round);
        self.resume_gangs(&mut round);
        make_ready(&mut self.attempts, &self.inventory, &mut round);
        self.give_up_impossible(&mut round);
        self.plan_requested_layouts(now, new_id, &mut round);
        self.place_kept_jobs(now, new_id, &mut round);
        if !round.is_empty() {
            self.planner.settled.unsettle();
        }
        let record = match self.is_settled(&arrived, now) {
            true => None,
            false => self.place_waiting_jobs(now, new_id, &mut round),
        };
        self.order_plans(now, new_id, &mut round.plans);
        if let Some(record) = record.filter(|_| !round.is_empty()) {
            round.record = Some(Arc::new(self.planner.recorder.keep_record(record)));
        }
        round
    }
}
