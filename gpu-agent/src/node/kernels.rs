//! Attempts whose kernels take turns: admitted to their slice's queue before they start, and
//! taken out of it when they are over.

mod reports;

use std::collections::BTreeMap;

use tessera_kernel_queue::TaskKey;
use tessera_model::AttemptId;
use tessera_model::life::Outcome;
use tessera_model::share::{MpsShare, SmPercent};
use tessera_wire::frames::{KernelTerms, LaunchOrder, Piece};

pub(super) use reports::Reports;

use super::Node;
use crate::core::kernel::Admission;
use crate::core::kernel::key::task_key;
use crate::kernel::{Desk, KernelEvent};

/// A share of all multiprocessors.
const WHOLE_THOUSANDTHS: u32 = 1_000;

impl Node {
    /// Tells whether the node has kernel queues.
    pub(super) const fn has_queues(&self) -> bool {
        self.desk.is_some() && (!self.facts.kernel_over_mps || self.facts.mps.is_some())
    }

    /// Returns what an attempt needs of MPS; `None` if it does without.
    pub(super) fn share_of(&self, order: &LaunchOrder) -> Option<MpsShare> {
        let beneath = order.kernel.as_ref().filter(|_| self.facts.kernel_over_mps);
        let whole = beneath.map(|terms| MpsShare { sm: SmPercent::WHOLE, memory: terms.memory });
        order.share.or(whole)
    }

    /// Admits an attempt to its slice's queue, if it is to stand in one, and starts it.
    pub(super) fn queue_up(
        &mut self,
        order: LaunchOrder,
        mut more: Vec<(String, String)>,
        before_kill: Vec<String>,
    ) {
        let attempt = order.attempt;
        let Some(terms) = order.kernel.clone() else {
            return self.hand_over(order, more, before_kill);
        };
        let admitted = match &self.desk {
            Some(desk) => self.admit(desk, &order, &terms, &more),
            None => Err("the node's agent has no shim".to_owned()),
        };
        match admitted {
            Ok(environment) => {
                self.queued.insert(attempt);
                self.reports.want(task_of(&order, &terms));
                self.tell_kernels();
                more.extend(environment);
                self.hand_over(order, more, before_kill);
            }
            Err(reason) => self.never_starts(attempt, Outcome::NotStarted, reason),
        }
    }

    fn admit(
        &self,
        desk: &Desk,
        order: &LaunchOrder,
        terms: &KernelTerms,
        more: &[(String, String)],
    ) -> Result<Vec<(String, String)>, String> {
        let admission = Admission {
            attempt: order.attempt,
            slice: order.slice.clone(),
            task: task_of(order, terms),
            priority: terms.priority,
            class: terms.class,
            share_thousandths: WHOLE_THOUSANDTHS,
        };
        // What names libraries already is added to, as the program would find it.
        let around = &self.facts.environment;
        let mut found: BTreeMap<String, String> = around.base.clone();
        found.extend(around.passed.clone());
        found.extend(order.env.clone());
        found.extend(more.iter().cloned());
        desk.admit(admission, &found).map_err(|refused| refused.to_string())
    }

    /// Lets the attempts that an earlier agent admitted join again.
    pub(super) fn adopt_queued(&mut self, alive: &[AttemptId]) {
        let Some(desk) = &self.desk else { return };
        for admission in desk.adopt(|attempt| alive.contains(&attempt)) {
            self.queued.insert(admission.attempt);
            self.reports.want(admission.task);
        }
    }

    /// Takes attempts that are over out of their queues.
    pub(super) fn leave_queues(&mut self) {
        let Some(desk) = &self.desk else { return };
        let attempts = &self.attempts;
        self.queued.retain(|attempt| {
            let alive = attempts.is_alive(*attempt);
            if !alive {
                desk.ended(*attempt);
            }
            alive
        });
    }

    pub(super) fn on_kernel(&mut self, event: KernelEvent) {
        match event {
            KernelEvent::Learned { task, learned } => {
                let kernels = learned.added.kernels().len() + learned.replaced.kernels().len();
                tracing::info!(%task, kernels, "learned of a task's kernels");
                self.reports.learned(task, &learned);
            }
            KernelEvent::Over { attempt, tally } => {
                self.reports.over(attempt, &tally);
            }
        }
        self.tell_kernels();
    }

    /// Hands on what the controller knows of a task.
    pub(super) fn on_profile(&mut self, piece: Piece) {
        if let (Some(desk), Some(order)) = (&self.desk, self.reports.known(piece)) {
            desk.learn(order);
        }
    }

    pub(super) fn report_acknowledged(&mut self, number: u64) {
        self.reports.acknowledged(number);
        self.tell_kernels();
    }
}

fn task_of(order: &LaunchOrder, terms: &KernelTerms) -> TaskKey {
    task_key(&order.user, terms.task_key.as_deref(), &order.program)
}
