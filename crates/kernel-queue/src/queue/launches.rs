//! Launches of sessions, and the ends of their kernels.

use super::KernelQueue;
use super::session::{OpenGap, WaitStart};
use crate::action::{QueueAction, QueueRefusal};
use crate::admission::ResourceNeed;
use crate::ids::{KernelIndex, SessionId};
use crate::limits::RUNNING_MAX;
use crate::predict::GapPredictor;
use crate::rules::KernelSharing;
use crate::time::Nanos;
use crate::waiting::LaunchRequest;

/// A kernel in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningKernel {
    pub session: SessionId,
    /// When a holder first launched while this kernel was in flight.
    pub holder_returned_at: Option<Nanos>,
    /// If its end is not reported by then, it counts as ended.
    pub overdue: Nanos,
    /// The resources that it occupies on the device.
    pub need: ResourceNeed,
    /// Whether a filler launched it.
    pub is_filler: bool,
}

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
            return;
        }
        self.end_open_gap(at);
        if self.rules.early_stop {
            self.end_gap_leases();
        }
        for run in self.running.iter_mut().filter(|run| run.is_filler) {
            run.holder_returned_at.get_or_insert(self.now);
        }
        let took = self.tasks[self.sessions[at].task].profile.took(kernel);
        self.tail = self.tail.max(self.now).plus(took.unwrap_or(Nanos::ZERO));
        self.served = self.served.plus(took.unwrap_or(Nanos::ZERO));
        let from = self.tail;
        let session = &mut self.sessions[at];
        let before = session.last.replace(kernel);
        session.active_at = self.now;
        session.gap = Some(OpenGap { before, kernel, from, predicted_end: None, filled: false });
        session.counters.launches += 1;
        self.counters.launches += 1;
        if let KernelSharing::Colocated { .. } = self.rules.sharing {
            self.track_kernel(at, kernel, took, false);
        }
        self.predict_gap(at);
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
        let lasted = self.now.minus(gap.from);
        if profile.is_measured() {
            profile.pairs.add(gap.before, gap.kernel, lasted);
        }
        let Some(predicted_end) = gap.predicted_end else { return };
        let early = self.now < predicted_end;
        if let GapPredictor::Pairs { risk_thousandths } = self.rules.predictor {
            session.correction.learn(early, risk_thousandths);
        }
        let granted = self
            .sessions
            .iter()
            .any(|other| other.lease.is_some_and(|lease| lease.grant.kind.ends_with_gap()));
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
        let predicted = self.tasks[self.sessions[at].task].profile.took(kernel);
        if given.as_ref().is_some_and(is_it)
            || self.waiting.set_kernel(priority, (id, launch), kernel, predicted)
        {
            return Ok(());
        }
        self.waiting
            .push(priority, (id, launch), kernel, predicted)
            .map_err(|_| QueueRefusal::QueueFull)?;
        let wait_start = WaitStart { at: self.now, served: self.served };
        self.sessions[at].wait_start.get_or_insert(wait_start);
        Ok(())
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
        let took = self.tasks[self.sessions[at].task].profile.took(kernel);
        let cost = took.unwrap_or(Nanos::ZERO);
        let late = !self.spend_lease(at, grant, launch, cost);
        self.end_wait_by_launch(at);
        self.tail = self.tail.max(self.now).plus(cost);
        self.track_kernel(at, kernel, took, true);
        let session = &mut self.sessions[at];
        session.last = Some(kernel);
        session.active_at = self.now;
        for counters in [&mut self.counters, &mut session.counters] {
            counters.launches += 1;
            counters.late += u64::from(late);
            counters.note_fill(cost);
        }
        let now = self.now;
        for gap in self.sessions.iter_mut().filter_map(|session| session.gap.as_mut()) {
            gap.filled |= gap.from <= now;
        }
    }

    /// Records a kernel in flight.
    fn track_kernel(
        &mut self,
        at: usize,
        kernel: KernelIndex,
        took: Option<Nanos>,
        is_filler: bool,
    ) {
        if self.running.len() == RUNNING_MAX {
            // The device cannot run more kernels at once, so the oldest must have ended.
            self.remove_running(0);
        }
        let session = &mut self.sessions[at];
        let profile = &self.tasks[session.task].profile;
        let need = match (self.rules.sharing, session.basis.reserved.take()) {
            (KernelSharing::Exclusive | KernelSharing::Interleaved, _) => ResourceNeed::default(),
            (KernelSharing::Colocated { .. }, Some(reserved)) => reserved,
            (KernelSharing::Colocated { .. }, None) => {
                self.occupancy.reserve(profile.kernel(kernel).and_then(|kernel| kernel.need))
            }
        };
        // After twice the predicted time plus the longest grant, the report must be lost.
        let expected = self.tail.max(self.now.plus(took.unwrap_or(Nanos::ZERO)));
        let overdue = expected.plus(took.unwrap_or(Nanos::ZERO)).plus(self.rules.grant_max);
        self.next_expiry = self.next_expiry.min(overdue);
        let session = session.id;
        self.running.push(RunningKernel {
            session,
            holder_returned_at: None,
            overdue,
            need,
            is_filler,
        });
    }

    /// Handles the end of a session's oldest kernel.
    pub(super) fn on_kernel_end(&mut self, at: usize) {
        let session = self.sessions[at].id;
        self.sessions[at].active_at = self.now;
        if let Some(index) = self.running.iter().position(|run| run.session == session) {
            self.note_overshoot(at, index);
            self.remove_running(index);
        }
        self.settle_tail();
    }

    /// Handles a synchronising call: nothing of the session is in flight any more.
    pub(super) fn on_sync(&mut self, at: usize, returns: Option<u64>) {
        let session = self.sessions[at].id;
        self.sessions[at].active_at = self.now;
        while let Some(index) = self.running.iter().position(|run| run.session == session) {
            self.note_overshoot(at, index);
            self.remove_running(index);
        }
        if let Some(gap) = &mut self.sessions[at].gap {
            gap.from = self.now;
            self.predict_gap(at);
        }
        let lease = self.sessions[at].lease;
        if lease.is_some_and(|lease| Some(lease.grant.number) == returns) {
            self.end_lease(at, false);
        }
        self.settle_tail();
    }

    /// Counts a filler kernel that ran on after the holder's return.
    fn note_overshoot(&mut self, at: usize, index: usize) {
        let run = self.running[index];
        if let Some(met) = run.holder_returned_at {
            let over = self.now.minus(met);
            self.counters.note_overshoot(over);
            self.sessions[at].counters.note_overshoot(over);
        }
    }

    /// Removes a kernel that ended.
    pub(super) fn remove_running(&mut self, index: usize) {
        let run = self.running.remove(index);
        self.occupancy.release(run.need);
    }

    /// Withdraws a predicted end in the future when nothing runs.
    fn settle_tail(&mut self) {
        let now = self.now;
        let holder_runs =
            self.sessions.iter().any(|session| session.gap.is_some_and(|gap| gap.from > now));
        if !holder_runs && !self.running.iter().any(|run| run.is_filler) {
            self.tail = self.tail.min(now);
        }
    }

    /// Returns the number of filler kernels in flight.
    pub(super) fn fillers_in_flight(&self) -> usize {
        self.running.iter().filter(|run| run.is_filler).count()
    }
}
