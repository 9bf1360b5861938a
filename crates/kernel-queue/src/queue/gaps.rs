//! Filling the holder's gaps: FIKIT's Algorithms 1 and 2, step by step.
//!
//! The paper's Algorithm 1 launches everything that fits at once. Here the fillers have at most
//! [`crate::QueueRules::in_flight`] kernels in the device's queue. After an early stop the holder
//! waits only for these. When one ends, the rest of the gap determines the next one.
//!
//! A fill costs the holder a context switch at its return, and the rest of the kernels that still
//! run then. So a gap is filled only if it is longer than two context switches. By how much depends
//! on how long holders waited for switches recently, and on the remaining budget of fills
//! ([`crate::QueueRules::fill_cost_thousandths`]). With little left only the longest gaps are filled.
//!
//! With [`crate::QueueRules::recall`], the fillers' time ends one context switch before a predicted end, and the holder is
//! ordered to bring the device back then. So the switch costs it nothing if the prediction is right.

use super::KernelQueue;
use super::delays::AgeingPrice;
use super::grants::GrantTerms;
use super::launches::RunningKernel;
use super::session::{OpenGap, QueueSession};
use crate::action::QueueAction;
use crate::lease::{GrantKind, GrantLease};
use crate::predict::{CurrentGap, GapCorrection, GapPrediction};
use crate::rules::GrantSize;
use crate::time::Nanos;
use crate::waiting::LaunchRequest;

/// The time saved for fills is limited to the income of this span.
const SAVED_SPAN: Nanos = Nanos::from_millis(100);
/// The longest grant while no holder has a session.
const ABSENT_GRANT_MAX: Nanos = Nanos::from_millis(50);
/// The part of a switch that a filled gap costs at least, even if the holder has not waited for any recently.
const CHEAPEST: u64 = 8;
/// The shortest pause between two checks of a gap, whatever ε is.
const PAUSE_MIN: Nanos = Nanos::from_micros(10);
/// The assumed time of an unknown kernel while the holder is absent.
const UNKNOWN_IN_LAPSE: Nanos = Nanos::from_millis(5);

/// The span in which the device is predicted to be idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdleWindow {
    pub begin: Nanos,
    pub end: Nanos,
    pub kind: GrantKind,
    /// The holder whose predicted return is the end. It can bring the device back before.
    pub returns: Option<usize>,
}

impl IdleWindow {
    /// Returns until when fillers' kernels may run, if the switch back takes this long.
    fn end_of_fills(&self, switch: Nanos) -> Nanos {
        if self.returns.is_some() { self.end.minus(switch) } else { self.end }
    }
}

impl KernelQueue {
    /// Returns the most that is saved for fills.
    pub(super) const fn fills_saved_max(rules: &crate::QueueRules) -> Nanos {
        SAVED_SPAN.thousandths(rules.fill_cost_thousandths)
    }

    /// Credits the time that passed.
    pub(super) fn credit_fills(&mut self) {
        let most = Self::fills_saved_max(&self.rules);
        self.fills.pass(self.now, self.rules.fill_cost_thousandths, most);
    }

    /// Grants the launches that fit into the gap, if there is one.
    pub(super) fn fill_gap(&mut self) {
        if self.owner.is_some() {
            return;
        }
        if self.is_overtaken() {
            // The gap that the reports show is over.
            self.grant_ahead();
            return;
        }
        let Some(window) = self.idle_window() else {
            self.grant_ahead();
            return;
        };
        if !self.is_long_enough(window) {
            self.schedule_longer_gap();
            self.grant_ahead();
            return;
        }
        // This gap is there, and another one was only expected.
        self.end_leases_ahead();
        let mut is_granted = false;
        while let Some((request, from, end, idle)) = self.choose_launch(window) {
            is_granted = true;
            let cost = request.predicted.unwrap_or(Nanos::ZERO);
            // A dead session's grant must end soon, so only a long kernel gets a longer grant.
            // While no holder waits for its end, it may last longer.
            let longest =
                if self.is_holder_absent() { ABSENT_GRANT_MAX } else { self.rules.grant_max };
            let until = end.min(from.plus(longest.max(cost)));
            let until_of_one = until.min(from.plus(idle));
            let (until, budget, launches) = match self.rules.grants {
                GrantSize::Kernel => (until_of_one, cost, 1),
                // How long an unknown kernel takes is not known, so the next launch needs a new
                // request.
                GrantSize::Gap if request.predicted.is_none() => {
                    (until_of_one, until_of_one.minus(from), 1)
                }
                GrantSize::Gap => (until, until.minus(from).min(idle), u16::MAX),
            };
            let kind = window.kind;
            let paid = AgeingPrice::NOTHING;
            self.grant_launch(
                request,
                GrantTerms {
                    kind,
                    from,
                    until,
                    budget,
                    launches,
                    reserved: None,
                    opening: None,
                    paid,
                },
            );
        }
        if is_granted {
            self.order_recall(window);
        }
        if window.kind == GrantKind::Gap && self.interleaved_leases().next().is_none() {
            self.grant_probe(self.now.max(self.tail), window.end);
        }
    }

