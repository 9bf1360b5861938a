//! Who holds and who asks.

use super::Queue;
use super::session::Hunger;
use crate::action::{Action, Role};
use crate::rules::Sharing;

impl Queue {
    /// Gives every session its role. If those who hold changed, all grants end.
    pub(super) fn assign_roles(&mut self) {
        if self.rules.sharing == Sharing::Exclusive && self.owner.is_none() {
            // The sessions stand in the order of joining, and of equals the first is the least.
            self.owner =
                self.sessions.iter().min_by_key(|session| session.priority).map(|first| first.id);
        }
        let changes = |at| self.role_of(at).holds() != self.sessions[at].role.holds();
        if (0..self.sessions.len()).any(changes) {
            self.end_gap_leases();
        }
        for at in 0..self.sessions.len() {
            let role = self.role_of(at);
            let session = &mut self.sessions[at];
            let was = std::mem::replace(&mut session.role, role);
            if std::mem::replace(&mut session.is_told, true) && was == role {
                continue;
            }
            self.actions.push(Action::Role { session: session.id, role });
            // Whatever it did in its old role was told differently, or not at all.
            session.gap = None;
            session.active_at = self.now;
            if role.holds() && !was.holds() {
                self.rise(at);
            }
        }
    }

    fn role_of(&self, at: usize) -> Role {
        let session = &self.sessions[at];
        let holds = match self.rules.sharing {
            Sharing::Exclusive => self.owner == Some(session.id),
            Sharing::Turns | Sharing::Beside { .. } => {
                self.sessions.iter().all(|other| session.priority <= other.priority)
            }
        };
        if !holds {
            Role::Ask
        } else if !self.tasks[session.task].profile.is_measured() {
            Role::Measure
        } else if self.sessions.len() == 1 {
            Role::Free
        } else {
            Role::Hold
        }
    }

    /// Lets a session that asked hold: its launches need no grants any more.
    fn rise(&mut self, at: usize) {
        self.end_lease(at, true);
        self.end_hunger(at);
        self.waiting.forget(self.sessions[at].id);
    }

    /// Ends a session's wait and counts it.
    fn end_hunger(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let Some(hunger) = session.hunger.take() else { return };
        let waited = self.now.minus(hunger.at);
        session.counters.note_wait(waited);
        self.counters.note_wait(waited);
    }

    /// Ends a session's wait because it launched; if other launches of it wait, a new one begins.
    pub(super) fn feed(&mut self, at: usize) {
        self.end_hunger(at);
        let session = &self.sessions[at];
        let id = session.id;
        if self.waiting.of(session.priority).any(|request| request.session == id) {
            self.sessions[at].hunger = Some(Hunger { at: self.now, served: self.served });
        }
    }
}
