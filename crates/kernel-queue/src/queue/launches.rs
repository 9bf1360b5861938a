//! What sessions launch, and when it ends.

use super::Queue;
use super::session::{Hunger, OpenGap};
use crate::action::{Action, Refusal};
use crate::admission::Need;
use crate::ids::{KernelIndex, SessionId};
use crate::limits::RUNNING_MAX;
use crate::predict::GapPredictor;
use crate::rules::Sharing;
use crate::time::Nanos;
use crate::waiting::Request;

/// A kernel in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub session: SessionId,
    /// When a holder first launched while it was in flight.
    pub met: Option<Nanos>,
    /// If its end is not reported by then, it is taken to have ended.
    pub overdue: Nanos,
    /// What it takes of the device.
    pub need: Need,
    /// Whether it was launched by a session that asks.
    pub is_filler: bool,
}

impl Queue {
    /// A session launched without asking.
    pub(super) fn launched(&mut self, at: usize, kernel: KernelIndex, (launch, count): (u64, u64)) {
        self.gate.launches = self.gate.launches.max(count);
        if !self.sessions[at].role.holds() {
            // Its role crossed this launch on the way, or it lost patience.
            self.started(at, kernel, (launch, None));
            return;
        }
        self.end_gap(at);
        if self.rules.early_stop {
            self.end_gap_leases();
        }
        for run in self.running.iter_mut().filter(|run| run.is_filler) {
            run.met.get_or_insert(self.now);
        }
        let took = self.tasks[self.sessions[at].task].profile.took(kernel);
        self.tail = self.tail.max(self.now).plus(took.unwrap_or(Nanos::ZERO));
        self.served = self.served.plus(took.unwrap_or(Nanos::ZERO));
        let from = self.tail;
        let session = &mut self.sessions[at];
        let before = session.last.replace(kernel);
        session.active_at = self.now;
        session.gap = Some(OpenGap { before, kernel, from, told: None, filled: false });
        session.counters.launches += 1;
        self.counters.launches += 1;
        if let Sharing::Beside { .. } = self.rules.sharing {
            self.run(at, kernel, took, false);
        }
        self.tell_gap(at);
    }

    /// Notes how long the holder's gap is predicted to be as it begins.
    fn tell_gap(&mut self, at: usize) {
        let Some(gap) = self.sessions[at].gap else { return };
        let told = self.told_end(at, &gap);
        if let Some(gap) = &mut self.sessions[at].gap {
            gap.told = told;
        }
    }

    /// Learns from a gap that ends now.
    fn end_gap(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let Some(gap) = session.gap.take() else { return };
        let profile = &mut self.tasks[session.task].profile;
        let lasted = self.now.minus(gap.from);
        if profile.is_measured() {
            profile.pairs.add(gap.before, gap.kernel, lasted);
        }
        let Some(told) = gap.told else { return };
        let early = self.now < told;
        if let GapPredictor::Pairs { risk_thousandths } = self.rules.predictor {
            session.correction.learn(early, risk_thousandths);
        }
        let granted = self
            .sessions
            .iter()
            .any(|other| other.lease.is_some_and(|lease| lease.grant.kind.ends_with_the_gap()));
        for counters in [&mut self.counters, &mut self.sessions[at].counters] {
            counters.gaps_seen += 1;
            counters.gaps_filled += u64::from(gap.filled);
            counters.early_stops += u64::from(early && granted);
        }
    }

    /// A thread of a session waits for a grant.
    pub(super) fn want(
        &mut self,
        at: usize,
        kernel: KernelIndex,
        (launch, beyond): (u64, Option<u64>),
    ) -> Result<(), Refusal> {
        let session = &self.sessions[at];
        let (id, priority, role) = (session.id, session.priority, session.role);
        if role.holds() {
            // It asked before it learned that it need not: telling again lets it go.
            self.actions.push(Action::Role { session: id, role });
            return Ok(());
        }
        if beyond.is_some() && session.lease.map(|lease| lease.grant.number) == beyond {
            self.end_lease(at, false);
        }
        let given = self.sessions[at].given.request;
        let is_it = |request: &Request| request.session == id && request.launch == launch;
        let predicted = self.tasks[self.sessions[at].task].profile.took(kernel);
        if given.as_ref().is_some_and(is_it)
            || self.waiting.rename(priority, (id, launch), kernel, predicted)
        {
            return Ok(());
        }
        self.waiting
            .push(priority, (id, launch), kernel, predicted)
            .map_err(|_| Refusal::QueueFull)?;
        let hunger = Hunger { at: self.now, served: self.served };
        self.sessions[at].hunger.get_or_insert(hunger);
        Ok(())
    }

