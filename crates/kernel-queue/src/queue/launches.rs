//! Launches of sessions, and the ends of their kernels.

use super::KernelQueue;
use super::delays::AgeingPrice;
use super::session::{OpenGap, QueueSession};
use crate::action::{QueueAction, QueueRefusal, Role};
use crate::admission::ResourceNeed;
use crate::ids::{KernelIndex, SessionId};
use crate::lease::GrantKind;
use crate::limits::{RUNNING_MAX, WAITING_MAX};
use crate::predict::GapPredictor;
use crate::rules::KernelSharing;
use crate::time::Nanos;
use crate::waiting::{LaunchRequest, WaitStart};
use tessera_model::spec::Priority;

/// A kernel in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningKernel {
    pub session: SessionId,
    pub kernel: KernelIndex,
    /// When it was launched.
    pub begun: Nanos,
    /// When a holder first launched while this kernel was in flight.
    pub holder_returned_at: Option<Nanos>,
    /// How many periods of holders began meanwhile.
    pub periods_met: u64,
    /// When the report of its end is missed next.
    pub overdue: Nanos,
    /// Whether the report is missed.
    pub end: EndReport,
    /// Whether its process reports its end at all. Of a launch that it made as a holder, before its new role came, it
    /// reports nothing but a sync.
    pub reports_end: bool,
    /// The resources that it occupies on the device.
    pub need: ResourceNeed,
    /// Whether a filler launched it.
    pub is_filler: bool,
    /// Its run time, if its sample arrived before its end was observed.
    pub ran: Option<Nanos>,
    /// The budget that pays for its cost to the holders.
    pub loss: KernelLoss,
}

impl RunningKernel {
    /// Returns whether it is a filler's and takes one of the places in the device's queue.
    pub const fn has_place(&self) -> bool {
        self.is_filler && matches!(self.end, EndReport::Expected)
    }
}

/// The budget that pays for a kernel's cost to the holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelLoss {
    /// No budget: a holder launched it.
    None,
    /// The budget of fills, from when the kernels that run need more than the slice has. It was
    /// granted because it fitted next to the holders' kernels.
    Colocated,
    /// The budget of fills, from a holder's return.
    Gap,
    /// The budgets of ageing: it was granted because of its wait, or launched without a grant.
    Ageing {
        /// The price that was taken already.
        paid: AgeingPrice,
        /// When it started, if a holder was busy then.
        amid: Option<Nanos>,
        /// Whether it was launched under a grant.
        is_granted: bool,
    },
}

/// Whether the report of a kernel's end is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReport {
    /// It is not: the kernel takes a place in the device's queue.
    Expected,
    /// It is. The kernel runs on, or its process does not look at it. It takes no place any more.
    Overdue,
    /// It counts as lost, and the kernel has paid for the time until then.
    Lost,
}

/// If the end of a kernel without a known time is not reported within this span, it is overdue.
const UNKNOWN_OVERDUE: Nanos = Nanos::from_millis(1_000);
/// The same span for a measured kernel, in addition to four times its predicted time.
const OVERDUE: Nanos = Nanos::from_millis(100);
/// If the end of an overdue kernel is not reported within this further span, the report counts as lost.
pub(super) const UNENDED_MAX: Nanos = Nanos::from_millis(5_000);
/// How much later than its predicted end a thread notices the end of the device's work, at most, if the prediction was right.
const NOTICE_MAX: Nanos = Nanos::from_micros(250);
/// How long after a fill the samples of a holder's gaps are not used, since they arrive late.
const FILL_CLOUDS: Nanos = Nanos::from_millis(100);

