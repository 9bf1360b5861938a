//! Filling the holder's gaps: FIKIT's Algorithms 1 and 2, step by step.
//!
//! The paper launches everything that fits at once. Here at most [`crate::Rules::in_flight`]
//! kernels of fillers are in the device's queue, so that early stop leaves the holder to wait for
//! no more than those; the next is chosen as one ends, by what is left of the gap.

use super::Queue;
use super::grants::Terms;
use super::launches::Running;
use super::session::{OpenGap, Session};
use crate::action::Role;
use crate::lease::{Kind, Lease};
use crate::predict::{Gap, Outlook};
use crate::rules::{GrantSize, Sharing};
use crate::time::Nanos;
use crate::waiting::Request;

/// The time in which the device is predicted to be idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    end: Nanos,
    kind: Kind,
}

impl Queue {
    /// Gives what fits into the gap, if there is one.
    pub(super) fn give_gap(&mut self) {
        if self.rules.sharing == Sharing::Exclusive || self.waiting.is_empty() {
            return;
        }
        let Some(window) = self.window() else { return };
        while let Some((request, from, end)) = self.choose(window) {
            let cost = request.predicted.unwrap_or(Nanos::ZERO);
            // A grant lasts no longer than it takes to notice that its session died, but for a
            // kernel that is longer.
            let until = end.min(from.plus(self.rules.grant_max.max(cost)));
            let (budget, launches) = match self.rules.grants {
                GrantSize::Kernel => (cost, 1),
                GrantSize::Gap => (until.minus(from), u16::MAX),
            };
            let kind = window.kind;
            self.grant(request, Terms { kind, from, until, budget, launches, reserved: None });
        }
    }

    /// Takes the launch out of the queue that goes next in the window, if one may.
    fn choose(&mut self, window: Window) -> Option<(Request, Nanos, Nanos)> {
        if !self.may_give_gap() {
            return None;
        }
        let from = self.now.max(self.tail).plus(self.promised());
        let Self { waiting, sessions, .. } = self;
        let may_go = |request: &Request| is_leaseless(sessions, request);
        let request = match window.kind {
            Kind::Lapse => waiting.first(may_go),
            Kind::Gap | Kind::Aged | Kind::Beside => {
                waiting.best_fit_of(window.end.minus(from), may_go)
            }
        };
        if request.is_none() {
            self.look_again();
        }
        request.map(|request| (request, from, window.end))
    }

    /// Tells whether one more grant may stand. One that covers a gap stands alone.
    fn may_give_gap(&self) -> bool {
        match self.rules.grants {
            GrantSize::Kernel => self.has_room(),
            GrantSize::Gap => self.turns().next().is_none() && self.has_room(),
        }
    }

    /// The grants that stand and take turns on the device.
    fn turns(&self) -> impl Iterator<Item = &Lease> {
        let leases = self.sessions.iter().filter_map(|session| session.lease.as_ref());
        leases.filter(|lease| lease.grant.kind != Kind::Beside)
    }

    /// Tells whether one more kernel of a filler may be in the device's queue.
    pub(super) fn has_room(&self) -> bool {
        self.taken() < usize::from(self.rules.in_flight)
    }

    /// Returns how many kernels of fillers are in flight, and may come to be by what was granted:
    /// whoever holds a grant launches without asking until its window is full.
    pub(super) fn taken(&self) -> usize {
        let to_come = self.turns().map(|lease| {
            let own = |run: &&Running| run.is_filler && run.session == lease.session;
            let own = self.running.iter().filter(own).count();
            let window = usize::from(lease.grant.in_flight);
            usize::from(lease.grant.launches).min(window.saturating_sub(own))
        });
        self.fillers_in_flight() + to_come.sum::<usize>()
    }

    /// Returns the time in which all holders are predicted to leave the device idle.
    fn window(&mut self) -> Option<Window> {
        let mut window = Window { end: Nanos::MAX, kind: Kind::Lapse };
        for at in 0..self.sessions.len() {
            if !self.sessions[at].role.holds() {
                continue;
            }
            let Some((end, kind)) = self.window_of(&self.sessions[at]) else {
                self.look_again();
                return None;
            };
            window.end = window.end.min(end);
            if kind == Kind::Gap {
                window.kind = Kind::Gap;
            }
        }
        Some(window)
    }

    /// Returns when one holder's gap ends, at the earliest, if it is worth filling.
    fn window_of(&self, session: &Session) -> Option<(Nanos, Kind)> {
        let from = session.gap.map_or(session.active_at, |gap| gap.from);
        let elapsed = self.now.minus(from);
        let lapsed = self.now >= from && elapsed >= self.rules.lapse;
        let outlook = match session.gap {
            Some(gap) if session.role != Role::Measure => self.outlook(session, &gap, elapsed),
            _ => Outlook::Unknown,
        };
        match outlook {
            Outlook::Idle(more) => {
                let end = self.now.max(from).plus(more);
                (end.minus(from) > self.rules.epsilon).then_some((end, Kind::Gap))
            }
            Outlook::Beyond | Outlook::Unknown if lapsed => Some((Nanos::MAX, Kind::Lapse)),
            Outlook::Beyond => {
                let probe = elapsed.thousandths(self.rules.probe_thousandths);
                (probe > Nanos::ZERO).then(|| (self.now.plus(probe), Kind::Gap))
            }
            Outlook::Unknown => None,
        }
    }

    fn outlook(&self, session: &Session, gap: &OpenGap, elapsed: Nanos) -> Outlook {
        let profile = &self.tasks[session.task].profile;
        let gap = Gap { before: gap.before, kernel: gap.kernel, elapsed };
        self.rules.predictor.outlook(profile, session.correction, gap)
    }

    /// Returns when a gap that begins is predicted to end, if it is worth filling.
    pub(super) fn told_end(&self, at: usize, gap: &OpenGap) -> Option<Nanos> {
        match self.outlook(&self.sessions[at], gap, Nanos::ZERO) {
            Outlook::Idle(length) if length > self.rules.epsilon => Some(gap.from.plus(length)),
            Outlook::Idle(_) | Outlook::Unknown | Outlook::Beyond => None,
        }
    }

    /// Has the gap looked at again later: what is known of it changes as it lasts.
    ///
    /// An eighth of its age later, so that a long silence costs few looks.
    fn look_again(&mut self) {
        if self.rules.lapse == Nanos::MAX && self.rules.probe_thousandths == 0 {
            return;
        }
        let holders = self.sessions.iter().filter(|session| session.role.holds());
        let from = holders.map(|s| s.gap.map_or(s.active_at, |gap| gap.from)).max();
        let Some(from) = from else { return };
        let pause = Nanos::new(self.now.minus(from).get() / 8).max(self.rules.epsilon);
        self.next_look = self.next_look.min(self.now.max(from).plus(pause));
    }
}

/// Tells whether the session of a launch holds no grant: each may hold one.
fn is_leaseless(sessions: &[Session], request: &Request) -> bool {
    let session = sessions.iter().find(|session| session.id == request.session);
    session.is_some_and(|session| session.lease.is_none())
}
