//! The limit on starvation (MMK Listing 1: `Thres`).
//!
//! A waiting session may launch one kernel, whatever the holder does, in two cases. Holders ran
//! more than `DURATION / share` of kernel time since the wait began, or the wait reached
//! [`crate::Ageing::wait_max`]. Where the paper is open:
//!
//! * The paper ages offline jobs only, since its online jobs never wait. Here every filler ages.
//! * The paper does not bound the cost of ageing. Here all aged kernels of a slice together take
//!   at most [`crate::Ageing::cost_thousandths`] of the time, plus one kernel. The holder's loss
//!   is bounded, and every wait ends. The longest wait ends first.

use super::KernelQueue;
use super::grants::GrantTerms;
use super::session::QueueSession;
use crate::admission::waiting_threshold;
use crate::lease::GrantKind;
use crate::rules::{Ageing, KernelSharing};
use crate::time::Nanos;

/// The assumed cost of a kernel whose time is unknown.
const UNKNOWN_COST: Nanos = Nanos::from_millis(1);

/// No aged kernel starts before this pause ends: it pays for the last aged kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AgeingPause {
    ends: Nanos,
}

impl KernelQueue {
    /// Grants one launch of the session that has waited longest, if its wait is over.
    pub(super) fn grant_aged_launch(&mut self) {
        let Some(ageing) = self.rules.ageing else { return };
        if self.rules.sharing == KernelSharing::Exclusive {
            return;
        }
        let Some(at) = self.longest_waiting() else { return };
        let ends_at = self.wait_ends_at(&self.sessions[at], &ageing);
        if ends_at > self.now {
            self.next_look = self.next_look.min(ends_at);
            return;
        }
        if !self.can_commit_kernel() {
            // It is served before all others when a kernel or a grant ends.
            return;
        }
        let id = self.sessions[at].id;
        let Some(request) = self.waiting.take_first(|request| request.session == id) else {
            return;
        };
        let cost = request.predicted.unwrap_or(UNKNOWN_COST);
        let pause = Nanos::new(cost.get().saturating_mul(1_000) / ageing.cost_thousandths.max(1));
        self.ageing_pause.ends = self.now.plus(pause);
        self.counters.aged += 1;
        self.sessions[at].counters.aged += 1;
        let terms = GrantTerms {
            kind: GrantKind::Aged,
            from: self.now,
            until: self.now.plus(self.rules.grant_max),
            budget: cost,
            launches: 1,
            reserved: None,
        };
        self.grant_launch(request, terms);
    }

    /// Returns the session that waits longest without a lease.
    fn longest_waiting(&self) -> Option<usize> {
        let waiting = self.sessions.iter().enumerate().filter(|(_, s)| s.lease.is_none());
        waiting
            .filter_map(|(at, session)| session.wait_start.map(|wait_start| (wait_start.at, at)))
            .min()
            .map(|(_, at)| at)
    }

    /// Returns when a session's wait is over, by what is known now.
    fn wait_ends_at(&self, session: &QueueSession, ageing: &Ageing) -> Nanos {
        let Some(wait_start) = session.wait_start else { return Nanos::MAX };
        let served = self.served.minus(wait_start.served);
        let by_service = served > waiting_threshold(ageing.duration, session.share_thousandths);
        let ends_at = if by_service { self.now } else { wait_start.at.plus(ageing.wait_max) };
        ends_at.max(self.ageing_pause.ends)
    }
}