impl KernelQueue {
    /// Handles a launch without a grant.
    pub(super) fn on_launch(
        &mut self,
        at: usize,
        kernel: KernelIndex,
        (launch, count): (u64, u64),
    ) {
        self.gate.launches = self.gate.launches.max(count);
        if !self.sessions[at].role.is_holder() {
            // Its new role is still on the way, or its wait reached the limit.
            self.on_filler_launch(at, kernel, (launch, None));
            if let Some(run) = self.running.last_mut() {
                run.reports_end = count == 0;
            }
            return;
        }
        if self.sessions[at].role == Role::Measure {
            self.count_measured_launch(at, kernel);
        }
        // Kernels whose end was not observed still count.
        let running = self.sessions[at].gap.filter(|gap| !gap.idle);
        self.end_open_gap(at);
        if self.rules.early_stop {
            self.end_gap_leases_at(count);
        }
        // A session with a grant ahead observes this launch before its report comes, and may have launched after it.
        let is_past = count > 0 && count <= self.entered_at;
        let in_the_way = |run: &&mut RunningKernel| {
            run.is_filler && run.loss != KernelLoss::Colocated && !is_past
        };
        for run in self.running.iter_mut().filter(in_the_way) {
            run.holder_returned_at.get_or_insert(self.now);
        }
        let profile = &self.tasks[self.sessions[at].task].profile;
        let (took, is_measured) = (profile.took(kernel), profile.is_measured());
        // Between holders the driver changes by time slices, and not for each launch.
        let is_holders = |context| {
            let mut holders = self.sessions.iter().filter(|session| session.role.is_holder());
            holders.any(|session| session.id == context)
        };
        let is_back = !is_past && self.context.is_some_and(|context| !is_holders(context));
        let switch = if is_back { self.rules.switch } else { Nanos::ZERO };
        let begins = if is_past { self.at } else { self.tail.max(self.at).plus(switch) };
        let from = begins.plus(took.unwrap_or(Nanos::ZERO));
        self.tail = self.tail.max(from);
        self.served = self.served.plus(took.unwrap_or(Nanos::ZERO));
        let session = &mut self.sessions[at];
        if !is_past {
            self.context = Some(session.id);
        }
        let before = session.last.replace(kernel);
        session.active_at = self.now;
        let known = is_measured && took.is_some() && running.is_none_or(|gap| gap.known);
        let burst = running.filter(|gap| gap.from > self.at).map_or(Nanos::ZERO, |gap| gap.took);
        let burst = burst.plus(took.unwrap_or_default());
        session.gap = Some(OpenGap {
            before,
            kernel,
            from,
            surely_from: from.plus(session.ends.entry_delay(burst)),
            idle: false,
            known,
            took: burst,
            predicted_end: None,
            filled: is_past && count == self.entered_at,
            recall_at: None,
            recalled: None,
        });
        session.counters.launches += 1;
        self.counters.launches += 1;
        if let KernelSharing::Colocated { .. } = self.rules.sharing {
            self.track_kernel(at, kernel, took, KernelLoss::None);
            self.note_crowding();
        }
        self.predict_gap(at);
        self.count_device_time(at, took.unwrap_or_default());
        self.note_course(at, (kernel, count), from);
        self.open_gap_ahead(at, kernel, count);
    }

    /// Predicts the end of the holder's gap as the gap begins.
    fn predict_gap(&mut self, at: usize) {
        let Some(gap) = self.sessions[at].gap else { return };
        let predicted_end = self.predicted_gap_end(at, &gap);
        if let Some(gap) = &mut self.sessions[at].gap {
            gap.predicted_end = predicted_end;
        }
    }

    /// Ends a gap and learns from its length.
    fn end_open_gap(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let Some(gap) = session.gap.take() else { return };
        let profile = &mut self.tasks[session.task].profile;
        let lasted = self.at.minus(gap.from);
        // A gap counts if its beginning was observed, or follows from known times. In the measuring stage, gaps from
        // samples count as well.
        if gap.known || gap.idle {
            profile.note_gap(gap.before, gap.kernel, lasted);
        }
        if gap.filled {
            // The device switches back to the holder's context, unless it has done so in the gap.
            let is_back = gap.recalled.map_or(Nanos::MAX, |at| at.plus(self.rules.switch));
            self.pay_switch(is_back.minus(self.at).min(self.rules.switch));
        }
        if gap.idle && lasted > self.rules.epsilon {
            self.note_period(lasted);
        }
        let Some(predicted_end) = gap.predicted_end else { return };
        let session = &mut self.sessions[at];
        let early = self.at < predicted_end;
        // A launch before the device is idle begins no gap, and is no example of how long gaps last.
        let was_gap = gap.idle || lasted > Nanos::ZERO;
        if let (true, GapPredictor::Pairs { risk_thousandths }) = (was_gap, self.rules.predictor) {
            session.correction.learn(early, risk_thousandths);
        }
        let granted = self
            .sessions
            .iter()
            .filter_map(|other| other.lease)
            .any(|lease| lease.grant.kind.ends_with_gap() && !lease.is_ahead());
        for counters in [&mut self.counters, &mut self.sessions[at].counters] {
            counters.gaps_seen += 1;
            counters.gaps_filled += u64::from(gap.filled);
            counters.early_stops += u64::from(early && granted);
        }
    }

