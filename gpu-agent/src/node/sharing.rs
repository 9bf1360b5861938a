//! Attempts that share a slice: they are not started before the slice serves, and their ends are
//! judged before they are reported.

use tessera_frames::cluster::{ExitRecord, LaunchOrder, StopCause};
use tessera_model::AttemptId;
use tessera_model::life::Outcome;

use super::AgentNode;
use crate::messages::mps::{MpsEvent, MpsOrder, SharerRequest};
use crate::shepherd::job::never_ran;
use tessera_agent_core::attempts::AttemptEffect;
use tessera_agent_core::mps::SharerOrder;
use tessera_agent_core::shepherd::KillReason;
use tessera_agent_core::shepherd::verdict::killed;

impl AgentNode {
    /// Requests a share; the attempt starts with [`MpsEvent::Ready`].
    pub(super) fn request_share(&mut self, order: LaunchOrder) {
        let attempt = order.attempt;
        let Some(share) = self.mps_share_of(&order) else { return };
        let (slice, user) = (order.slice.clone(), order.user.clone());
        let account = self.account_of(attempt).cloned();
        let kernels = order.kernel.as_ref();
        let sharer_order =
            kernels.map_or(SharerOrder::Percentages, |terms| SharerOrder::KernelQueue(terms.class));
        let request = SharerRequest { attempt, slice, user, account, share, order: sharer_order };
        let request = MpsOrder::Share(request);
        self.shared.insert(attempt);
        self.unshared.insert(attempt, order);
        if self.facts.mps.is_none() {
            self.never_starts(attempt, Outcome::NotStarted, "the node has no MPS".to_owned());
        } else if self.mps.try_send(request).is_err() {
            let reason = "too many orders wait for MPS".to_owned();
            self.never_starts(attempt, Outcome::NotStarted, reason);
        }
    }

    pub(super) fn on_mps(&mut self, event: MpsEvent) {
        match event {
            MpsEvent::Ready { attempt, environment, before_kill } => {
                let Some(order) = self.unshared.remove(&attempt) else { return };
                let standing = self.standing();
                // The wait may have been longer than the lease (F5, F7).
                if standing.leased && order.generation == standing.generation {
                    self.admit_and_start(order, environment, before_kill);
                } else {
                    let reason = "the node's lease expired".to_owned();
                    self.never_starts(attempt, Outcome::NotStarted, reason);
                }
            }
            MpsEvent::Refused { attempt, reason } => {
                self.never_starts(attempt, Outcome::NotStarted, reason);
            }
            MpsEvent::Fault { attempts } => {
                for attempt in attempts {
                    self.act(vec![AttemptEffect::Kill(attempt, KillReason::MpsFault)]);
                }
            }
            MpsEvent::Judged { attempt, record } => {
                self.shared.remove(&attempt);
                self.over(attempt, *record);
            }
        }
    }

    /// Ends an attempt that waits for its share, if it does; returns whether it did.
    pub(super) fn stop_unshared(&mut self, attempt: AttemptId, cause: StopCause) -> bool {
        let outcome = match cause {
            StopCause::Cancel => Outcome::Cancelled,
            StopCause::Preempt | StopCause::Reshare | StopCause::Move | StopCause::Grow => {
                Outcome::Preempted
            }
        };
        let waits = self.unshared.contains_key(&attempt);
        if waits {
            self.never_starts(attempt, outcome, String::new());
        }
        waits
    }

    /// As [`Self::stop_unshared`], for a kill.
    pub(super) fn kill_unshared(&mut self, attempt: AttemptId, reason: KillReason) -> bool {
        let waits = self.unshared.contains_key(&attempt);
        if waits {
            let (outcome, detail) = killed(reason);
            self.never_starts(attempt, outcome, detail);
        }
        waits
    }

    pub(super) fn never_starts(&mut self, attempt: AttemptId, outcome: Outcome, detail: String) {
        self.unshared.remove(&attempt);
        self.give_share_back(attempt);
        let effects = self.attempts.end_here(attempt, never_ran(outcome, detail));
        self.act(effects);
    }

    /// Releases the share of an attempt.
    pub(super) fn give_share_back(&mut self, attempt: AttemptId) {
        if self.shared.remove(&attempt) {
            self.send_to_mps(MpsOrder::Ended { attempt, record: None });
        }
    }

    /// Requests a verdict on the end of a sharer, or records the end as it is.
    pub(super) fn judge_or_end(&mut self, attempt: AttemptId, record: ExitRecord) {
        let order = MpsOrder::Ended { attempt, record: Some(Box::new(record.clone())) };
        if !self.shared.contains(&attempt) || !self.send_to_mps(order) {
            self.over(attempt, record);
        }
    }

    pub(super) fn send_to_mps(&self, order: MpsOrder) -> bool {
        let reported = self.mps.try_send(order);
        if let Err(refused) = &reported {
            tracing::error!(%refused, "MPS takes no orders");
        }
        reported.is_ok()
    }
}
