//! The valve against starvation (MMK Listing 1: `Thres`).
//!
//! A session whose launch waited through more of the holders' kernel time than
//! `DURATION / share`, or longer than the longest wait on the clock, launches one kernel whatever
//! the holder does. Where the paper is open:
//!
//! * It ages offline jobs only, since its online jobs never wait. Here every session that asks
//!   ages.
//! * It does not bound what ageing costs. Here all aged kernels of a slice together take at most
//!   [`crate::Ageing::cost_thousandths`] of the time, and one kernel: the holder's loss has a
//!   bound whatever waits, and every wait still ends, those who waited longest first.

use super::Queue;
use super::grants::Terms;
use super::session::Session;
use crate::admission::threshold;
use crate::lease::Kind;
use crate::rules::{Ageing, Sharing};
use crate::time::Nanos;

/// What a kernel of which nothing is known is taken to cost.
const UNKNOWN_COST: Nanos = Nanos::from_millis(1);

/// Opens when the last aged kernel has been paid for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Valve {
    opens: Nanos,
}

impl Queue {
    /// Lets the session go that waited longest, if it waited long enough.
    pub(super) fn give_aged(&mut self) {
        let Some(ageing) = self.rules.ageing else { return };
        if self.rules.sharing == Sharing::Exclusive {
            return;
        }
        let Some(at) = self.hungriest() else { return };
        let ripe = self.ripe_at(&self.sessions[at], &ageing);
        if ripe > self.now {
            self.next_look = self.next_look.min(ripe);
            return;
        }
        if !self.has_room() {
            // Its turn comes when a kernel or a grant ends, before any other's.
            return;
        }
        let id = self.sessions[at].id;
        let Some(request) = self.waiting.first(|request| request.session == id) else { return };
        let cost = request.predicted.unwrap_or(UNKNOWN_COST);
        let pause = Nanos::new(cost.get().saturating_mul(1_000) / ageing.cost_thousandths.max(1));
        self.valve.opens = self.now.plus(pause);
        self.counters.aged += 1;
        self.sessions[at].counters.aged += 1;
        let terms = Terms {
            kind: Kind::Aged,
            from: self.now,
            until: self.now.plus(self.rules.grant_max),
            budget: cost,
            launches: 1,
            reserved: None,
        };
        self.grant(request, terms);
    }

    /// Returns the session that waits longest without a lease.
    fn hungriest(&self) -> Option<usize> {
        let hungry = self.sessions.iter().enumerate().filter(|(_, s)| s.lease.is_none());
        hungry
            .filter_map(|(at, session)| session.hunger.map(|hunger| (hunger.at, at)))
            .min()
            .map(|(_, at)| at)
    }

    /// Returns when a session's wait is long enough, by what is known now.
    fn ripe_at(&self, session: &Session, ageing: &Ageing) -> Nanos {
        let Some(hunger) = session.hunger else { return Nanos::MAX };
        let served = self.served.minus(hunger.served);
        let by_service = served > threshold(ageing.duration, session.share_thousandths);
        let ripe = if by_service { self.now } else { hunger.at.plus(ageing.wait_max) };
        ripe.max(self.valve.opens)
    }
}
