//! Which sessions are holders and which are fillers.
//!
//! An attempt in exclusive mode waits until no session of a better priority is there, nor one of the same priority that
//! was there before. Then it has the slice until its last session ends, and nothing else is launched. Where FIKIT (§5)
//! leaves this mode open:
//!
//! * The device is not taken from it, not even by a better priority: a task runs from its begin to its end.
//! * While it waits, nothing of it runs in the gaps of others, since it would run next to them.
//! * Later sessions of its priority wait for it, so its own wait ends.

use super::KernelQueue;
use super::launches::KernelLoss;
use super::session::SliceOwner;
use crate::action::{QueueAction, Role};
use crate::rules::KernelSharing;
use crate::time::Nanos;
use crate::waiting::WaitStart;

impl KernelQueue {
    /// Assigns every session its role. If the holders changed, all grants of gaps end.
    pub(super) fn assign_roles(&mut self) {
        self.choose_owner();
        self.choose_among_equals();
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
            if role.is_holder() {
                // Here, since launches allocate nothing.
                session.course.get_or_insert_default().interrupt();
            }
            if role.is_holder() && !was.is_holder() {
                self.promote_to_holder(at);
            }
        }
    }

    /// Gives the slice to the first session, if that is in exclusive mode.
    fn choose_owner(&mut self) {
        if self.owner.is_some() {
            return;
        }
        // Sessions are in the order of joining, and `min_by_key` returns the first among equals.
        let Some(first) = self.sessions.iter().min_by_key(|session| session.priority) else {
            return;
        };
        self.owner = match self.rules.sharing {
            KernelSharing::Exclusive => Some(SliceOwner::Session(first.id)),
            KernelSharing::Interleaved | KernelSharing::Colocated { .. } => {
                first.exclusive.map(SliceOwner::Attempt)
            }
        };
    }

    /// Returns whether a session goes before another one, which is not in exclusive mode.
    fn precedes(&self, at: usize, other: usize) -> bool {
        let (first, second) = (&self.sessions[at], &self.sessions[other]);
        first.priority < second.priority
            || (first.priority == second.priority && first.exclusive.is_some() && at < other)
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

    /// Returns whether no other session, and no expected one, goes before this one.
    pub(super) fn is_of_highest_priority(&self, at: usize) -> bool {
        let session = &self.sessions[at];
        session.exclusive.is_none()
            && self.expected.is_none_or(|expected| session.priority <= expected)
            && !(0..self.sessions.len()).any(|other| self.precedes(other, at))
    }

    fn role_of(&self, at: usize) -> Role {
        let session = &self.sessions[at];
        let holds = match self.owner {
            Some(owner) => owner.is(session),
            None => self.is_of_highest_priority(at) && self.is_chosen(at),
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
        let id = self.sessions[at].id;
        self.waiting.remove_session(id);
        // From now on its kernels in flight cost no other holder.
        for index in 0..self.running.len() {
            if self.running[index].session == id {
                let run = self.running[index];
                let _ = self.settle_loss(&run);
                self.running[index].loss = KernelLoss::None;
            }
        }
    }

    /// Ends a session's wait and counts it.
    fn end_wait(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let Some(since) = session.waits_since.take() else { return };
        let waited = self.now.minus(since);
        session.counters.note_wait(waited);
        self.counters.note_wait(waited);
    }

    /// Ends a session's wait because it launched. If other launches of it wait, a new wait begins.
    ///
    /// `covered` is the kernel time of the grant, if it was given because it fitted. A launch that is longer than that
    /// waits on: otherwise the short kernels of other threads would delay it forever.
    pub(super) fn end_wait_by_launch(&mut self, at: usize, covered: Option<Nanos>) {
        self.end_wait(at);
        let session = &mut self.sessions[at];
        let (id, priority) = (session.id, session.priority);
        if self.waiting.launches_of(priority).any(|request| request.session == id) {
            session.waits_since = Some(self.now);
        }
        let wait = WaitStart { at: self.now, served: self.served };
        self.waiting.restart_waits((priority, id), wait, |request| {
            covered.is_none_or(|covered| request.predicted.is_some_and(|time| time <= covered))
        });
    }
}
