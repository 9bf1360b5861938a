//! The state of one session in the queue.

use tessera_model::AttemptId;
use tessera_model::spec::{Class, Priority};

use crate::action::Role;
use crate::admission::ResourceNeed;
use crate::counters::QueueCounters;
use crate::course::LaunchCourse;
use crate::event::Join;
use crate::ids::{KernelIndex, SessionId};
use crate::lease::GrantLease;
use crate::measure::SampleRecorder;
use crate::predict::GapCorrection;
use crate::time::Nanos;
use crate::waiting::LaunchRequest;

use super::delays::AgeingPrice;

/// The launch and the resources of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseBasis {
    /// The launch that waits for it, until it is reported.
    pub request: Option<LaunchRequest>,
    /// The resources that are reserved on the device for its one kernel.
    pub reserved: Option<ResourceNeed>,
    /// The price that the budgets of ageing paid.
    pub paid: AgeingPrice,
}

/// Whether predicted ends of a holder's kernels were right recently, and how long fillers wait after them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndTrust {
    /// How many more predictions must be right before they are used again.
    to_prove: u8,
    /// How long after the predicted end of long work the first filler may launch.
    delay: Nanos,
}

/// How many predicted ends must be right after a wrong one.
const ENDS_TO_PROVE: u8 = 16;
/// A predicted end is wrong if the end is observed later than this plus an eighth of the predicted
/// time. On a busy machine a thread may be woken that late.
const LATE_MAX: Nanos = Nanos::from_micros(500);
/// Work that takes longer than this may be interrupted: time slices have about 2 ms, and one may be half over.
const SLICE_MIN: Nanos = Nanos::from_millis(1);
/// The longest delay of fillers after such work.
const DELAY_MAX: Nanos = Nanos::from_micros(200);
/// How much longer the delay becomes when the end was wrong and a filler had launched.
const DELAY_STEP: Nanos = Nanos::from_micros(50);
/// How much shorter it becomes when the end was right. So about one in 200 such fills is too early at most.
const DELAY_DECAY: Nanos = Nanos::new(250);

impl EndTrust {
    /// Returns whether predicted ends are used.
    pub const fn are_trusted(self) -> bool {
        self.to_prove == 0
    }

    /// Learns from an end that was observed `late` after its prediction; the kernels were predicted
    /// to take `took`. `filled`: whether a filler launched after the predicted end.
    ///
    /// If it launched before the real end, its kernel may have taken the next time slice. Then the holder's work was
    /// interrupted, so fillers wait for a little longer from now on.
    pub fn learn(&mut self, took: Nanos, late: Nanos, filled: bool) {
        let is_wrong = late > LATE_MAX.plus(Nanos::new(took.get() / 8));
        self.to_prove = if is_wrong { ENDS_TO_PROVE } else { self.to_prove.saturating_sub(1) };
        if filled && took > SLICE_MIN {
            self.delay = match is_wrong {
                true => self.delay.plus(DELAY_STEP).min(DELAY_MAX),
                false => self.delay.minus(DELAY_DECAY),
            };
        }
    }

    /// Returns how long after the predicted end of work that takes this long the first filler may launch.
    pub fn entry_delay(self, took: Nanos) -> Nanos {
        if took > SLICE_MIN { self.delay } else { Nanos::ZERO }
    }
}

/// A gap of a holder, from its predicted or known beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenGap {
    /// The kernel before the last.
    pub before: Option<KernelIndex>,
    /// The kernel that it follows.
    pub kernel: KernelIndex,
    /// When the device became idle, or is predicted to.
    pub from: Nanos,
    /// From when fillers may launch in it: later after long work ([`EndTrust::entry_delay`]).
    pub surely_from: Nanos,
    /// Whether a synchronising call returned: the device is idle since `from`.
    pub idle: bool,
    /// Whether all kernels since the device was last idle are measured, so that `from` is known.
    pub known: bool,
    /// The predicted time of these kernels.
    pub took: Nanos,
    /// The first prediction of its earliest end; `None` if it is too short to be filled.
    pub predicted_end: Option<Nanos>,
    /// Whether another session launched in it.
    pub filled: bool,
    /// When the holder was last ordered to bring the device back.
    pub recall_at: Option<Nanos>,
    /// Since when it brings the device back, if no other session launched since.
    pub recalled: Option<Nanos>,
}

