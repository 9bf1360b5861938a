//! The limit on starvation (MMK Listing 1: `Thres`), and the bound of its cost.
//!
//! A waiting session is *due* in two cases. Holders ran more than `DURATION / share` of kernel time since
//! the wait began, or the wait reached [`crate::Ageing::wait_max`]. Then it may launch one kernel, whatever
//! the holder does, as soon as the kernel's cost is saved. Where the paper is open:
//!
//! * The paper ages offline jobs only, since its online jobs never wait. Here every filler ages.
//! * The paper does not bound the cost of ageing. Here one budget of the slice pays for it, whatever number
//!   of threads, processes and sessions wait: [`crate::Ageing::cost_thousandths`] of the time. A
//!   launch is granted only when all of its cost is saved. A kernel that takes longer than
//!   predicted leaves a debt, which is repaid before the next launch. Launches without a grant
//!   leave such a debt as well.
//! * The longest wait ends first, and one such kernel is in flight at a time. So every wait ends, a wait
//!   for a kernel of 200 ms after 10 s.
//! * A kernel that costs more than [`LARGE_THOUSANDTHS`] of the holder's usual period is launched
//!   once in [`PERIODS_BETWEEN`] periods, so that it doesn't affect the 99th percentile of the
//!   holder's tasks.
//! * It starts at the beginning of a gap if the holder has any, because the gap hides a part of its cost.

use super::KernelQueue;
use super::gaps::may_get_grant;
use super::grants::GrantTerms;
use super::launches::{KernelLoss, RunningKernel};
use super::session::QueueSession;
use crate::admission::waiting_threshold;
use crate::lease::GrantKind;
use crate::loss::LossBudget;
use crate::predict::GapPrediction;
use crate::rules::Ageing;
use crate::time::Nanos;
use crate::waiting::LaunchRequest;

/// The assumed cost of an unknown kernel.
pub(super) const UNKNOWN_COST: Nanos = Nanos::from_millis(1);
/// The saved time is limited to the income of this span, or to the cost of the launch that is due.
const SAVED_SPAN: Nanos = Nanos::from_millis(1_000);
/// The longest wait for the beginning of a gap, and the longest time since the last gap.
const MOMENT_WAIT: Nanos = Nanos::from_millis(100);
/// How long a gap counts as just begun.
const GAP_BEGIN: Nanos = Nanos::from_millis(1);
/// The largest part of the holder's period that a cheap kernel costs: the slowdown at the 99th
/// percentile that Tally publishes is 7.2 %.
const LARGE_THOUSANDTHS: u64 = 70;
/// How many periods of the holder are between kernels that cost more.
const PERIODS_BETWEEN: u64 = 100;

/// The budget of ageing, and the launch that is due.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AgeingState {
    /// The bucket for the whole slice.
    budget: LossBudget,
    /// Until when the holders' losses are counted.
    charged_until: Nanos,
    /// The cost of the launch that is due next.
    due_cost: Nanos,
    /// Since when the next launch is due and paid for.
    payable_since: Option<Nanos>,
    /// When a holder last ended a gap.
    last_gap: Option<Nanos>,
    /// When a launch last cost a large part of a holder's period.
    last_large: Nanos,
    /// The cost of that launch.
    large_cost: Nanos,
    /// How many gaps of holders must pass before the next such launch.
    gaps_to_pass: u64,
}

impl KernelQueue {
    /// Credits the time that passed.
    pub(super) fn credit_ageing(&mut self) {
        if let Some(ageing) = self.rules.ageing {
            let usual = SAVED_SPAN.thousandths(ageing.cost_thousandths);
            let most = usual.max(self.ageing.due_cost);
            self.ageing.budget.pass(self.now, ageing.cost_thousandths, most);
        }
    }

