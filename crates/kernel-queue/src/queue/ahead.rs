//! Grants that are given before a gap begins.
//!
//! Before the first kernel of a filler runs in a gap, four threads would have to be woken: the holder's
//! session, the queue, the filler's session, and the filler. On a machine whose wake-ups take 50 µs that is as long
//! as many gaps. But most programs launch the same kernels again and again ([`crate::course`]). So the queue grants the next
//! gap that is long enough while the holder still works. The grant states the launch after which the gap begins, and the
//! filler observes that launch on the gate page.
//!
//! The grant is void if that launch is of another kernel, if another one follows it, or if the gate's epoch rises. None of
//! this needs a message. So a wrong expectation costs no more than a wake-up, and the fill itself costs what any fill does.

use super::KernelQueue;
use super::delays::AgeingPrice;
use super::gaps::{IdleWindow, may_get_grant};
use super::grants::GrantTerms;
use super::reports::CoursePosition;
use super::session::QueueSession;
use crate::action::Role;
use crate::course::CourseStep;
use crate::ids::KernelIndex;
use crate::lease::{GapOpening, GrantKind, GrantLease, LastLaunch};
use crate::predict::{CurrentGap, GapPrediction};
use crate::rules::{GrantSize, KernelSharing};
use crate::time::Nanos;

/// How far ahead a gap is looked for. Until it begins, the session gets no other grant of a gap.
const HORIZON: Nanos = Nanos::from_millis(20);
/// How much later than expected the gap may begin.
pub(super) const LATE_MAX: Nanos = Nanos::from_millis(5);
/// How much longer than expected the device may be busy.
const BACKLOG_MAX: Nanos = Nanos::from_micros(100);
/// How long before the gap a thread that waits for it is woken, at least. It then looks at the gate without sleeping.
const WAKE_LEAD: Nanos = Nanos::from_micros(100);

/// A gap that is expected, and long enough to be filled.
#[derive(Clone, Copy, Debug)]
struct ExpectedGap {
    /// The gate's launches after the launch that it follows.
    launches: u64,
    /// What is launched then.
    kernel: KernelIndex,
    /// For how long the device is busy after that launch.
    busy: Nanos,
    /// When it begins.
    begin: Nanos,
    /// How long it lasts.
    length: Nanos,
    /// The gate's launches from which it is near.
    wake: u64,
}

impl KernelQueue {
    /// Adds a launch of a holder to its course. `idle_from` is when the device will be idle.
    pub(super) fn note_course(
        &mut self,
        at: usize,
        (kernel, count): (KernelIndex, u64),
        idle_from: Nanos,
    ) {
        let session = &mut self.sessions[at];
        let (launched_at, launches) = std::mem::replace(&mut session.launched, (self.at, count));
        let Some(course) = session.course.as_mut().filter(|_| self.rules.ahead && count > 0) else {
            return;
        };
        if count != launches + 1 {
            // Another holder launched in between, or a report was lost.
            course.interrupt();
        }
        let (since, busy) = (self.at.minus(launched_at), idle_from.minus(self.at));
        course.add(CourseStep { kernel, since, busy });
    }

    /// Ends the grants of gaps because a holder launched, unless they wait for this launch or a later one.
    pub(super) fn end_gap_leases_at(&mut self, count: u64) {
        let ends = self.sessions.iter().filter_map(|session| session.lease.as_ref()).any(|lease| {
            let waits = lease.opening.is_some_and(|opening| count > 0 && count <= opening.launches);
            lease.grant.kind.ends_with_gap() && !waits
        });
        if ends {
            self.end_gap_leases();
        }
    }

    /// Ends the grants of gaps that have not begun, unless the session has launched under one already.
    pub(super) fn end_leases_ahead(&mut self) {
        if self.sessions.iter().any(|session| self.has_unused_lease_ahead(session)) {
            self.end_gap_leases();
        }
    }

