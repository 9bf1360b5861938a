//! Restrictions on this leader's actions: its epoch, and what earlier leaders may have granted.

use tessera_frames::cluster::{AttemptReport, AttemptStatus, StopCause, ToAgent};
use tessera_model::lease::LeaseTerms;
use tessera_model::{AttemptId, ControllerId, Millis};

/// The restrictions on a leader's actions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaderGuards {
    pub(crate) epoch: u64,
    pub(crate) controller: ControllerId,
    pub(crate) lease: LeaseTerms,
    /// No job is placed before this time (rule F14).
    pub(crate) hold_until: Millis,
    /// Earlier leaders' grants may be valid until then (rule F4).
    pub(crate) granted_until: Millis,
    /// Nodes of lower generations are lost: the database was rolled back, and later grants to them
    /// are not known (rule F14).
    pub(crate) generation_min: u64,
}

impl LeaderGuards {
    /// Answers the report of an attempt that is not live on that node. Its result does not count,
    /// and if it still runs it has to stop (rule F10).
    pub(crate) fn answer_unknown_attempt(&self, report: &AttemptReport) -> ToAgent {
        let attempt = report.attempt;
        match report.status {
            AttemptStatus::Ended(_) => ToAgent::EndAck { attempt },
            AttemptStatus::Journalled | AttemptStatus::Running { .. } => {
                ToAgent::Revoke { epoch: self.epoch, attempt }
            }
        }
    }

    /// Returns the frame that ends an attempt: a stop where the node has it, otherwise a
    /// revocation, after which it never starts.
    pub(crate) fn stop_frame(&self, attempt: AttemptId, acknowledged: bool) -> ToAgent {
        if acknowledged {
            ToAgent::Stop { epoch: self.epoch, attempt, cause: StopCause::Cancel }
        } else {
            ToAgent::Revoke { epoch: self.epoch, attempt }
        }
    }

    /// Returns when a node is declared lost if it never reports again. Leases of an earlier leader
    /// may last longer, so their end is awaited, too.
    pub(crate) fn expiry_from(&self, now: Millis) -> Millis {
        self.lease.controller_expiry(now).max(self.granted_until)
    }
}
