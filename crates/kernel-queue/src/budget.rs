//! The client's side of a grant: its budget is spent launch by launch, without further requests.
//!
//! A program's thread checks it before each launch. Three things end a grant: the gate was passed
//! because the holder returned, the grant expired, or the next kernel exceeds the rest of the
//! budget. The first two hold even if every message of the queue is lost.

use crate::lease::{GapOpening, GateState, Grant, GrantKind, LastLaunch};
use crate::time::Nanos;

/// The decision about a thread's launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchDecision {
    /// Launch now: the budget has paid for it.
    Launch,
    /// Check again later: the grant has not started ([`GrantBudget::opening`]), or the maximum number of kernels is
    /// in flight.
    Wait,
    /// Send a request: there is no grant, or the rest of the budget does not cover this kernel.
    Request,
}

/// A grant and the rest of its budget.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrantBudget {
    grant: Option<Grant>,
    /// What the grant waits for, if its gap has not begun.
    opening: Option<GapOpening>,
    /// Whether a kernel was launched under the grant.
    is_entered: bool,
    /// When the kernels in flight will have ended, by their predicted times.
    busy_until: Nanos,
}

impl GrantBudget {
    /// Returns an empty budget, without a grant.
    pub const fn new() -> Self {
        Self { grant: None, opening: None, is_entered: false, busy_until: Nanos::ZERO }
    }

    /// Accepts a grant. A grant that is older than the current one is ignored.
    pub fn receive(&mut self, grant: Grant) {
        self.hold(grant, None);
    }

    /// Accepts a grant for a gap that has not begun, in the same way.
    pub fn receive_ahead(&mut self, grant: Grant, opening: GapOpening) {
        self.hold(grant, Some(opening));
    }

    fn hold(&mut self, grant: Grant, opening: Option<GapOpening>) {
        if self.grant.is_none_or(|held| held.number < grant.number) {
            (self.grant, self.opening, self.is_entered) = (Some(grant), opening, false);
        }
    }

    /// Returns what the grant waits for, if its gap has not begun.
    pub const fn opening(&self) -> Option<&GapOpening> {
        self.opening.as_ref()
    }

    /// Looks at the holder's last launch: it may begin the gap for which the grant was given, or end the grant because
    /// it is another launch than expected.
    pub fn look(&mut self, last: LastLaunch) {
        let (Some(opening), Some(grant)) = (self.opening, &mut self.grant) else { return };
        match opening.span(last) {
            Some((from, until)) => {
                (grant.from, grant.until) = (from, until.min(grant.until));
                self.opening = None;
            }
            None if last.count >= opening.launches => self.clear(),
            None => {}
        }
    }

    /// Returns the grant with the rest of its budget.
    pub const fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Discards the grant.
    pub const fn clear(&mut self) {
        (self.grant, self.opening) = (None, None);
    }

    /// Decides about one launch at `now`. `gate` is the gate's state, `in_flight` the number of
    /// kernels that are launched and not done, and `predicted` the kernel's `SK`, if known.
    pub fn spend(
        &mut self,
        predicted: Option<Nanos>,
        gate: GateState,
        in_flight: u16,
        now: Nanos,
    ) -> LaunchDecision {
        let Some(grant) = &mut self.grant else { return LaunchDecision::Request };
        let closed = grant.kind.ends_with_gap() && gate.has_passed(grant.gate);
        if closed || now >= grant.until || grant.launches == 0 {
            self.clear();
            return LaunchDecision::Request;
        }
        // Aged and lapse grants also cover kernels whose time is unknown. Such a lapse grant is for
        // one launch.
        let cost = match predicted {
            Some(time) => time,
            None => match grant.kind {
                GrantKind::Aged | GrantKind::Lapse => Nanos::ZERO,
                GrantKind::Gap | GrantKind::Colocated => return LaunchDecision::Request,
            },
        };
        if cost > grant.budget {
            return LaunchDecision::Request;
        }
        if self.opening.is_some() {
            // How much time there is follows from when the gap begins, and that may be late.
            return LaunchDecision::Wait;
        }
        let entry = if self.is_entered { Nanos::ZERO } else { grant.entry() };
        let begins = now.max(grant.from).plus(entry);
        let ends_in_time =
            |begins: Nanos| !grant.kind.ends_with_gap() || begins.plus(cost) <= grant.until;
        if !ends_in_time(begins) {
            return LaunchDecision::Request;
        }
        if now < grant.from || in_flight >= grant.in_flight {
            return LaunchDecision::Wait;
        }
        // It follows the kernels in flight. If there is no time for it then, they possibly end sooner.
        let begins = if in_flight == 0 { begins } else { begins.max(self.busy_until) };
        if !ends_in_time(begins) {
            return LaunchDecision::Wait;
        }
        grant.budget = grant.budget.minus(cost);
        grant.launches -= 1;
        self.is_entered = true;
        self.busy_until = begins.plus(cost);
        LaunchDecision::Launch
    }
}