    /// A session launched under a grant, or without one although it should have had one.
    pub(super) fn started(
        &mut self,
        at: usize,
        kernel: KernelIndex,
        (launch, grant): (u64, Option<u64>),
    ) {
        if self.sessions[at].role.holds() {
            self.launched(at, kernel, (launch, 0));
            return;
        }
        let took = self.tasks[self.sessions[at].task].profile.took(kernel);
        let cost = took.unwrap_or(Nanos::ZERO);
        let late = !self.spend(at, grant, launch, cost);
        self.feed(at);
        self.tail = self.tail.max(self.now).plus(cost);
        self.run(at, kernel, took, true);
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

    /// Notes a kernel in flight.
    fn run(&mut self, at: usize, kernel: KernelIndex, took: Option<Nanos>, is_filler: bool) {
        if self.running.len() == RUNNING_MAX {
            // The device itself runs no more at once: the oldest must have ended.
            self.ended(0);
        }
        let session = &mut self.sessions[at];
        let profile = &self.tasks[session.task].profile;
        let need = match (self.rules.sharing, session.given.reserved.take()) {
            (Sharing::Exclusive | Sharing::Turns, _) => Need::default(),
            (Sharing::Beside { .. }, Some(reserved)) => reserved,
            (Sharing::Beside { .. }, None) => {
                self.occupancy.take(profile.kernel(kernel).and_then(|kernel| kernel.need))
            }
        };
        // As long again as predicted, and a grant's time on top: then a report was lost.
        let expected = self.tail.max(self.now.plus(took.unwrap_or(Nanos::ZERO)));
        let overdue = expected.plus(took.unwrap_or(Nanos::ZERO)).plus(self.rules.grant_max);
        self.next_expiry = self.next_expiry.min(overdue);
        let session = session.id;
        self.running.push(Running { session, met: None, overdue, need, is_filler });
    }

    /// A session's oldest kernel ended.
    pub(super) fn done(&mut self, at: usize) {
        let session = self.sessions[at].id;
        self.sessions[at].active_at = self.now;
        if let Some(index) = self.running.iter().position(|run| run.session == session) {
            self.note_overshoot(at, index);
            self.ended(index);
        }
        self.settle_tail();
    }

    /// Nothing of a session is in flight any more.
    pub(super) fn synced(&mut self, at: usize, returns: Option<u64>) {
        let session = self.sessions[at].id;
        self.sessions[at].active_at = self.now;
        while let Some(index) = self.running.iter().position(|run| run.session == session) {
            self.note_overshoot(at, index);
            self.ended(index);
        }
        if let Some(gap) = &mut self.sessions[at].gap {
            gap.from = self.now;
            self.tell_gap(at);
        }
        let lease = self.sessions[at].lease;
        if lease.is_some_and(|lease| Some(lease.grant.number) == returns) {
            self.end_lease(at, false);
        }
        self.settle_tail();
    }

    /// Counts a filler's kernel that went on after the holder's return.
    fn note_overshoot(&mut self, at: usize, index: usize) {
        let run = self.running[index];
        if let Some(met) = run.met {
            let over = self.now.minus(met);
            self.counters.note_overshoot(over);
            self.sessions[at].counters.note_overshoot(over);
        }
    }

    /// Takes a kernel out of flight.
    pub(super) fn ended(&mut self, index: usize) {
        let run = self.running.remove(index);
        self.occupancy.give_back(run.need);
    }

    /// Takes back a predicted end that lies ahead although nothing runs.
    fn settle_tail(&mut self) {
        let now = self.now;
        let holder_runs =
            self.sessions.iter().any(|session| session.gap.is_some_and(|gap| gap.from > now));
        if !holder_runs && !self.running.iter().any(|run| run.is_filler) {
            self.tail = self.tail.min(now);
        }
    }

    /// Returns how many kernels of fillers are in flight.
    pub(super) fn fillers_in_flight(&self) -> usize {
        self.running.iter().filter(|run| run.is_filler).count()
    }
}