    /// Returns whether a gap without fills is long enough for the context switches.
    fn is_long_enough(&self, window: IdleWindow) -> bool {
        if window.kind != GrantKind::Gap || self.is_entered() {
            return true;
        }
        let begin = self.now.max(window.begin).plus(self.expected_delay());
        window.end.minus(begin) > self.shortest_gap_to_fill()
    }

    /// Returns how long after a grant the first kernel will be launched, if the holder recalls the device: then a fill
    /// that comes late has little time.
    fn expected_delay(&self) -> Nanos {
        if self.rules.recall { self.entry_delay.min(self.rules.switch) } else { Nanos::ZERO }
    }

    /// Learns how long after a grant its first kernel was launched.
    pub(super) fn note_entry(&mut self, delay: Nanos) {
        self.entry_delay = moving_mean(self.entry_delay, delay.min(self.rules.switch));
    }

    /// Pays for the time that a holder waits for the switch back to it, and learns how long that is.
    pub(super) fn pay_switch(&mut self, wait: Nanos) {
        self.fills.take(wait);
        self.switch_wait = moving_mean(self.switch_wait, wait);
    }

    /// Orders the holder to bring the device back before its gap is expected to end.
    pub(super) fn order_recall(&mut self, window: IdleWindow) {
        let Some(at) = window.returns else { return };
        let (recall_at, launches) = (window.end_of_fills(self.rules.switch), self.gate.launches);
        let session = self.sessions[at].id;
        let Some(gap) = &mut self.sessions[at].gap else { return };
        if gap.recall_at.replace(recall_at) != Some(recall_at) {
            self.actions.push(QueueAction::Recall { session, at: recall_at, launches });
        }
    }

    /// Handles a holder's answer: the device is on its way back to it.
    pub(super) fn on_recalled(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let Some(gap) = session.gap.as_mut().filter(|gap| gap.from <= self.at) else { return };
        if session.role.is_holder() {
            gap.recalled = Some(self.at);
            self.context = Some(session.id);
        }
    }

    /// Returns whether the current gap is filled already, and the device is with the fillers.
    pub(super) fn is_entered(&self) -> bool {
        let is_filled = |gap: OpenGap| gap.filled && gap.recalled.is_none();
        self.sessions.iter().any(|session| session.gap.is_some_and(is_filled))
    }

    /// Returns the shortest gap that is filled: two context switches and what a fill costs, and more if little time is
    /// saved.
    pub(super) fn shortest_gap_to_fill(&self) -> Nanos {
        self.shortest_gap_with(self.fills.saved())
    }

    /// The same if so much time were saved.
    fn shortest_gap_with(&self, saved: Nanos) -> Nanos {
        let most = Self::fills_saved_max(&self.rules);
        if saved == Nanos::ZERO {
            return Nanos::MAX;
        }
        let switch = self.rules.switch;
        let cost = self.switch_wait.max(Nanos::new(switch.get() / CHEAPEST));
        let more = u128::from(cost.get()) * u128::from(most.get()) / u128::from(saved.get());
        let more = u64::try_from(more).map_or(Nanos::MAX, Nanos::new);
        switch.times(2).plus(more).max(self.rules.epsilon)
    }

