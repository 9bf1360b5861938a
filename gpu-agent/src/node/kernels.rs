//! Attempts whose kernels take turns: admitted to their slice's queue before they start, and
//! taken out of it when they are over.

use std::collections::BTreeMap;

use tessera_model::AttemptId;
use tessera_model::life::Outcome;
use tessera_model::share::{MpsShare, SmPercent};
use tessera_wire::frames::{KernelTerms, LaunchOrder};

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
            Some(desk) => self.admit(desk, &order, terms, &more),
            None => Err("the node's agent has no shim".to_owned()),
        };
        match admitted {
            Ok(environment) => {
                self.queued.insert(attempt);
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
        terms: KernelTerms,
        more: &[(String, String)],
    ) -> Result<Vec<(String, String)>, String> {
        let admission = Admission {
            attempt: order.attempt,
            slice: order.slice.clone(),
            task: task_key(&order.user, terms.task_key.as_deref(), &order.program),
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
        if let Some(desk) = &self.desk {
            self.queued = desk.adopt(|attempt| alive.contains(&attempt)).into_iter().collect();
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
                tracing::debug!(%task, added = learned.added.kernels().len(), "learned of a task's kernels");
            }
            KernelEvent::Over { attempt, tally } => {
                tracing::debug!(%attempt, launches = tally.counters.launches, "left its kernel queue");
            }
        }
    }
}
