//! The client's side of a grant: its budget is spent launch by launch, without further requests.
//!
//! A program's thread checks it before each launch. Three things end a grant: the gate was passed
//! because the holder returned, the grant expired, or the next kernel exceeds the rest of the
//! budget. The first two hold even if every message of the queue is lost.

use crate::lease::{GateState, Grant, GrantKind};
use crate::time::Nanos;

/// The decision about a thread's launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchDecision {
    /// Launch now: the budget has paid for it.
    Launch,
    /// Check again later: the grant has not started, or the maximum number of kernels is in
    /// flight.
    Wait,
    /// Send a request: there is no grant, or the rest of the budget does not cover this kernel.
    Request,
}

/// A grant and the rest of its budget.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrantBudget {
    grant: Option<Grant>,
}

impl GrantBudget {
    /// Returns an empty budget, without a grant.
    pub const fn new() -> Self {
        Self { grant: None }
    }

    /// Accepts a grant. A grant that is older than the current one is ignored.
    pub fn receive(&mut self, grant: Grant) {
        if self.grant.is_none_or(|held| held.number < grant.number) {
            self.grant = Some(grant);
        }
    }

    /// Returns the grant with the rest of its budget.
    pub const fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Discards the grant.
    pub const fn clear(&mut self) {
        self.grant = None;
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
            self.grant = None;
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
        let begins = now.max(grant.from);
        let ends_in_time = !grant.kind.ends_with_gap() || begins.plus(cost) <= grant.until;
        if cost > grant.budget || !ends_in_time {
            return LaunchDecision::Request;
        }
        if now < grant.from || in_flight >= grant.in_flight {
            return LaunchDecision::Wait;
        }
        grant.budget = grant.budget.minus(cost);
        grant.launches -= 1;
        LaunchDecision::Launch
    }
}
