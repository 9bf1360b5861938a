//! Filling the holder's gaps: FIKIT's Algorithms 1 and 2, step by step.
//!
//! The paper launches everything that fits at once. Here the fillers have at most
//! [`crate::QueueRules::in_flight`] kernels in the device's queue. After an early stop the holder
//! waits for no more than those. When one ends, the rest of the gap decides which is next.

use super::KernelQueue;
use super::grants::GrantTerms;
use super::launches::RunningKernel;
use super::session::{OpenGap, QueueSession};
use crate::action::Role;
use crate::lease::{GrantKind, GrantLease};
use crate::predict::{CurrentGap, GapPrediction};
use crate::rules::{GrantSize, KernelSharing};
use crate::time::Nanos;
use crate::waiting::LaunchRequest;

/// The span in which the device is predicted to be idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdleWindow {
    end: Nanos,
    kind: GrantKind,
}

impl KernelQueue {
    /// Grants the launches that fit into the gap, if there is one.
    pub(super) fn fill_gap(&mut self) {
        if self.rules.sharing == KernelSharing::Exclusive || self.waiting.is_empty() {
            return;
        }
        let Some(window) = self.idle_window() else { return };
        while let Some((request, from, end)) = self.choose_launch(window) {
            let cost = request.predicted.unwrap_or(Nanos::ZERO);
            // A dead session's grant must end soon, so only a long kernel gets a longer grant.
            let until = end.min(from.plus(self.rules.grant_max.max(cost)));
            let (budget, launches) = match self.rules.grants {
                GrantSize::Kernel => (cost, 1),
                GrantSize::Gap => (until.minus(from), u16::MAX),
            };
            let kind = window.kind;
            self.grant_launch(
                request,
                GrantTerms { kind, from, until, budget, launches, reserved: None },
            );
        }
    }

    /// Removes the next launch for the window from the queue, if there is one.
    fn choose_launch(&mut self, window: IdleWindow) -> Option<(LaunchRequest, Nanos, Nanos)> {
        if !self.may_grant_gap() {
            return None;
        }
        let from = self.now.max(self.tail).plus(self.granted_gap_time());
        let Self { waiting, sessions, .. } = self;
        let may_go = |request: &LaunchRequest| is_leaseless(sessions, request);
        let request = match window.kind {
            GrantKind::Lapse => waiting.take_first(may_go),
            GrantKind::Gap | GrantKind::Aged | GrantKind::Colocated => {
                waiting.best_fit_among(window.end.minus(from), may_go)
            }
        };
        if request.is_none() {
            self.schedule_look();
        }
        request.map(|request| (request, from, window.end))
    }

    /// Returns whether one more grant may be given. A grant for a whole gap is the only one.
    fn may_grant_gap(&self) -> bool {
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
        self.filler_kernels_committed() < usize::from(self.rules.in_flight)
    }

    /// Returns how many filler kernels are in flight or may be launched under current grants.
    ///
    /// A session with a grant launches without a request until its window is full.
    pub(super) fn filler_kernels_committed(&self) -> usize {
        let to_come = self.interleaved_leases().map(|lease| {
            let own = |run: &&RunningKernel| run.is_filler && run.session == lease.session;
            let own = self.running.iter().filter(own).count();
            let window = usize::from(lease.grant.in_flight);
            usize::from(lease.grant.launches).min(window.saturating_sub(own))
        });
        self.fillers_in_flight() + to_come.sum::<usize>()
    }

    /// Returns the span in which all holders are predicted to leave the device idle.
    fn idle_window(&mut self) -> Option<IdleWindow> {
        let mut window = IdleWindow { end: Nanos::MAX, kind: GrantKind::Lapse };
        for at in 0..self.sessions.len() {
            if !self.sessions[at].role.is_holder() {
                continue;
            }
            let Some((end, kind)) = self.idle_window_of(&self.sessions[at]) else {
                self.schedule_look();
                return None;
            };
            window.end = window.end.min(end);
            if kind == GrantKind::Gap {
                window.kind = GrantKind::Gap;
            }
        }
        Some(window)
    }

    /// Returns the earliest end of one holder's gap, if the gap is long enough to be filled.
    fn idle_window_of(&self, session: &QueueSession) -> Option<(Nanos, GrantKind)> {
        let from = session.gap.map_or(session.active_at, |gap| gap.from);
        let elapsed = self.now.minus(from);
        let lapsed = self.now >= from && elapsed >= self.rules.lapse;
        let outlook = match session.gap {
            Some(gap) if session.role != Role::Measure => {
                self.predict_rest_of_gap(session, &gap, elapsed)
            }
            _ => GapPrediction::Unknown,
        };
        match outlook {
            GapPrediction::Idle(more) => {
                let end = self.now.max(from).plus(more);
                (end.minus(from) > self.rules.epsilon).then_some((end, GrantKind::Gap))
            }
            GapPrediction::Beyond | GapPrediction::Unknown if lapsed => {
                Some((Nanos::MAX, GrantKind::Lapse))
            }
            GapPrediction::Beyond => {
                let probe = elapsed.thousandths(self.rules.probe_thousandths);
                (probe > Nanos::ZERO).then(|| (self.now.plus(probe), GrantKind::Gap))
            }
            GapPrediction::Unknown => None,
        }
    }

    fn predict_rest_of_gap(
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
    pub(super) fn predicted_gap_end(&self, at: usize, gap: &OpenGap) -> Option<Nanos> {
        match self.predict_rest_of_gap(&self.sessions[at], gap, Nanos::ZERO) {
            GapPrediction::Idle(length) if length > self.rules.epsilon => {
                Some(gap.from.plus(length))
            }
            GapPrediction::Idle(_) | GapPrediction::Unknown | GapPrediction::Beyond => None,
        }
    }

    /// Schedules another look at the gap, since its prediction changes as it lasts.
    ///
    /// The pause is an eighth of the gap's age, so that a long silence costs few looks.
    fn schedule_look(&mut self) {
        if self.rules.lapse == Nanos::MAX && self.rules.probe_thousandths == 0 {
            return;
        }
        let holders = self.sessions.iter().filter(|session| session.role.is_holder());
        let from = holders.map(|s| s.gap.map_or(s.active_at, |gap| gap.from)).max();
        let Some(from) = from else { return };
        let pause = Nanos::new(self.now.minus(from).get() / 8).max(self.rules.epsilon);
        self.next_look = self.next_look.min(self.now.max(from).plus(pause));
    }
}

/// Returns whether the session of a launch has no grant. Each session has at most one.
fn is_leaseless(sessions: &[QueueSession], request: &LaunchRequest) -> bool {
    let session = sessions.iter().find(|session| session.id == request.session);
    session.is_some_and(|session| session.lease.is_none())
}
