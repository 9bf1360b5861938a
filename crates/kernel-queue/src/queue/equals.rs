//! Sessions of equal priority that alternate, with [`crate::QueueRules::alternate_after`].
//!
//! One of them is the holder, and the others are fillers. The holder becomes a filler when it had more device time than a
//! session that waits, by the time in the rules. Time in gaps counts as well, so the alternation is fair by deficit.
//! A session that has used less than others for long may catch up with that time, and no more. While any of them is
//! measured all launch freely.

use super::KernelQueue;
use crate::ids::SessionId;
use crate::time::Nanos;

impl KernelQueue {
    /// Returns whether a session of the highest priority may hold the device now.
    pub(super) fn is_chosen(&self, at: usize) -> bool {
        self.chosen.is_none_or(|chosen| chosen == self.sessions[at].id)
    }

    /// Chooses the holder among the sessions of the highest priority, unless one of them is chosen already.
    pub(super) fn choose_among_equals(&mut self) {
        let equals = || (0..self.sessions.len()).filter(|at| self.is_of_highest_priority(*at));
        let is_measured = |at: usize| self.tasks[self.sessions[at].task].profile.is_measured();
        let is_alternating = self.rules.alternate_after.is_some()
            && equals().count() > 1
            && equals().all(is_measured);
        if !is_alternating {
            self.chosen = None;
        } else if !equals().any(|at| self.chosen == Some(self.sessions[at].id)) {
            let next = equals().min_by_key(|at| self.sessions[*at].device_time);
            let next = next.map(|at| self.sessions[at].id);
            self.chosen = next;
        }
    }

    /// Adds device time of a session. Chooses another holder if this one had too much.
    pub(super) fn count_device_time(&mut self, at: usize, took: Nanos) {
        let Some(most) = self.rules.alternate_after else { return };
        let session = &mut self.sessions[at];
        session.device_time = session.device_time.plus(took);
        let (used, priority, id) = (session.device_time, session.priority, session.id);
        for other in self.sessions.iter_mut().filter(|other| other.priority == priority) {
            other.device_time = other.device_time.max(used.minus(most));
        }
        if self.chosen == Some(id)
            && let Some(next) = self.next_of_equals(at)
            && used >= self.sessions[next].device_time.plus(most)
        {
            self.chosen = Some(self.sessions[next].id);
            self.assign_roles();
        }
    }

    /// Returns the session that waits and had the least device time, among those of the same priority.
    fn next_of_equals(&self, at: usize) -> Option<usize> {
        let priority = self.sessions[at].priority;
        let waits = |id: SessionId| self.waiting.launches_of(priority).any(|r| r.session == id);
        let others = self.sessions.iter().enumerate().filter(|(index, other)| {
            *index != at && other.priority == priority && (other.lease.is_some() || waits(other.id))
        });
        others.min_by_key(|(_, other)| other.device_time).map(|(index, _)| index)
    }
}