    /// Grants one launch of the session that has waited longest, if it is due and paid for.
    pub(super) fn grant_aged_launch(&mut self) {
        let Some(ageing) = self.rules.ageing else { return };
        if self.owner.is_some() {
            return;
        }
        let Some((at, request)) = self.longest_waiting() else {
            self.ageing.due_cost = Nanos::ZERO;
            self.ageing.payable_since = None;
            return;
        };
        let cost = self.cost_of_ageing(&request);
        self.ageing.due_cost = cost;
        let is_paid_at = self.ageing.budget.covers_at(cost, self.now, ageing.cost_thousandths);
        let ends_at = self.due_at(&self.sessions[at], &ageing).max(is_paid_at);
        if ends_at > self.now {
            self.ageing.payable_since = None;
            self.next_look = self.next_look.min(ends_at);
            return;
        }
        if !self.can_commit_kernel() || self.is_too_soon_for(request.predicted.map(|_| cost)) {
            // It is checked again when a kernel, a grant or a gap ends.
            return;
        }
        let latest = self.ageing.payable_since.get_or_insert(self.now).plus(MOMENT_WAIT);
        let last_gap = self.ageing.last_gap;
        let has_gaps = last_gap.is_some_and(|last| self.now.minus(last) < MOMENT_WAIT);
        if has_gaps && self.now < latest && !self.is_good_moment(cost) {
            self.next_look = self.next_look.min(latest);
            return;
        }
        self.waiting.remove_launch(self.sessions[at].priority, request.session, request.launch);
        self.counters.aged += 1;
        self.sessions[at].counters.aged += 1;
        self.grant_at_cost(request, cost);
    }

    /// Grants an unknown launch in a gap that would hide a short kernel, if the cost is paid for.
    /// Otherwise the kernel would stay unknown.
    pub(super) fn grant_probe(&mut self, from: Nanos, end: Nanos) {
        if self.rules.ageing.is_none() || !self.can_commit_kernel() {
            return;
        }
        let cost = UNKNOWN_COST.plus(self.rules.switch.times(2));
        let is_payable = self.ageing.budget.covers(cost) && !self.is_too_soon_for(None);
        if end.minus(from) < cost || from > self.now || !is_payable {
            return;
        }
        let Self { waiting, sessions, .. } = self;
        let request = waiting
            .take_first(|request| request.predicted.is_none() && may_get_grant(sessions, request));
        if let Some(request) = request {
            self.counters.probes += 1;
            self.grant_at_cost(request, cost);
        }
    }

    /// Grants a launch that the budget pays for.
    fn grant_at_cost(&mut self, request: LaunchRequest, cost: Nanos) {
        self.ageing.payable_since = None;
        self.ageing.budget.take(cost);
        if request.predicted.is_some() {
            self.note_if_large(cost);
        }
        let terms = GrantTerms {
            kind: GrantKind::Aged,
            from: self.now,
            until: self.now.plus(self.rules.grant_max),
            budget: request.predicted.unwrap_or(UNKNOWN_COST),
            launches: 1,
            reserved: None,
            paid: cost,
        };
        self.grant_launch(request, terms);
    }

    /// Returns the advance cost of a launch: its time and two context switches.
    fn cost_of_ageing(&self, request: &LaunchRequest) -> Nanos {
        request.predicted.unwrap_or(UNKNOWN_COST).plus(self.rules.switch.times(2))
    }

    /// Returns the session that waits longest without a lease, and its oldest launch.
    fn longest_waiting(&self) -> Option<(usize, LaunchRequest)> {
        let waiting = self.sessions.iter().enumerate();
        let waiting = waiting.filter(|(_, s)| s.lease.is_none() && s.exclusive.is_none());
        let (_, at) = waiting
            .filter_map(|(at, session)| session.wait_start.map(|wait_start| (wait_start.at, at)))
            .min()?;
        let session = &self.sessions[at];
        let mut launches = self.waiting.launches_of(session.priority);
        launches.find(|request| request.session == session.id).map(|request| (at, *request))
    }