    /// Handles the request of a thread that waits for a grant.
    pub(super) fn on_request(
        &mut self,
        at: usize,
        kernel: KernelIndex,
        (launch, beyond): (u64, Option<u64>),
    ) -> Result<(), QueueRefusal> {
        let session = &self.sessions[at];
        let (id, priority, role) = (session.id, session.priority, session.role);
        if role.is_holder() {
            // The request crossed the new role: sending the role again releases the thread.
            self.actions.push(QueueAction::Role { session: id, role });
            return Ok(());
        }
        if beyond.is_some() && session.lease.map(|lease| lease.grant.number) == beyond {
            self.end_lease(at, false);
        }
        let given = self.sessions[at].basis.request;
        let is_it = |request: &LaunchRequest| request.session == id && request.launch == launch;
        let predicted = self.tasks[self.sessions[at].task].profile.estimate(kernel);
        let predicted = predicted.map(|time| time.high);
        if given.as_ref().is_some_and(is_it)
            || self.waiting.set_kernel(priority, (id, launch), kernel, predicted)
        {
            return Ok(());
        }
        if !self.has_place(at) {
            return Err(QueueRefusal::QueueFull);
        }
        let wait = WaitStart { at: self.now, served: self.served };
        self.waiting
            .push(priority, (id, launch), kernel, predicted, wait)
            .map_err(|_| QueueRefusal::QueueFull)?;
        if predicted.is_some() {
            self.end_gap_leases_below(priority);
        }
        self.sessions[at].waits_since.get_or_insert(wait.at);
        Ok(())
    }

    /// Returns whether a session may wait with one more launch. Each session has its share of the
    /// places of its priority, so that a program with many threads doesn't block others.
    fn has_place(&self, at: usize) -> bool {
        let (id, priority) = (self.sessions[at].id, self.sessions[at].priority);
        let sharers = self.sessions.iter().filter(|other| other.priority == priority).count();
        let own = self.waiting.launches_of(priority).filter(|request| request.session == id);
        own.count() < (WAITING_MAX / sharers.max(1)).max(1)
    }

    /// Ends grants of gaps of lower priority: a launch of higher priority waits and possibly fits.
    fn end_gap_leases_below(&mut self, priority: Priority) {
        let is_below = |session: &QueueSession| {
            session.priority > priority
                && session.lease.is_some_and(|lease| lease.grant.kind.ends_with_gap())
        };
        if self.sessions.iter().any(is_below) {
            self.end_gap_leases();
        }
    }

