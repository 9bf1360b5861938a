//! Which sessions are holders and which are fillers.

use super::KernelQueue;
use super::session::WaitStart;
use crate::action::{QueueAction, Role};
use crate::rules::KernelSharing;

impl KernelQueue {
    /// Assigns every session its role. If the holders changed, all grants of gaps end.
    pub(super) fn assign_roles(&mut self) {
        if self.rules.sharing == KernelSharing::Exclusive && self.owner.is_none() {
            // Sessions are in the order of joining, and `min_by_key` returns the first among
            // equals.
            self.owner =
                self.sessions.iter().min_by_key(|session| session.priority).map(|first| first.id);
        }
        let changes_side = |at| self.role_of(at).is_holder() != self.sessions[at].role.is_holder();
        if (0..self.sessions.len()).any(changes_side) {
            self.end_gap_leases();
        }
        for at in 0..self.sessions.len() {
            let role = self.role_of(at);
            let session = &mut self.sessions[at];
            let was = std::mem::replace(&mut session.role, role);
            if std::mem::replace(&mut session.is_role_sent, true) && was == role {
                continue;
            }
            self.actions.push(QueueAction::Role { session: session.id, role });
            // Its records in the old role had another meaning, or were not sent.
            session.gap = None;
            session.active_at = self.now;
            if role.is_holder() && !was.is_holder() {
                self.promote_to_holder(at);
            }
        }
    }

    /// Returns whether fillers have the device to themselves, because their holder is only expected.
    pub(super) fn is_holder_absent(&self) -> bool {
        self.sessions.iter().all(|session| !session.role.is_holder())
    }

    /// Returns how many kernels of fillers may be in the device's queue.
    pub(super) fn window(&self) -> u16 {
        let rules = &self.rules;
        if self.is_holder_absent() {
            rules.in_flight.max(rules.in_flight_while_expected)
        } else {
            rules.in_flight
        }
    }

    fn role_of(&self, at: usize) -> Role {
        let session = &self.sessions[at];
        let holds = match self.rules.sharing {
            KernelSharing::Exclusive => self.owner == Some(session.id),
            KernelSharing::Interleaved | KernelSharing::Colocated { .. } => {
                let expected = self.expected.into_iter();
                let others = self.sessions.iter().map(|other| other.priority);
                others.chain(expected).all(|other| session.priority <= other)
            }
        };
        if !holds {
            Role::Fill
        } else if !self.tasks[session.task].profile.is_measured() {
            Role::Measure
        } else if self.sessions.len() == 1 {
            Role::Free
        } else {
            Role::Hold
        }
    }

    /// Makes a filler a holder: its launches need no grants any more.
    fn promote_to_holder(&mut self, at: usize) {
        self.end_lease(at, true);
        self.end_wait(at);
        self.waiting.remove_session(self.sessions[at].id);
    }

    /// Ends a session's wait and counts it.
    fn end_wait(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let Some(wait_start) = session.wait_start.take() else { return };
        let waited = self.now.minus(wait_start.at);
        session.counters.note_wait(waited);
        self.counters.note_wait(waited);
    }

    /// Ends a session's wait because it launched. If other launches of it wait, a new wait begins.
    pub(super) fn end_wait_by_launch(&mut self, at: usize) {
        self.end_wait(at);
        let session = &self.sessions[at];
        let id = session.id;
        if self.waiting.launches_of(session.priority).any(|request| request.session == id) {
            self.sessions[at].wait_start = Some(WaitStart { at: self.now, served: self.served });
        }
    }
}
