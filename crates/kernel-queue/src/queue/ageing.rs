//! The limit on starvation (MMK Listing 1: `Thres`), and the bound of its cost.
//!
//! A waiting launch is *due* in two cases. Holders ran more than `DURATION / share` of kernel time since
//! the wait began, or the wait reached [`crate::Ageing::wait_max`]. Then it may launch one kernel, whatever
//! the holder does, as soon as the kernel's cost is saved. Where the paper is open:
//!
//! * A launch of another thread of its session begins its wait again, unless that was granted for less time than this
//!   one needs.
//! * The paper ages offline jobs only, since its online jobs never wait. Here every filler ages.
//! * The paper does not bound the cost of ageing. Here one budget of the slice pays for it, whatever number
//!   of threads, processes and sessions wait: [`crate::Ageing::cost_thousandths`] of the time. A
//!   launch is granted only when all of its cost is saved. A kernel that takes longer than
//!   predicted leaves a debt, which is repaid before the next launch. Launches without a grant
//!   leave such a debt as well.
//! * A kernel whose end is not reported in time is charged until its end is seen, and nothing else is granted by age
//!   meanwhile. If that takes seconds, the report counts as lost: the kernel is charged for that time, and the waits go on.
//! * The longest wait ends first, and one such kernel is in flight at a time. So every wait ends, a wait
//!   for a kernel of 200 ms after 10 s.
//! * A kernel that costs more than [`LARGE_THOUSANDTHS`] of the holder's usual period delays one or more
//!   periods. It also waits until these delays are saved: one in [`super::delays::PERIODS_PER_DELAY`]. So
//!   such kernels don't affect the 99th percentile of the holder's tasks. The delays are counted at its end. An
//!   unknown kernel leaves a debt instead, since it could never become known otherwise.
//! * It starts at the beginning of a gap if the holder has any, because the gap hides a part of its cost.