    /// Handles a launch of a filler, with or without a grant.
    pub(super) fn on_filler_launch(
        &mut self,
        at: usize,
        kernel: KernelIndex,
        (launch, grant): (u64, Option<u64>),
    ) {
        if self.sessions[at].role.is_holder() {
            self.on_launch(at, kernel, (launch, 0));
            return;
        }
        let took = self.tasks[self.sessions[at].task].profile.cost(kernel);
        let cost = took.unwrap_or(Nanos::ZERO);
        let kind = self.sessions[at].lease.filter(|lease| Some(lease.grant.number) == grant);
        let opening = kind.and_then(|lease| lease.opening);
        let opens_ahead = kind.is_some_and(|lease| lease.given_ahead && lease.spent == Nanos::ZERO);
        if let Some(opening) = opening {
            self.entered_at = self.entered_at.max(opening.launches);
        } else if let Some(lease) = kind
            && lease.grant.kind == GrantKind::Gap
            && lease.spent == Nanos::ZERO
            && !self.is_entered()
        {
            self.note_entry(self.at.minus(lease.grant.from));
        }
        let covered = kind.filter(|lease| lease.grant.kind != GrantKind::Aged);
        let covered = covered.map(|lease| lease.grant.budget);
        let kind = kind.map(|lease| lease.grant.kind);
        if let Some(lease) =
            self.sessions[at].lease.filter(|lease| Some(lease.grant.number) == grant)
        {
            self.end_unreported(at, lease.grant.in_flight);
        }
        let late = !self.spend_lease(at, grant, launch, cost);
        let loss = self.loss_of(at, kind, cost);
        self.end_wait_by_launch(at, covered);
        self.tail = if kind == Some(GrantKind::Colocated) {
            // It ends whatever else is in the device's queue.
            self.tail.max(self.now.plus(cost))
        } else {
            self.tail.max(self.now).plus(cost)
        };
        self.track_kernel(at, kernel, took, loss);
        let session = &mut self.sessions[at];
        self.context = Some(session.id);
        session.last = Some(kernel);
        session.active_at = self.now;
        session.sampled = None;
        for counters in [&mut self.counters, &mut session.counters] {
            counters.launches += 1;
            counters.late += u64::from(late);
            counters.grants_ahead_used += u64::from(opens_ahead);
            counters.note_fill(cost);
        }
        let (now, at_device) = (self.now, self.at);
        for session in &mut self.sessions {
            if let Some(gap) = &mut session.gap {
                // With a grant ahead, it is the next gap.
                if opening.is_none() {
                    gap.filled |= gap.from <= now;
                    gap.recalled = gap.recalled.filter(|recalled| *recalled >= at_device);
                }
                session.filled_until = now.plus(FILL_CLOUDS);
            }
        }
        self.count_device_time(at, cost);
    }

    /// Returns the budget that pays for a filler's kernel that starts now under a grant of this
    /// kind.
    fn loss_of(&mut self, at: usize, kind: Option<GrantKind>, cost: Nanos) -> KernelLoss {
        let paid = std::mem::take(&mut self.sessions[at].basis.paid);
        match kind {
            Some(GrantKind::Gap | GrantKind::Lapse) => KernelLoss::Gap,
            Some(GrantKind::Colocated) => KernelLoss::Colocated,
            Some(GrantKind::Aged) => {
                KernelLoss::Ageing { paid, amid: self.amid_work(), is_granted: true }
            }
            None => {
                self.charge_ungranted(cost);
                let paid = AgeingPrice { time: cost, delays: 0 };
                KernelLoss::Ageing { paid, amid: self.amid_work(), is_granted: false }
            }
        }
    }

    /// Returns the current time if a holder is active.
    fn amid_work(&self) -> Option<Nanos> {
        let mut holders = self.sessions.iter().filter(|session| session.role.is_holder());
        let is_at_work = holders.any(|session| {
            session.gap.is_some_and(|gap| !self.is_idle(session, &gap) || gap.from > self.now)
        });
        is_at_work.then_some(self.now)
    }

    /// Records a kernel in flight.
    fn track_kernel(
        &mut self,
        at: usize,
        kernel: KernelIndex,
        took: Option<Nanos>,
        loss: KernelLoss,
    ) {
        if self.running.len() == RUNNING_MAX {
            // The device cannot run more kernels at once, so the oldest must have ended. Holders launch most.
            let oldest = self.running.iter().position(|run| !run.has_place()).unwrap_or(0);
            self.remove_running(oldest);
        }
        let session = &mut self.sessions[at];
        // What is reserved for a current grant is not this kernel's.
        let reserved = session.basis.reserved.take_if(|_| session.lease.is_none());
        let need = reserved.or_else(|| self.need_of(at, kernel)).unwrap_or(ResourceNeed::WHOLE);
        let expected = self.tail.max(self.now.plus(took.unwrap_or(Nanos::ZERO)));
        let overdue = match took {
            Some(took) => expected.plus(took.times(3)).plus(OVERDUE.max(self.rules.grant_max)),
            None => expected.plus(UNKNOWN_OVERDUE.max(self.rules.grant_max)),
        };
        let session = &self.sessions[at];
        let is_filler = session.role == Role::Fill;
        self.next_expiry = self.next_expiry.min(overdue);
        let session = session.id;
        self.running.push(RunningKernel {
            session,
            kernel,
            begun: self.now,
            holder_returned_at: None,
            periods_met: 0,
            overdue,
            end: EndReport::Expected,
            reports_end: true,
            need,
            is_filler,
            ran: None,
            loss,
        });
    }

