//! How grants are given, spent and ended.

use super::KernelQueue;
use super::delays::AgeingPrice;
use super::launches::{EndReport, KernelLoss, RunningKernel, UNENDED_MAX};
use super::session::LeaseBasis;
use crate::action::{QueueAction, QueueRefusal};
use crate::admission::ResourceNeed;
use crate::lease::{GapOpening, GateState, Grant, GrantKind, GrantLease};
use crate::time::Nanos;
use crate::waiting::LaunchRequest;

/// The terms of a new grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantTerms {
    pub kind: GrantKind,
    pub from: Nanos,
    pub until: Nanos,
    pub budget: Nanos,
    pub launches: u16,
    pub reserved: Option<ResourceNeed>,
    /// What it waits for, if it is given ahead of its gap.
    pub opening: Option<GapOpening>,
    /// The price that the budgets of ageing paid for it.
    pub paid: AgeingPrice,
}

/// While a holder is expected, two kernels are in flight only if they are this short. With longer ones the device idles
/// for a small part of the time between them, and the holder would have to wait for both.
const PAIRED_MAX: Nanos = Nanos::from_micros(500);

impl KernelQueue {
    /// Gives all grants that can be given now. Called after every event.
    pub(super) fn grant_what_fits(&mut self) {
        self.next_look = Nanos::MAX;
        if self.waiting.is_empty() && !self.sessions.iter().any(|s| self.has_unused_lease_ahead(s))
        {
            return;
        }
        self.grant_aged_launch();
        self.grant_colocated_launches();
        self.fill_gap();
    }

    /// Grants a launch that was removed from the queue.
    pub(super) fn grant_launch(&mut self, request: LaunchRequest, terms: GrantTerms) {
        let Ok(at) = self.index_of(request.session) else { return };
        self.grants += 1;
        let own = |run: &&RunningKernel| run.has_place() && run.session == request.session;
        let own = self.running.iter().filter(own).count();
        let others = self.filler_kernels_committed() - own;
        let launches = terms.opening.map_or(self.gate.launches, |opening| opening.launches);
        let grant = Grant {
            number: self.grants,
            gate: GateState { launches, ..self.gate },
            kind: terms.kind,
            from: terms.from,
            until: terms.until,
            budget: terms.budget,
            launches: terms.launches,
            in_flight: window_left(self.window_of(&request, terms.kind), others).max(1),
            yields: self.waiting.iter().any(|(_, other)| other.session != request.session),
        };
        let session = &mut self.sessions[at];
        session.lease = Some(GrantLease {
            session: session.id,
            grant,
            opening: terms.opening,
            given_ahead: terms.opening.is_some(),
            spent: Nanos::ZERO,
        });
        session.basis =
            LeaseBasis { request: Some(request), reserved: terms.reserved, paid: terms.paid };
        for counters in [&mut self.counters, &mut session.counters] {
            counters.grants += 1;
            counters.grants_ahead += u64::from(terms.opening.is_some());
        }
        self.next_expiry = self.next_expiry.min(terms.until);
        let session = request.session;
        self.actions.push(match terms.opening {
            Some(opening) => QueueAction::GrantAhead { session, grant, opening },
            None => QueueAction::Grant { session, grant },
        });
    }

    /// Returns how many kernels may be in flight under the grant of a launch.
    fn window_of(&self, request: &LaunchRequest, kind: GrantKind) -> u16 {
        let rules = &self.rules;
        let is_within = |most| request.predicted.is_some_and(|took| took <= most);
        if kind == GrantKind::Gap && is_within(rules.switch) {
            rules.in_flight.max(rules.in_flight_short)
        } else if is_within(PAIRED_MAX) {
            self.window()
        } else {
            rules.in_flight
        }
    }

    /// Deducts a launch from a session's lease. Returns whether the lease covered it.
    pub(super) fn spend_lease(
        &mut self,
        at: usize,
        number: Option<u64>,
        launch: u64,
        cost: Nanos,
    ) -> bool {
        let session = &mut self.sessions[at];
        let (id, priority) = (session.id, session.priority);
        // The launch no longer waits: neither for its grant nor, if another thread made it, in the
        // queue.
        if session.basis.request.is_some_and(|request| request.launch == launch) {
            session.basis.request = None;
        } else {
            self.waiting.remove_launch(priority, id, launch);
        }
        let Some(lease) = session.lease.as_mut().filter(|l| Some(l.grant.number) == number) else {
            return false;
        };
        lease.spent = lease.spent.plus(cost);
        let is_over = lease.grant.launches == 1 || lease.left() == Nanos::ZERO;
        if is_over {
            self.end_spent_lease(at);
        }
        true
    }