/// One process that is connected.
#[derive(Clone, Debug)]
pub(super) struct QueueSession {
    pub id: SessionId,
    pub task: usize,
    pub priority: Priority,
    pub class: Class,
    pub share_thousandths: u32,
    /// Its attempt, if that never runs next to others.
    pub exclusive: Option<AttemptId>,
    /// On how many streams it has launched.
    pub streams: u32,
    pub role: Role,
    /// Whether its role was sent to it.
    pub is_role_sent: bool,
    pub alive_until: Nanos,
    /// Whether its process shows its launches on the gate page and waits there ([`crate::KernelQueue::note_gate_reader`]).
    pub reads_gate: bool,
    pub last: Option<KernelIndex>,
    /// When it launched that, and the gate's launches then.
    pub launched: (Nanos, u64),
    /// The order of its launches, if it was a holder.
    pub course: Option<LaunchCourse>,
    /// The current gap of a holder that has launched.
    pub gap: Option<OpenGap>,
    /// Whether its predicted ends count.
    pub ends: EndTrust,
    /// The device time that it had, if sessions of its priority alternate.
    pub device_time: Nanos,
    /// The time until which samples of its gaps are not used, because a filler ran in one.
    pub filled_until: Nanos,
    /// When it was last active.
    pub active_at: Nanos,
    /// The last sample since its last launch.
    pub sampled: Option<(KernelIndex, Nanos)>,
    /// When the end of one of its kernels was last observed.
    pub ended_at: Nanos,
    pub lease: Option<GrantLease>,
    pub basis: LeaseBasis,
    /// Since when it waits, for its counters.
    pub waits_since: Option<Nanos>,
    pub correction: GapCorrection,
    pub recorder: SampleRecorder,
    pub counters: QueueCounters,
}

/// Who has the slice to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceOwner {
    /// One process, by the rules of the slice.
    Session(SessionId),
    /// All processes of an attempt that requested it.
    Attempt(AttemptId),
}

impl SliceOwner {
    /// Returns whether a session has the slice.
    pub fn is(self, session: &QueueSession) -> bool {
        match self {
            Self::Session(owner) => owner == session.id,
            Self::Attempt(owner) => session.exclusive == Some(owner),
        }
    }
}

impl QueueSession {
    pub fn new(join: &Join, task: usize, now: Nanos, alive_until: Nanos) -> Self {
        Self {
            id: join.session,
            task,
            priority: join.priority,
            class: join.class,
            share_thousandths: join.share_thousandths,
            exclusive: join.exclusive,
            streams: 1,
            role: Role::Fill,
            is_role_sent: false,
            alive_until,
            reads_gate: false,
            last: None,
            launched: (Nanos::ZERO, 0),
            course: None,
            gap: None,
            ends: EndTrust::default(),
            device_time: Nanos::ZERO,
            filled_until: Nanos::ZERO,
            active_at: now,
            sampled: None,
            ended_at: Nanos::ZERO,
            lease: None,
            basis: LeaseBasis::default(),
            waits_since: None,
            correction: GapCorrection::default(),
            recorder: SampleRecorder::default(),
            counters: QueueCounters::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Nanos = Nanos::from_millis(6);
    const TOO_LATE: Nanos = Nanos::from_millis(2);

    #[test]
    fn fillers_wait_longer_after_long_work_that_one_of_them_interrupted_and_less_while_none_does() {
        let mut ends = EndTrust::default();
        ends.learn(WORK, TOO_LATE, true);
        assert_eq!(ends.entry_delay(WORK), DELAY_STEP);
        assert_eq!(ends.entry_delay(SLICE_MIN), Nanos::ZERO, "short work is not interrupted");
        (0..10).for_each(|_| ends.learn(WORK, TOO_LATE, true));
        assert_eq!(ends.entry_delay(WORK), DELAY_MAX);

        (0..400).for_each(|_| ends.learn(WORK, Nanos::ZERO, true));
        assert_eq!(ends.entry_delay(WORK), DELAY_MAX.minus(DELAY_DECAY.times(400)));
        assert!(ends.are_trusted());
    }

    #[test]
    fn ends_of_gaps_without_fills_change_no_delay() {
        let mut ends = EndTrust::default();
        ends.learn(WORK, TOO_LATE, false);
        assert_eq!(ends.entry_delay(WORK), Nanos::ZERO);
        assert!(!ends.are_trusted());
    }
}