    /// Handles the end of a session's oldest kernel.
    pub(super) fn on_kernel_end(&mut self, at: usize) {
        let session = self.sessions[at].id;
        self.sessions[at].active_at = self.now;
        if let Some(index) = self.running.iter().position(|run| run.session == session) {
            self.end_running(at, index);
        }
        self.settle_tail();
    }

    /// Handles a synchronising call: nothing of the session is in flight any more.
    pub(super) fn on_sync(&mut self, at: usize, returns: Option<u64>) {
        let session = self.sessions[at].id;
        self.sessions[at].active_at = self.now;
        while let Some(index) = self.running.iter().position(|run| run.session == session) {
            self.end_running(at, index);
        }
        let session_state = &mut self.sessions[at];
        if let Some(gap) = &mut session_state.gap {
            if gap.known && !gap.idle {
                session_state.ends.learn(gap.took, self.at.minus(gap.from), gap.filled);
            }
            // The device ends a little before a thread notices it. Where predicted ends are right, gaps are measured from them.
            let is_right = gap.known && !gap.idle && session_state.ends.are_trusted();
            if !is_right || self.at < gap.from || self.at.minus(gap.from) > NOTICE_MAX {
                gap.from = self.at;
            }
            (gap.surely_from, gap.idle) = (gap.from, true);
            self.predict_gap(at);
        }
        let lease = self.sessions[at].lease;
        if lease.is_some_and(|lease| Some(lease.grant.number) == returns) {
            self.end_lease(at, false);
        }
        self.settle_tail();
    }

    /// Handles the observed end of a kernel.
    fn end_running(&mut self, at: usize, index: usize) {
        self.running[index].ran = self.take_sampled(at, self.running[index].kernel);
        let run = self.running[index];
        self.note_overshoot(at, index);
        self.note_seen_end(at, &run);
        self.remove_running(index);
    }

    /// Ends overdue kernels of a session that launches under a grant with this many kernels in flight. Its process launches
    /// only when it has seen the ends of others, so reports of them were lost.
    fn end_unreported(&mut self, at: usize, in_flight: u16) {
        let id = self.sessions[at].id;
        let is_its = |run: &&RunningKernel| run.is_filler && run.session == id;
        while self.running.iter().filter(is_its).count() >= usize::from(in_flight)
            && let Some(index) =
                self.running.iter().position(|run| is_its(&run) && !run.has_place())
        {
            self.remove_running(index);
        }
    }

    /// Counts a filler kernel that still ran after the holder's return.
    fn note_overshoot(&mut self, at: usize, index: usize) {
        let run = self.running[index];
        // The end of an overdue kernel may be seen long after it. Only its sample shows how long it ran.
        let most = if run.has_place() { Nanos::MAX } else { run.ran.unwrap_or_default() };
        if let Some(met) = run.holder_returned_at.filter(|_| most > Nanos::ZERO) {
            let over = self.now.minus(met).min(most);
            self.counters.note_overshoot(over);
            self.sessions[at].counters.note_overshoot(over);
        }
    }

    /// Removes a kernel that ended.
    pub(super) fn remove_running(&mut self, index: usize) {
        let run = self.running.remove(index);
        let _ = self.settle_loss(&run);
    }

    /// Removes a predicted end in the future when no kernel runs.
    fn settle_tail(&mut self) {
        let now = self.now;
        let holder_runs =
            self.sessions.iter().any(|session| session.gap.is_some_and(|gap| gap.from > now));
        if !holder_runs && self.fillers_in_flight() == 0 {
            self.tail = self.tail.min(now);
        }
    }

    /// Returns the number of filler kernels in flight.
    pub(super) fn fillers_in_flight(&self) -> usize {
        self.running.iter().filter(|run| run.has_place()).count()
    }

    /// Returns whether a kernel that the budgets of ageing pay for possibly runs on, since its end is overdue.
    pub(super) fn awaits_aged_end(&self) -> bool {
        let is_aged = |run: &RunningKernel| matches!(run.loss, KernelLoss::Ageing { .. });
        self.running.iter().any(|run| run.end == EndReport::Overdue && is_aged(run))
    }
}