    /// Returns whether a session has a grant of a gap that has not begun, and has not used it.
    pub(super) fn has_unused_lease_ahead(&self, session: &QueueSession) -> bool {
        let opening = session.lease.and_then(|lease| lease.opening);
        opening.is_some_and(|opening| opening.launches > self.entered_at)
    }

    /// Begins the gap for which a grant was given ahead, if this launch of a holder is the expected one.
    pub(super) fn open_gap_ahead(&mut self, at: usize, kernel: KernelIndex, count: u64) {
        let last = LastLaunch { count, kernel, at: self.at };
        let holder = &self.sessions[at];
        let idle_from = holder.gap.filter(|gap| self.is_idle(holder, gap)).map(|gap| gap.from);
        let switch = self.rules.switch;
        let mut leases = self.sessions.iter_mut().filter_map(|session| session.lease.as_mut());
        let waits = |lease: &GrantLease| lease.opening.is_some_and(|o| o.launches == count);
        let Some(lease) = leases.find(|lease| waits(lease)) else { return };
        let span = lease.opening.and_then(|opening| opening.span(last));
        // With more in the device's queue than usual, the gap begins later than the session assumes.
        let span =
            span.filter(|(from, _)| idle_from.is_some_and(|idle| idle <= from.plus(BACKLOG_MAX)));
        let Some((from, until)) = span else {
            self.end_gap_leases();
            return;
        };
        let until = until.min(lease.grant.until);
        (lease.grant.from, lease.grant.until, lease.opening) = (from, until, None);
        self.next_expiry = self.next_expiry.min(until);
        if self.rules.recall {
            let (begin, end) = (from, until.plus(switch));
            let returns = Some(at);
            self.order_recall(IdleWindow { begin, end, kind: GrantKind::Gap, returns });
        }
    }

    /// Grants the next gap that is long enough, if it can be expected.
    pub(super) fn grant_ahead(&mut self) {
        let is_possible = self.grants_gaps_ahead()
            && self.may_grant_gap()
            // A gap that is used may last longer than predicted, unless the gate page shows that it is over.
            && (!self.is_entered() || self.is_overtaken());
        if !is_possible {
            return;
        }
        let Some(gap) = self.only_holder().and_then(|holder| self.expect_gap(holder)) else {
            return;
        };
        // The holder runs until then, so the device has its context.
        let switch = self.rules.switch;
        let returns = if self.rules.recall { switch } else { Nanos::ZERO };
        let idle = gap.length.minus(returns);
        let Self { waiting, sessions, .. } = self;
        let request = waiting.best_fit_among(idle, |request| {
            let fits = request.predicted.is_some_and(|time| time.plus(switch) < idle);
            let reads = sessions.iter().any(|s| s.id == request.session && s.reads_gate);
            fits && reads && may_get_grant(sessions, request)
        });
        let Some(request) = request else { return };
        let cost = request.predicted.unwrap_or_default();
        let length = idle.min(self.rules.grant_max.max(cost));
        let opening = GapOpening {
            launches: gap.launches,
            kernel: gap.kernel,
            busy: gap.busy,
            length,
            wake: gap.wake,
        };
        let late = LATE_MAX.max(gap.begin.minus(self.now));
        self.grant_launch(
            request,
            GrantTerms {
                kind: GrantKind::Gap,
                from: gap.begin,
                until: gap.begin.plus(length).plus(late),
                budget: length.min(idle.minus(switch)),
                launches: u16::MAX,
                reserved: None,
                opening: Some(opening),
                paid: AgeingPrice::NOTHING,
            },
        );
    }

    /// Returns whether the rules allow grants ahead.
    pub(super) fn grants_gaps_ahead(&self) -> bool {
        self.rules.ahead
            && self.rules.sharing == KernelSharing::Interleaved
            && self.rules.grants == GrantSize::Gap
    }

