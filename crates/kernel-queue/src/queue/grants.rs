//! Grants: given, spent, ended.

use super::Queue;
use super::launches::Running;
use super::session::Given;
use crate::action::{Action, Refusal};
use crate::admission::Need;
use crate::lease::{Grant, Kind, Lease};
use crate::time::Nanos;
use crate::waiting::Request;

/// What a grant is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub kind: Kind,
    pub from: Nanos,
    pub until: Nanos,
    pub budget: Nanos,
    pub launches: u16,
    pub reserved: Option<Need>,
}

impl Queue {
    /// Gives whatever can be given now. Called after every event.
    pub(super) fn give(&mut self) {
        self.next_look = Nanos::MAX;
        if self.waiting.is_empty() {
            return;
        }
        self.give_aged();
        self.give_beside();
        self.give_gap();
    }

    /// Grants a launch that was taken out of the queue.
    pub(super) fn grant(&mut self, request: Request, terms: Terms) {
        let Ok(at) = self.find(request.session) else { return };
        self.grants += 1;
        let own = |run: &&Running| run.is_filler && run.session == request.session;
        let own = self.running.iter().filter(own).count();
        let others = u16::try_from(self.taken() - own).unwrap_or(u16::MAX);
        let grant = Grant {
            number: self.grants,
            gate: self.gate,
            kind: terms.kind,
            from: terms.from,
            until: terms.until,
            budget: terms.budget,
            launches: terms.launches,
            in_flight: self.rules.in_flight.saturating_sub(others).max(1),
            yields: self.waiting.iter().any(|(_, other)| other.session != request.session),
        };
        let session = &mut self.sessions[at];
        session.lease = Some(Lease { session: session.id, grant, spent: Nanos::ZERO });
        session.given = Given { request: Some(request), reserved: terms.reserved };
        session.counters.grants += 1;
        self.counters.grants += 1;
        self.next_expiry = self.next_expiry.min(terms.until);
        self.actions.push(Action::Grant { session: request.session, grant });
    }

    /// Takes a launch off a session's lease; returns whether it was covered.
    pub(super) fn spend(
        &mut self,
        at: usize,
        number: Option<u64>,
        launch: u64,
        cost: Nanos,
    ) -> bool {
        let session = &mut self.sessions[at];
        let (id, priority) = (session.id, session.priority);
        // It waits no more, whatever it was launched under: for its grant, or, another thread's
        // launch, in the queue.
        if session.given.request.is_some_and(|request| request.launch == launch) {
            session.given.request = None;
        } else {
            self.waiting.remove(priority, id, launch);
        }
        let Some(lease) = session.lease.as_mut().filter(|l| Some(l.grant.number) == number) else {
            return false;
        };
        lease.spent = lease.spent.plus(cost);
        let is_over = lease.grant.launches == 1 || lease.left() == Nanos::ZERO;
        if is_over {
            self.end_lease_keeping(at);
        }
        true
    }

    /// Ends a lease that was spent; what was set aside goes over to the kernel in flight.
    fn end_lease_keeping(&mut self, at: usize) {
        let reserved = self.sessions[at].given.reserved.take();
        self.end_lease(at, false);
        self.sessions[at].given.reserved = reserved;
    }

    /// Ends a session's lease. A launch that still waits for it goes back to its place.
    pub(super) fn end_lease(&mut self, at: usize, tell: bool) {
        let session = &mut self.sessions[at];
        let Some(lease) = session.lease.take() else { return };
        let (id, priority) = (session.id, session.priority);
        let Given { request, reserved } =
            std::mem::replace(&mut session.given, Given { request: None, reserved: None });
        if let Some(reserved) = reserved {
            self.occupancy.give_back(reserved);
        }
        if tell {
            self.actions.push(Action::Revoke { session: id, grant: lease.grant.number });
        }
        let lost = request.is_some_and(|request| self.waiting.put_back(priority, request).is_err());
        if lost {
            self.actions.push(Action::Refuse { session: id, why: Refusal::QueueFull });
        }
    }

    /// Ends all grants that end with the gap, because a holder is back or another holds.
    pub(super) fn end_gap_leases(&mut self) {
        let mut any = false;
        for at in 0..self.sessions.len() {
            let ends =
                self.sessions[at].lease.is_some_and(|lease| lease.grant.kind.ends_with_the_gap());
            if ends {
                any = true;
                self.end_lease(at, true);
            }
        }
        if any {
            self.gate.epoch = self.gate.epoch.next();
            self.actions.push(Action::Gate { epoch: self.gate.epoch });
        }
    }

    /// Ends what ran out: sessions without a word, grants, kernels whose end nobody reports.
    pub(super) fn expire(&mut self) {
        let now = self.now;
        while let Some(at) = self.sessions.iter().position(|session| session.alive_until <= now) {
            self.actions.push(Action::Dropped { session: self.sessions[at].id });
            self.leave(at);
        }
        for at in 0..self.sessions.len() {
            if self.sessions[at].lease.is_some_and(|lease| lease.grant.until <= now) {
                self.end_lease(at, false);
            }
        }
        while let Some(index) = self.running.iter().position(|run| run.overdue <= now) {
            self.ended(index);
        }
        let alive = self.sessions.iter().map(|session| session.alive_until);
        let until = self.sessions.iter().filter_map(|s| s.lease.map(|lease| lease.grant.until));
        let overdue = self.running.iter().map(|run| run.overdue);
        self.next_expiry = alive.chain(until).chain(overdue).min().unwrap_or(Nanos::MAX);
    }
}