    /// Removes the next launch for the window from the queue, if there is one. Returns it with the
    /// span in which it may go, and for how long kernels can run in it.
    fn choose_launch(
        &mut self,
        window: IdleWindow,
    ) -> Option<(LaunchRequest, Nanos, Nanos, Nanos)> {
        if !self.may_grant_gap() {
            return None;
        }
        let from = self.now.max(self.tail).max(window.begin).plus(self.granted_gap_time());
        let absent = self.now.minus(window.begin);
        let is_holder_absent = self.is_holder_absent();
        // A session that has the device launches at once.
        let delay = if self.is_entered() { Nanos::ZERO } else { self.expected_delay() };
        let Self { waiting, sessions, context, rules, .. } = self;
        // The session that used the device last needs no context switch.
        let switch = |request: &LaunchRequest| {
            if *context == Some(request.session) { Nanos::ZERO } else { rules.switch }
        };
        let end_of_fills = window.end_of_fills(rules.switch);
        let idle = end_of_fills.minus(from);
        let request = match window.kind {
            GrantKind::Lapse => {
                let longest = absent.thousandths(rules.lapse_thousandths);
                waiting.take_first(|request| {
                    let time = request.predicted.unwrap_or(UNKNOWN_IN_LAPSE);
                    (is_holder_absent || time <= longest) && may_get_grant(sessions, request)
                })
            }
            GrantKind::Gap | GrantKind::Aged | GrantKind::Colocated => {
                waiting.best_fit_among(idle, |request| {
                    let time = request.predicted.unwrap_or(Nanos::MAX);
                    time.plus(switch(request)).plus(delay) < idle
                        && may_get_grant(sessions, request)
                })
            }
        };
        let enters = request.map(|request| switch(&request));
        if request.is_none() {
            self.schedule_look();
        }
        request.zip(enters).map(|(request, enters)| {
            // A lapse grant has no predicted end. The switch to the filler is a part of the time, and not of its
            // kernels' time.
            (request, from, end_of_fills, idle.minus(enters))
        })
    }

    /// Returns whether one more grant may be given. A grant for a whole gap is the only one.
    pub(super) fn may_grant_gap(&self) -> bool {
        match self.rules.grants {
            GrantSize::Kernel => self.can_commit_kernel(),
            GrantSize::Gap => {
                self.interleaved_leases().next().is_none() && self.can_commit_kernel()
            }
        }
    }

    /// Returns the current grants whose kernels do not run next to the holder's.
    fn interleaved_leases(&self) -> impl Iterator<Item = &GrantLease> {
        let leases = self.sessions.iter().filter_map(|session| session.lease.as_ref());
        leases.filter(|lease| lease.grant.kind != GrantKind::Colocated)
    }

    /// Returns whether one more filler kernel may enter the device's queue.
    pub(super) fn can_commit_kernel(&self) -> bool {
        self.filler_kernels_committed() < usize::from(self.window())
    }

    /// Returns how many filler kernels are in flight or may be launched under current grants.
    ///
    /// A session with a grant launches without a request until its window is full.
    pub(super) fn filler_kernels_committed(&self) -> usize {
        self.committed_with(self.interleaved_leases())
    }

    /// Returns the current grants whose kernels do not run next to the holder's, without those of gaps that have not begun.
    pub(super) fn leases_in_use(&self) -> impl Iterator<Item = &GrantLease> {
        let sessions = self.sessions.iter().filter(|session| !self.has_unused_lease_ahead(session));
        let leases = sessions.filter_map(|session| session.lease.as_ref());
        leases.filter(|lease| lease.grant.kind != GrantKind::Colocated)
    }