use super::KernelQueue;
use super::delays::{AgeingPrice, DelayBudget, UsualPeriod};
use super::gaps::may_get_grant;
use super::grants::GrantTerms;
use super::launches::{EndReport, KernelLoss, RunningKernel};
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
    /// The holders' periods.
    period: UsualPeriod,
    /// The delays of these that may still be caused.
    delays: DelayBudget,
    /// The delays that the launch that waits longest would cause.
    due_delays: u64,
    /// The cost of the last launch that delayed any.
    large_cost: Nanos,
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
        let Some(longest) = self.longest_waiting(|_| true) else {
            self.ageing.due_cost = Nanos::ZERO;
            self.ageing.payable_since = None;
            return;
        };
        // Both are saved for it, also while a launch that delays no task goes first.
        let due = self.price_of_ageing(&longest.1);
        (self.ageing.due_cost, self.ageing.due_delays) = (due.time, due.delays);
        let Some((at, request)) = self.soonest_from(longest) else {
            // It is checked again when a gap ends.
            self.ageing.payable_since = None;
            return;
        };
        let session = &self.sessions[at];
        if session.lease.is_some() && !self.has_unused_lease_ahead(session) {
            // It is checked again when the grant ends.
            return;
        }
        let price = self.price_of_ageing(&request);
        let cost = price.time;
        let is_paid_at = self.ageing.budget.covers_at(cost, self.now, ageing.cost_thousandths);
        let ends_at = self.due_at(&self.sessions[at], &request, &ageing).max(is_paid_at);
        if ends_at > self.now {
            self.ageing.payable_since = None;
            self.next_look = self.next_look.min(ends_at);
            return;
        }
        if self.awaits_aged_end() || !self.can_commit_with(self.leases_in_use()) {
            // It is checked again when a kernel or a grant ends.
            return;
        }
        let latest = self.ageing.payable_since.get_or_insert(self.now).plus(MOMENT_WAIT);
        let last_end = self.ageing.period.last_end();
        let has_gaps = last_end.is_some_and(|last| self.now.minus(last) < MOMENT_WAIT);
        if has_gaps && self.now < latest && !self.is_good_moment(cost) {
            self.next_look = self.next_look.min(latest);
            return;
        }
        self.end_leases_ahead();
        self.waiting.remove_launch(self.sessions[at].priority, request.session, request.launch);
        self.counters.aged += 1;
        self.sessions[at].counters.aged += 1;
        self.grant_at_price(request, price);
    }

    /// Grants an unknown launch in a gap that would hide a short kernel, if the cost is paid for.
    /// Otherwise the kernel would stay unknown.
    pub(super) fn grant_probe(&mut self, from: Nanos, end: Nanos) {
        if self.rules.ageing.is_none() || self.awaits_aged_end() || !self.can_commit_kernel() {
            return;
        }
        let cost = UNKNOWN_COST.plus(self.rules.switch.times(2));
        let is_payable = self.ageing.budget.covers(cost) && !self.is_too_soon_for_unknown();
        if end.minus(from) < cost || from > self.now || !is_payable {
            return;
        }
        let Self { waiting, sessions, .. } = self;
        let request = waiting
            .take_first(|request| request.predicted.is_none() && may_get_grant(sessions, request));
        if let Some(request) = request {
            self.counters.probes += 1;
            self.grant_at_price(request, AgeingPrice { time: cost, delays: 0 });
        }
    }

    /// Grants a launch that the budgets pay for.
    fn grant_at_price(&mut self, request: LaunchRequest, price: AgeingPrice) {
        self.ageing.payable_since = None;
        self.ageing.budget.take(price.time);
        self.ageing.delays.take(price.delays);
        let terms = GrantTerms {
            kind: GrantKind::Aged,
            from: self.now,
            until: self.now.plus(self.rules.grant_max),
            budget: request.predicted.unwrap_or(UNKNOWN_COST),
            launches: 1,
            reserved: None,
            opening: None,
            paid: price,
        };
        self.grant_launch(request, terms);
    }

    /// Returns the advance price of a launch: its time and two context switches, and the periods that it delays.
    fn price_of_ageing(&self, request: &LaunchRequest) -> AgeingPrice {
        let time = request.predicted.unwrap_or(UNKNOWN_COST).plus(self.rules.switch.times(2));
        let is_predicted_large = request.predicted.is_some() && self.is_large(time);
        let delays = if is_predicted_large { self.ageing.period.delayed_by(time) } else { 0 };
        AgeingPrice { time, delays }
    }

    /// Returns the launch that waits longest among those that `accepts` returns true for, with its session.
    fn longest_waiting(
        &self,
        accepts: impl Fn(&LaunchRequest) -> bool,
    ) -> Option<(usize, LaunchRequest)> {
        let mut longest: Option<(usize, LaunchRequest)> = None;
        for request in self.waiting.all() {
            let order = |request: &LaunchRequest| (request.wait.at, request.ticket);
            if longest.is_some_and(|(_, longest)| order(&longest) <= order(request)) {
                continue;
            }
            let Ok(at) = self.index_of(request.session) else { continue };
            if self.sessions[at].exclusive.is_none() && accepts(request) {
                longest = Some((at, *request));
            }
        }
        longest
    }

    /// Returns the launch that waits longest if the delays that it causes are saved. Otherwise returns the next one for
    /// which this holds.
    fn soonest_from(&self, longest: (usize, LaunchRequest)) -> Option<(usize, LaunchRequest)> {
        if !self.is_too_soon_for(&longest.1) {
            return Some(longest);
        }
        self.longest_waiting(|request| !self.is_too_soon_for(request))
    }

    /// Returns when a launch of a session becomes due, as far as is known now.
    fn due_at(&self, session: &QueueSession, request: &LaunchRequest, ageing: &Ageing) -> Nanos {
        let served = self.served.minus(request.wait.served);
        let by_service = served > waiting_threshold(ageing.duration, session.share_thousandths);
        if by_service { self.now } else { request.wait.at.plus(ageing.wait_max) }
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

    /// Returns whether a kernel costs a large part of the holders' usual period. Without two gaps there is no period.
    fn is_large(&self, cost: Nanos) -> bool {
        let period = self.ageing.period.length(self.now);
        period.is_some_and(|period| cost > period.thousandths(LARGE_THOUSANDTHS))
    }

    /// Returns whether a launch must wait because the delays that it causes are not saved yet.
    fn is_too_soon_for(&self, request: &LaunchRequest) -> bool {
        if request.predicted.is_none() {
            return self.is_too_soon_for_unknown();
        }
        let delays = self.price_of_ageing(request).delays;
        delays > 0 && !self.ageing.delays.covers(delays)
    }

    /// The same for an unknown kernel, which is possibly as long as the last one that delayed a holder.
    fn is_too_soon_for_unknown(&self) -> bool {
        self.ageing.delays.is_in_debt() && self.is_large(self.ageing.large_cost)
    }

    /// Records that a holder ended a gap of this length.
    pub(super) fn note_period(&mut self, gap: Nanos) {
        self.ageing.period.learn(self.now, gap);
        self.ageing.delays.pass(self.ageing.due_delays.max(1));
        for run in self.running.iter_mut().filter(|run| run.is_filler) {
            run.periods_met += 1;
        }
    }

    /// Takes the predicted cost of a launch without a grant.
    pub(super) fn charge_ungranted(&mut self, cost: Nanos) {
        self.ageing.budget.take(cost);
    }

    /// Replaces the predicted cost of a kernel by its actual cost to the holders, since it ended or its end is not expected
    /// any more. Returns what the budgets of ageing paid for it.
    pub(super) fn settle_loss(&mut self, run: &RunningKernel) -> AgeingPrice {
        let since_return = run.holder_returned_at.map(|returned| self.now.minus(returned));
        // A kernel costs at most its run time. If it was queued behind other kernels of its
        // program, its observed end is much later.
        let most = run.ran.map_or(Nanos::MAX, |ran| ran.plus(self.rules.switch.times(2)));
        match run.loss {
            KernelLoss::None => AgeingPrice::NOTHING,
            KernelLoss::Gap | KernelLoss::Colocated => {
                // The end of an overdue kernel may be seen long after it. Without a sample nothing shows that it cost more.
                let most = if run.has_place() || run.ran.is_some() { most } else { Nanos::ZERO };
                self.fills.take(since_return.unwrap_or_default().min(most));
                AgeingPrice::NOTHING
            }
            KernelLoss::Ageing { paid, .. } if run.end == EndReport::Lost => {
                // It has paid for all of the time. If its sample shows that it took less, the rest is returned.
                let time = paid.time.min(most);
                self.ageing.budget.settle(paid.time, time);
                AgeingPrice { time, ..paid }
            }
            KernelLoss::Ageing { paid, amid, is_granted } => {
                // Kernels that were in flight together cost the holders their time once.
                let from = amid.or(run.holder_returned_at);
                let from = from.map(|from| from.max(self.ageing.charged_until));
                let lost = from.map_or(Nanos::ZERO, |from| self.now.minus(from)).min(most);
                let lost = if amid.is_some() { lost.max(paid.time) } else { lost };
                self.ageing.charged_until = self.now;
                self.ageing.budget.settle(paid.time, lost);
                let delayed = if self.is_large(lost) {
                    self.ageing.large_cost = lost;
                    // The task amid which it began, and those that began before it ended.
                    let delayed = run.periods_met + u64::from(amid.is_some());
                    // Launches that were on the way when a new role came are no example of later ones, nor is one whose end
                    // nobody saw.
                    let is_example = is_granted && !self.is_end_missed(run);
                    if is_example { delayed } else { delayed.min(1) }
                } else {
                    0
                };
                self.ageing.delays.settle(paid.delays, delayed);
                AgeingPrice { time: lost, delays: delayed }
            }
        }
    }

    /// Returns whether a kernel is overdue for so long that the report of its end counts as lost.
    fn is_end_missed(&self, run: &RunningKernel) -> bool {
        run.end == EndReport::Overdue && run.overdue <= self.now
    }

    /// Returns the price that was taken for an unused grant.
    pub(super) fn refund(&mut self, paid: AgeingPrice) {
        self.ageing.budget.settle(paid.time, Nanos::ZERO);
        self.ageing.delays.settle(paid.delays, 0);
    }
}