    /// Returns when a session's launch becomes due, as far as is known now.
    fn due_at(&self, session: &QueueSession, ageing: &Ageing) -> Nanos {
        let Some(wait_start) = session.wait_start else { return Nanos::MAX };
        let served = self.served.minus(wait_start.served);
        let by_service = served > waiting_threshold(ageing.duration, session.share_thousandths);
        if by_service { self.now } else { wait_start.at.plus(ageing.wait_max) }
    }

    /// Returns whether all holders are idle and the gap has just begun, holds the kernel, or has no
    /// known end.
    fn is_good_moment(&self, cost: Nanos) -> bool {
        self.sessions.iter().filter(|session| session.role.is_holder()).all(|session| {
            let Some(gap) = session.gap else { return true };
            if !self.is_idle(session, &gap) || gap.from > self.now {
                return false;
            }
            let elapsed = self.now.minus(gap.from);
            elapsed <= GAP_BEGIN
                || match self.predict_rest_of_gap(session, &gap, elapsed) {
                    GapPrediction::Idle(more) => more >= cost,
                    GapPrediction::Unknown | GapPrediction::Beyond => true,
                }
        })
    }

    /// Returns whether a kernel costs a large part of the holder's usual period.
    fn is_large(&self, cost: Nanos) -> bool {
        let gaps = PERIODS_BETWEEN.saturating_sub(self.ageing.gaps_to_pass).max(1);
        let period = Nanos::new(self.now.minus(self.ageing.last_large).get() / gaps);
        cost > period.thousandths(LARGE_THOUSANDTHS)
    }

    /// Returns whether a kernel of this cost must wait because the holder's tasks met a large one recently.
    /// An unknown kernel counts as a large one.
    fn is_too_soon_for(&self, cost: Option<Nanos>) -> bool {
        self.ageing.gaps_to_pass > 0 && self.is_large(cost.unwrap_or(self.ageing.large_cost))
    }

    /// Records a kernel that costs a large part of the holder's period.
    fn note_if_large(&mut self, cost: Nanos) {
        if self.is_large(cost) {
            self.ageing.last_large = self.now;
            self.ageing.large_cost = cost;
            self.ageing.gaps_to_pass = PERIODS_BETWEEN;
        }
    }

    /// Records that a holder ended a gap.
    pub(super) fn note_period(&mut self) {
        self.ageing.gaps_to_pass = self.ageing.gaps_to_pass.saturating_sub(1);
        self.ageing.last_gap = Some(self.now);
    }

    /// Takes the predicted cost of a launch without a grant.
    pub(super) fn charge_ungranted(&mut self, cost: Nanos) {
        self.ageing.budget.take(cost);
    }

    /// Replaces the predicted cost of an ended kernel by its actual cost to the holders.
    pub(super) fn settle_loss(&mut self, run: &RunningKernel) {
        let since_return = run.holder_returned_at.map(|returned| self.now.minus(returned));
        // A kernel costs at most its run time. If it was queued behind other kernels of its
        // program, its observed end is much later.
        let most = run.ran.map_or(Nanos::MAX, |ran| ran.plus(self.rules.switch.times(2)));
        match run.loss {
            KernelLoss::None => {}
            KernelLoss::Gap | KernelLoss::Colocated => {
                self.fills.take(since_return.unwrap_or_default().min(most));
            }
            KernelLoss::Ageing { paid, amid } => {
                // Kernels that were in flight together cost the holders their time once.
                let from = amid.or(run.holder_returned_at);
                let from = from.map(|from| from.max(self.ageing.charged_until));
                let lost = from.map_or(Nanos::ZERO, |from| self.now.minus(from)).min(most);
                let lost = if amid.is_some() { lost.max(paid) } else { lost };
                self.ageing.charged_until = self.now;
                self.ageing.budget.settle(paid, lost);
                self.note_if_large(lost);
            }
        }
    }

    /// Returns the cost that was taken for an unused grant.
    pub(super) fn refund(&mut self, paid: Nanos) {
        self.ageing.budget.settle(paid, Nanos::ZERO);
    }
}