    /// Returns whether one more filler kernel may enter the device's queue, next to those of these grants.
    pub(super) fn can_commit_with<'a>(
        &'a self,
        leases: impl Iterator<Item = &'a GrantLease>,
    ) -> bool {
        self.committed_with(leases) < usize::from(self.window())
    }

    fn committed_with<'a>(&'a self, leases: impl Iterator<Item = &'a GrantLease>) -> usize {
        let to_come = leases.map(|lease| {
            let own = |run: &&RunningKernel| run.has_place() && run.session == lease.session;
            let own = self.running.iter().filter(own).count();
            let window = usize::from(lease.grant.in_flight);
            usize::from(lease.grant.launches).min(window.saturating_sub(own))
        });
        self.fillers_in_flight() + to_come.sum::<usize>()
    }

    /// Returns the span in which all holders are predicted to leave the device idle.
    fn idle_window(&mut self) -> Option<IdleWindow> {
        let mut window = IdleWindow {
            begin: Nanos::ZERO,
            end: Nanos::MAX,
            kind: GrantKind::Lapse,
            returns: None,
        };
        for at in 0..self.sessions.len() {
            if !self.sessions[at].role.is_holder() {
                continue;
            }
            let Some((end, kind, is_predicted)) = self.idle_window_of(&self.sessions[at]) else {
                self.schedule_longer_gap();
                return None;
            };
            let session = &self.sessions[at];
            let begin = session.gap.map_or(session.active_at, |gap| gap.surely_from);
            window.begin = window.begin.max(begin);
            if end < window.end {
                let recalls = self.rules.recall && self.rules.switch > Nanos::ZERO;
                window.returns = (is_predicted && recalls).then_some(at);
                window.end = end;
            }
            if kind == GrantKind::Gap {
                window.kind = GrantKind::Gap;
            }
        }
        Some(window)
    }

    /// Returns whether a holder's device is idle, or will be at the predicted end of its last kernel.
    ///
    /// It is idle when a synchronising call has returned. Before that only the predicted end of measured
    /// kernels counts, and only while such predictions were right. A kernel that is unknown, or
    /// takes longer than predicted, counts as running.
    pub(super) const fn is_idle(&self, session: &QueueSession, gap: &OpenGap) -> bool {
        gap.idle || (gap.known && session.ends.are_trusted())
    }

    /// Returns the earliest end of one holder's gap, if the gap is long enough to be filled, and whether that end is
    /// predicted.
    fn idle_window_of(&self, session: &QueueSession) -> Option<(Nanos, GrantKind, bool)> {
        let from = session.gap.map_or(session.active_at, |gap| gap.from);
        let elapsed = self.now.minus(from);
        let is_lapsed = self.now >= from && elapsed >= self.rules.lapse;
        let predicted = match session.gap {
            None => GapPrediction::Unknown,
            Some(gap) if !self.is_idle(session, &gap) => return None,
            Some(gap) => match self.predict_rest_of_gap(session, &gap, elapsed) {
                // The end of its last kernel was not observed, so the gap has possibly not begun.
                GapPrediction::Beyond | GapPrediction::Unknown if !gap.idle => return None,
                predicted => predicted,
            },
        };
        match predicted {
            GapPrediction::Idle(more) => {
                let end = self.now.max(from).plus(more);
                (end.minus(from) > self.rules.epsilon).then_some((end, GrantKind::Gap, true))
            }
            GapPrediction::Beyond | GapPrediction::Unknown if is_lapsed => {
                Some((Nanos::MAX, GrantKind::Lapse, false))
            }
            GapPrediction::Beyond => {
                let probe = elapsed.thousandths(self.rules.probe_thousandths);
                (probe > Nanos::ZERO).then(|| (self.now.plus(probe), GrantKind::Gap, false))
            }
            GapPrediction::Unknown => None,
        }
    }

    pub(super) fn predict_rest_of_gap(
        &self,
        session: &QueueSession,
        gap: &OpenGap,
        elapsed: Nanos,
    ) -> GapPrediction {
        let profile = &self.tasks[session.task].profile;
        let gap = CurrentGap { before: gap.before, kernel: gap.kernel, elapsed };
        self.rules.predictor.predict(profile, session.correction, gap)
    }

    /// Returns the predicted end of a gap that begins now, if the gap is long enough to be filled.
    ///
    /// Whether it is long enough is decided without the correction: one that made all gaps too short would learn from none,
    /// and never recover.
    pub(super) fn predicted_gap_end(&self, at: usize, gap: &OpenGap) -> Option<Nanos> {
        let profile = &self.tasks[self.sessions[at].task].profile;
        let begun = CurrentGap { before: gap.before, kernel: gap.kernel, elapsed: Nanos::ZERO };
        let shortest = self.rules.switch.times(2).max(self.rules.epsilon);
        match self.rules.predictor.predict(profile, GapCorrection::default(), begun) {
            GapPrediction::Idle(length) if length > shortest => {}
            GapPrediction::Idle(_) | GapPrediction::Unknown | GapPrediction::Beyond => return None,
        }
        match self.predict_rest_of_gap(&self.sessions[at], gap, Nanos::ZERO) {
            GapPrediction::Idle(corrected) => Some(gap.from.plus(corrected)),
            GapPrediction::Unknown | GapPrediction::Beyond => None,
        }
    }

    /// Schedules a check of a gap that is too short to be filled, for when it may be long enough. Between two fills there
    /// are many short gaps, so most checks would find nothing to do.
    fn schedule_longer_gap(&mut self) {
        // In a gap that is filled already, short spans count as well.
        if self.is_entered() {
            self.schedule_look();
            return;
        }
        let holders = self.sessions.iter().filter(|session| session.role.is_holder());
        // All of them have to leave the device idle.
        let Some(at) = holders.map(|session| self.next_longer_gap(session)).max() else { return };
        // A holder that counts as absent since long is checked like a gap of its age.
        self.schedule_look_from(at);
    }

    /// Returns the earliest time at which a holder's gap may be long enough to be filled, by its age alone.
    /// [`Nanos::MAX`] if that needs a record of the holder.
    fn next_longer_gap(&self, session: &QueueSession) -> Nanos {
        let from = session.gap.map_or(session.active_at, |gap| gap.from);
        let lapse = match self.rules.lapse {
            Nanos::MAX => Nanos::MAX,
            lapse => from.plus(lapse),
        };
        let Some(gap) = session.gap else { return lapse };
        if !self.is_idle(session, &gap) {
            return Nanos::MAX;
        }
        // Until then, the most that is ever saved may be saved.
        let needed = self.shortest_gap_with(Self::fills_saved_max(&self.rules));
        let profile = &self.tasks[session.task].profile;
        let mut age = self.now.minus(from);
        loop {
            age = age.plus(pause_at(age, self.rules.epsilon));
            let elapsed = CurrentGap { before: gap.before, kernel: gap.kernel, elapsed: age };
            if from.plus(age) >= lapse || !self.rules.predictor.may_reach(profile, elapsed, needed)
            {
                break;
            }
            match self.predict_rest_of_gap(session, &gap, age) {
                GapPrediction::Idle(more) if more > needed => return from.plus(age),
                GapPrediction::Idle(_) => {}
                GapPrediction::Beyond | GapPrediction::Unknown => break,
            }
        }
        if !gap.idle {
            // The end of its last kernel was not observed.
            return Nanos::MAX;
        }
        match self.predict_rest_of_gap(session, &gap, age) {
            GapPrediction::Unknown => lapse,
            // The age from which a probe takes so long.
            GapPrediction::Idle(_) | GapPrediction::Beyond => {
                let parts = self.rules.probe_thousandths;
                let probed = needed.get().saturating_mul(1_000).checked_div(parts);
                let probed = probed.map_or(Nanos::MAX, Nanos::new).max(age);
                from.plus(probed).min(lapse)
            }
        }
    }

    /// Schedules another check of the gap, since its prediction changes with its age.
    fn schedule_look(&mut self) {
        self.schedule_look_from(Nanos::ZERO);
    }

    /// Schedules a check for `at`, or for the end of a pause by the gap's age if that is later.
    fn schedule_look_from(&mut self, at: Nanos) {
        if self.rules.lapse == Nanos::MAX && self.rules.probe_thousandths == 0 {
            return;
        }
        let holders = self.sessions.iter().filter(|session| session.role.is_holder());
        let from = holders.map(|s| s.gap.map_or(s.active_at, |gap| gap.from)).max();
        let Some(from) = from else { return };
        let pause = pause_at(self.now.minus(from), self.rules.epsilon);
        self.next_look = self.next_look.min(at.max(self.now.max(from).plus(pause)));
    }
}

/// Returns a moving mean after one more value, which counts for an eighth.
fn moving_mean(mean: Nanos, value: Nanos) -> Nanos {
    mean.minus(Nanos::new(mean.get() / 8)).plus(Nanos::new(value.get() / 8))
}

/// Returns the pause until the next check of a gap of this age: an eighth of it, so that a long silence causes few checks.
fn pause_at(age: Nanos, epsilon: Nanos) -> Nanos {
    Nanos::new(age.get() / 8).max(epsilon).max(PAUSE_MIN)
}

/// Returns whether the session of a launch may get a grant. Each session has at most one, and one that is in exclusive
/// mode gets none while it waits for the slice.
pub(super) fn may_get_grant(sessions: &[QueueSession], request: &LaunchRequest) -> bool {
    let session = sessions.iter().find(|session| session.id == request.session);
    session.is_some_and(|session| session.lease.is_none() && session.exclusive.is_none())
}