    /// Returns the holder, if there is one that shows its launches on the gate page and whose predicted ends are right.
    pub(super) fn only_holder(&self) -> Option<usize> {
        let mut holders = (0..self.sessions.len()).filter(|at| self.sessions[*at].role.is_holder());
        let holder = holders.next().filter(|_| holders.next().is_none())?;
        let session = &self.sessions[holder];
        let is_usable =
            session.reads_gate && session.role == Role::Hold && session.ends.are_trusted();
        (is_usable && session.launched.1 == self.gate.launches).then_some(holder)
    }

    /// Returns the next gap of a holder that is long enough to be filled, if its course shows one.
    fn expect_gap(&self, holder: usize) -> Option<ExpectedGap> {
        let session = &self.sessions[holder];
        let course = session.course.as_ref()?;
        let profile = &self.tasks[session.task].profile;
        let needed = self.shortest_gap_to_fill();
        if needed == Nanos::MAX {
            return None;
        }
        let position = self.position_of(holder)?;
        // It does not go on as before, or its present gap can be filled once it has reported it.
        if !self.is_on_time(holder, position) || self.is_in_unreported_gap(holder, position) {
            return None;
        }
        let latest = self.now.plus(HORIZON);
        let launches = session.launched.1;
        // When launches without a report were made follows from the last one.
        let unreported = course.upcoming(0).zip(0..position.unreported);
        let since_report = unreported.fold(Nanos::ZERO, |sum, (step, _)| sum.plus(step.since));
        let mut at = position.at.minus(since_report);
        let mut before = session.last;
        let (mut tail, mut burst) = (self.tail, session.gap.map_or(Nanos::ZERO, |gap| gap.took));
        let mut steps = (launches + 1..).zip(course.upcoming(0)).peekable();
        while let Some((launches, step)) = steps.next() {
            at = at.plus(step.since);
            if launches == position.launches + 1 {
                // If it is late, so is the gap.
                at = at.max(self.now);
            }
            if at > latest {
                return None;
            }
            if tail <= at {
                burst = Nanos::ZERO;
            }
            let took = profile.took(step.kernel);
            burst = burst.plus(took.unwrap_or_default());
            // Without its own time, what it was last time counts.
            tail =
                took.map_or_else(|| tail.max(at.plus(step.busy)), |took| tail.max(at).plus(took));
            let was_idle = steps.peek().map(|(_, next)| next.since.minus(step.busy));
            if launches > position.launches
                && was_idle.is_some_and(|idle| idle > needed)
                && profile.took(step.kernel).is_some()
            {
                let gap = CurrentGap { before, kernel: step.kernel, elapsed: Nanos::ZERO };
                let predicted = self.rules.predictor.predict(profile, session.correction, gap);
                if let GapPrediction::Idle(length) = predicted
                    && length > needed
                {
                    let delay = session.ends.entry_delay(burst);
                    // As late as last time, or later: more may be in the device's queue now, and reports of launches may be late.
                    let begin = tail.max(at.plus(step.busy)).plus(delay);
                    let length = length.minus(delay);
                    let (kernel, busy) = (step.kernel, begin.minus(at));
                    let wake = self.wake_before(holder, position, (begin, launches));
                    return Some(ExpectedGap { launches, kernel, busy, begin, length, wake });
                }
            }
            before = Some(step.kernel);
        }
        None
    }

    /// Returns the last launch before a gap that is far enough before it for a thread to be awake in time.
    fn wake_before(
        &self,
        holder: usize,
        position: CoursePosition,
        (begin, last): (Nanos, u64),
    ) -> u64 {
        let course = self.sessions[holder].course.iter();
        let (mut at, mut wake) = (position.at, position.launches + 1);
        let steps = course.flat_map(|course| course.upcoming(position.unreported));
        for (launches, step) in (position.launches + 1..=last).zip(steps) {
            at = at.plus(step.since);
            if begin.minus(at) < WAKE_LEAD {
                break;
            }
            wake = launches;
        }
        wake.min(last)
    }
}