    /// Ends a spent lease. Its reserved resources and its paid price pass to the kernel in flight.
    fn end_spent_lease(&mut self, at: usize) {
        let basis = &mut self.sessions[at].basis;
        let (reserved, paid) = (basis.reserved.take(), std::mem::take(&mut basis.paid));
        self.end_lease(at, false);
        let basis = &mut self.sessions[at].basis;
        (basis.reserved, basis.paid) = (reserved, paid);
    }

    /// Ends a session's lease. A launch that still waits for it returns to its old position.
    pub(super) fn end_lease(&mut self, at: usize, notify: bool) {
        let session = &mut self.sessions[at];
        let Some(lease) = session.lease.take() else { return };
        let (id, priority) = (session.id, session.priority);
        let LeaseBasis { request, reserved: _, paid } = std::mem::take(&mut session.basis);
        if paid != AgeingPrice::NOTHING {
            self.refund(paid);
        }
        if notify {
            self.actions.push(QueueAction::Revoke { session: id, grant: lease.grant.number });
        }
        let lost = request.is_some_and(|request| self.waiting.put_back(priority, request).is_err());
        if lost {
            self.actions.push(QueueAction::Refuse { session: id, why: QueueRefusal::QueueFull });
        }
    }

    /// Ends all grants that end with the gap, because a holder returned or changed.
    pub(super) fn end_gap_leases(&mut self) {
        let mut any = false;
        for at in 0..self.sessions.len() {
            let ends =
                self.sessions[at].lease.is_some_and(|lease| lease.grant.kind.ends_with_gap());
            if ends {
                any = true;
                self.end_lease(at, true);
            }
        }
        if any {
            self.gate.epoch = self.gate.epoch.next();
            self.actions.push(QueueAction::Gate { epoch: self.gate.epoch });
        }
    }

    /// Ends silent sessions, expired grants, and kernels whose end nobody reported.
    pub(super) fn end_overdue(&mut self) {
        let now = self.now;
        while let Some(at) = self.sessions.iter().position(|session| session.alive_until <= now) {
            self.actions.push(QueueAction::Dropped { session: self.sessions[at].id });
            self.remove_session(at);
        }
        for at in 0..self.sessions.len() {
            if self.sessions[at].lease.is_some_and(|lease| lease.grant.until <= now) {
                self.end_lease(at, false);
            }
        }
        while let Some(index) = self.running.iter().position(|run| run.overdue <= now) {
            self.miss_end(index);
        }
        let alive = self.sessions.iter().map(|session| session.alive_until);
        let until = self.sessions.iter().filter_map(|s| s.lease.map(|lease| lease.grant.until));
        let overdue = self.running.iter().map(|run| run.overdue);
        self.next_expiry = alive.chain(until).chain(overdue).min().unwrap_or(Nanos::MAX);
    }

    /// Handles a kernel whose end was not reported in time.
    ///
    /// It runs on, or its process does not look at it, or the report was lost. So it takes no place in flight any more, and
    /// fills go on: their own budget pays for what they cost. But it is paid for when its end is seen, and nothing else is
    /// granted at the expense of the holder until then ([`Self::awaits_aged_end`]). After [`UNENDED_MAX`] the
    /// report counts as lost.
    fn miss_end(&mut self, index: usize) {
        let run = self.running[index];
        if !run.is_filler || !run.reports_end || run.loss == KernelLoss::None {
            // When it ended is not known, so the price that was paid for it counts.
            self.running[index].loss = KernelLoss::None;
            self.remove_running(index);
            return;
        }
        let (end, overdue) = match run.end {
            EndReport::Expected => (EndReport::Overdue, self.now.plus(UNENDED_MAX)),
            EndReport::Overdue | EndReport::Lost => {
                let charged = self.settle_loss(&run);
                if let KernelLoss::Ageing { paid, .. } = &mut self.running[index].loss {
                    *paid = charged;
                }
                (EndReport::Lost, Nanos::MAX)
            }
        };
        let run = &mut self.running[index];
        (run.end, run.overdue) = (end, overdue);
    }
}

/// Returns how many kernels a grant may have in flight while `others` are committed.
#[expect(clippy::cast_possible_truncation, reason = "the result is at most `in_flight`, a u16")]
fn window_left(in_flight: u16, others: usize) -> u16 {
    usize::from(in_flight).saturating_sub(others) as u16
}
