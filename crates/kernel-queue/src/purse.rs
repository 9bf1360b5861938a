//! The client's half of a grant: spends the budget launch by launch, without asking.
//!
//! A program's thread looks here before each launch. Three things end a grant: the gate was passed
//! (the holder came back), its time is over, or the next kernel does not fit into what is left.
//! The first two hold even if every message of the queue is lost.

use crate::lease::{Gate, Grant, Kind};
use crate::time::Nanos;

/// What a launch may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// Launch now.
    Go,
    /// Look again at this moment: the grant has not begun, or as many kernels as may be in
    /// flight are.
    Wait,
    /// Ask: there is no grant, or this kernel is not covered by what is left.
    Ask,
}

/// A grant and what is left of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Purse {
    grant: Option<Grant>,
}

impl Purse {
    /// Returns a purse without a grant.
    pub const fn new() -> Self {
        Self { grant: None }
    }

    /// Takes a grant; an older one, even if it comes late, changes nothing.
    pub fn receive(&mut self, grant: Grant) {
        if self.grant.is_none_or(|held| held.number < grant.number) {
            self.grant = Some(grant);
        }
    }

    /// Returns the grant as it is now.
    pub const fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Throws the grant away.
    pub const fn empty(&mut self) {
        self.grant = None;
    }

    /// Asks for one launch at `now`, with the gate at `gate` and `in_flight` kernels launched
    /// but not done. `predicted` is the kernel's `SK`, if known. `Go` has paid for it.
    pub fn spend(
        &mut self,
        predicted: Option<Nanos>,
        gate: Gate,
        in_flight: u16,
        now: Nanos,
    ) -> Spend {
        let Some(grant) = &mut self.grant else { return Spend::Ask };
        let closed = grant.kind.ends_with_the_gap() && gate.has_passed(grant.gate);
        if closed || now >= grant.until || grant.launches == 0 {
            self.grant = None;
            return Spend::Ask;
        }
        // These were given knowing that nothing is known of the kernel.
        let cost = match predicted {
            Some(time) => time,
            None => match grant.kind {
                Kind::Aged | Kind::Lapse => Nanos::ZERO,
                Kind::Gap | Kind::Beside => return Spend::Ask,
            },
        };
        let begins = now.max(grant.from);
        let ends_in_time = !grant.kind.ends_with_the_gap() || begins.plus(cost) <= grant.until;
        if cost > grant.budget || !ends_in_time {
            return Spend::Ask;
        }
        if now < grant.from || in_flight >= grant.in_flight {
            return Spend::Wait;
        }
        grant.budget = grant.budget.minus(cost);
        grant.launches -= 1;
        Spend::Go
    }
}
