//! When a holder's next report is needed, and what the gate page shows before it comes.
//!
//! A holder launches every few microseconds. A thread that reported each launch at once would take the processor from the
//! one that launches, or its cache. But a holder that repeats itself ([`crate::course`]) can be followed without reports:
//! the gate page shows how many launches were made, and which one was the last. If it is the expected one, so were those
//! before it. So the queue names the next launch whose report it needs: the one after which a gap begins that
//! it has granted ahead. All other reports come together, a few milliseconds later.

use super::KernelQueue;
use super::ahead::LATE_MAX;
use super::launches::KernelLoss;
use super::session::QueueSession;
use crate::action::Role;
use crate::lease::LastLaunch;
use crate::time::Nanos;

/// The most launches without a report that are followed on the page, on which a process may write any number. Reports come
/// every few milliseconds.
const UNREPORTED_MAX: u64 = 4_096;

/// When a holder's next report is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportNeed {
    /// As soon as its work ends, and a moment after each launch.
    Prompt,
    /// A moment after each launch and each end of its work.
    Soon,
    /// When this many launches were made on the slice ([`crate::GateState::launches`]), and at regular intervals.
    /// `None`: at these intervals only.
    At(Option<u64>),
}

/// Where a holder is on its course.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CoursePosition {
    /// The gate's launches.
    pub launches: u64,
    /// When the last of them was made.
    pub at: Nanos,
    /// How many of them are not reported yet.
    pub unreported: u64,
}

impl KernelQueue {
    /// Notes what the gate page shows now. Called before [`Self::step`] or [`Self::note`], as often as the caller likes.
    pub fn observe(&mut self, last: LastLaunch) {
        let is_new = last.count > self.seen.count;
        self.seen = last;
        if !is_new || !self.is_overtaken() || last.count <= self.entered_at {
            return;
        }
        // The holder has returned, and its report is on the way.
        let met = last.at.min(self.now);
        for run in &mut self.running {
            if run.is_filler && run.loss != KernelLoss::Colocated && run.begun < last.at {
                run.holder_returned_at.get_or_insert(met.max(run.begun));
            }
        }
    }

    /// Returns whether the gate page shows launches of holders that are not reported yet.
    pub(super) const fn is_overtaken(&self) -> bool {
        self.seen.count > self.gate.launches
    }

    /// Returns when the next report of the holder is needed.
    pub fn report_need(&self) -> ReportNeed {
        let is_idle = self.waiting.is_empty();
        let otherwise = if is_idle { ReportNeed::Soon } else { ReportNeed::Prompt };
        let reads_gate = |s: &QueueSession| s.role != Role::Fill || s.reads_gate;
        let Some(holder) = self.only_holder().filter(|_| self.grants_gaps_ahead()) else {
            return otherwise;
        };
        let position = self.position_of(holder).filter(|at| self.is_on_time(holder, *at));
        let Some(position) = position.filter(|_| self.sessions.iter().all(reads_gate)) else {
            return otherwise;
        };
        if !is_idle && self.is_in_unreported_gap(holder, position) {
            return ReportNeed::Prompt;
        }
        let leases = self.sessions.iter().filter_map(|session| session.lease);
        let openings = leases.filter_map(|lease| lease.opening).map(|opening| opening.launches);
        ReportNeed::At(openings.min())
    }

    /// Returns where a holder is on its course, as far as the gate page shows it. `None` if it has left its course.
    pub(super) fn position_of(&self, holder: usize) -> Option<CoursePosition> {
        let session = &self.sessions[holder];
        let (at, launches) = session.launched;
        let course = session.course.as_ref()?;
        let unreported = self.seen.count.saturating_sub(launches);
        if unreported == 0 {
            return Some(CoursePosition { launches, at, unreported });
        }
        if unreported > UNREPORTED_MAX {
            return None;
        }
        // While a launch is being made, the page shows its kernel, and not yet the count.
        let mut steps = course.upcoming(unreported - 1).take(2);
        steps.any(|step| step.kernel == self.seen.kernel).then_some(CoursePosition {
            launches: self.seen.count,
            at: self.seen.at.min(self.now).max(at),
            unreported,
        })
    }

    /// Returns whether the next launch from a position is known, and not overdue.
    pub(super) fn is_on_time(&self, holder: usize, position: CoursePosition) -> bool {
        let course = self.sessions[holder].course.as_ref();
        let next = course.and_then(|course| course.upcoming(position.unreported).next());
        next.is_some_and(|step| position.at.plus(step.since).plus(LATE_MAX) >= self.now)
    }

    /// Returns whether the holder is in a gap whose begin was not reported, and that can still be filled.
    pub(super) fn is_in_unreported_gap(&self, holder: usize, position: CoursePosition) -> bool {
        let session = &self.sessions[holder];
        let Some(course) = session.course.as_ref().filter(|_| position.unreported > 0) else {
            return false;
        };
        let mut steps = course.upcoming(position.unreported - 1);
        let Some((last, next)) = steps.next().zip(steps.next()) else { return false };
        let left = position.at.plus(next.since).minus(self.now.max(position.at.plus(last.busy)));
        left > self.shortest_gap_to_fill()
    }
}
