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

/// Whether predicted ends of a holder's kernels were right recently.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndTrust {
    /// How many more predictions must be right before they are used again.
    to_prove: u8,
}

/// How many predicted ends must be right after a wrong one.
const ENDS_TO_PROVE: u8 = 16;
/// A predicted end is wrong if the end is observed later than this plus an eighth of the predicted
/// time. On a busy machine a thread may be woken that late.
const LATE_MAX: Nanos = Nanos::from_micros(500);

impl EndTrust {
    /// Returns whether predicted ends are used.
    pub const fn are_trusted(self) -> bool {
        self.to_prove == 0
    }

    /// Learns from an end that was observed `late` after its prediction; the kernels were predicted
    /// to take `took`.
    pub fn learn(&mut self, took: Nanos, late: Nanos) {
        self.to_prove = if late > LATE_MAX.plus(Nanos::new(took.get() / 8)) {
            ENDS_TO_PROVE
        } else {
            self.to_prove.saturating_sub(1)
        };
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
