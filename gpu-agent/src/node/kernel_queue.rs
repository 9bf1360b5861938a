//! Attempts with kernel-level sharing. They are admitted to their slice's queue before they start,
//! and removed from it when they have ended.

mod reports;

use std::collections::BTreeMap;

use tessera_frames::cluster::{KernelQueueSpec, LaunchOrder, ProfilePiece};
use tessera_kernel_queue::TaskKey;
use tessera_model::AttemptId;
use tessera_model::life::Outcome;
use tessera_model::share::{MpsShare, SmPercent};
use tessera_model::spec::Class;

pub(super) use reports::KernelReports;

use super::AgentNode;
use crate::kernel::{AdmitError, EndpointHandle, KernelEvent};
use tessera_agent_core::kernel::key::task_key;
use tessera_agent_core::kernel::{Admission, PageOwner};

/// The attempt can't start in the kernel tier.
#[derive(Debug, thiserror::Error)]
enum AdmissionFailure {
    #[error("the node's agent has no shim")]
    NoShim,
    #[error(transparent)]
    Refused(#[from] AdmitError),
}

impl AgentNode {
    /// Returns whether the node has kernel queues.
    pub(super) const fn has_kernel_queues(&self) -> bool {
        self.kernel_endpoint.is_some() && (!self.facts.kernel_over_mps || self.facts.mps.is_some())
    }

    /// Returns the MPS share of an attempt; `None` if it runs without MPS.
    pub(super) fn mps_share_of(&self, order: &LaunchOrder) -> Option<MpsShare> {
        let Some(terms) = &order.kernel else { return order.share };
        let by_class = match terms.class {
            Class::Online => SmPercent::WHOLE,
            Class::Offline => self.facts.kernel_offline_percent,
        };
        let sm = terms.sm.unwrap_or(by_class);
        self.facts.kernel_over_mps.then_some(MpsShare { sm, memory: terms.memory })
    }

    /// Admits an attempt to its slice's queue, if it uses one, and starts it.
    pub(super) fn admit_and_start(
        &mut self,
        order: LaunchOrder,
        mut more: Vec<(String, String)>,
        before_kill: Vec<String>,
    ) {
        let attempt = order.attempt;
        let Some(terms) = order.kernel.clone() else {
            return self.hand_over(order, more, before_kill);
        };
        let admitted = match &self.kernel_endpoint {
            Some(kernel_endpoint) => {
                self.admit(kernel_endpoint, &order, &terms, &more).map_err(AdmissionFailure::from)
            }
            None => Err(AdmissionFailure::NoShim),
        };
        match admitted {
            Ok(environment) => {
                self.queued.insert(attempt);
                self.kernel_reports.request_profile(task_of(&order, &terms));
                self.send_kernel_reports();
                more.extend(environment);
                self.hand_over(order, more, before_kill);
            }
            Err(failure) => {
                self.never_starts(attempt, Outcome::NotStarted, failure.to_string());
            }
        }
    }

    fn admit(
        &self,
        kernel_endpoint: &EndpointHandle,
        order: &LaunchOrder,
        terms: &KernelQueueSpec,
        more: &[(String, String)],
    ) -> Result<Vec<(String, String)>, AdmitError> {
        let admission = Admission {
            attempt: order.attempt,
            gpu: order.gpu.clone(),
            slice: order.slice.clone(),
            task: task_of(order, terms),
            priority: terms.priority,
            class: terms.class,
            share_thousandths: self
                .mps_share_of(order)
                .map_or(1_000, |share| u32::from(share.sm.get()) * 10),
            exclusive: terms.exclusive,
            owner: self
                .account_of(order.attempt)
                .map(|account| PageOwner { uid: account.uid, gid: account.gid }),
        };
        // Library paths are extended, so the program's complete environment is needed.
        let around = &self.facts.environment;
        let mut found: BTreeMap<String, String> = around.base.clone();
        found.extend(around.passed.clone());
        found.extend(order.run.env.clone());
        found.extend(more.iter().cloned());
        kernel_endpoint.admit(admission, &found)
    }

    /// Admits the attempts of an earlier agent again.
    pub(super) fn readmit_attempts(&mut self, alive: &[AttemptId]) {
        let Some(kernel_endpoint) = &self.kernel_endpoint else { return };
        for admission in kernel_endpoint.adopt(|attempt| alive.contains(&attempt)) {
            self.queued.insert(admission.attempt);
            self.kernel_reports.request_profile(admission.task);
        }
    }

    /// Removes attempts that have ended from their queues.
    pub(super) fn end_queued_attempts(&mut self) {
        let Some(kernel_endpoint) = &self.kernel_endpoint else { return };
        let attempts = &self.attempts;
        self.queued.retain(|attempt| {
            let alive = attempts.is_alive(*attempt);
            if !alive {
                kernel_endpoint.end_attempt(*attempt);
            }
            alive
        });
    }

    pub(super) fn on_kernel_event(&mut self, event: KernelEvent) {
        match event {
            KernelEvent::Learned { task, learned } => {
                let kernels = learned.added.kernels().len() + learned.replaced.kernels().len();
                tracing::info!(%task, kernels, "a task's kernel profile changed");
                self.kernel_reports.add_learned(task, &learned);
            }
            KernelEvent::Over { attempt, tally } => {
                self.kernel_reports.add_ended(attempt, &tally);
            }
        }
        self.send_kernel_reports();
    }

    /// Passes on the controller's profile of a task.
    pub(super) fn on_profile_piece(&mut self, piece: ProfilePiece) {
        if let (Some(kernel_endpoint), Some((task, profile))) =
            (&self.kernel_endpoint, self.kernel_reports.add_profile_piece(piece))
        {
            kernel_endpoint.share_profile(&task, &profile);
        }
    }

    pub(super) fn on_report_acknowledged(&mut self, number: u64) {
        self.kernel_reports.on_acknowledged(number);
        self.send_kernel_reports();
    }
}

fn task_of(order: &LaunchOrder, terms: &KernelQueueSpec) -> TaskKey {
    task_key(&order.user, terms.task_key.as_deref(), &order.run.program)
}
