//! The events that the queue handles.

use tessera_model::AttemptId;
use tessera_model::spec::{Class, Priority};

use crate::admission::ResourceNeed;
use crate::ids::{KernelId, KernelIndex, SessionId, TaskKey};
use crate::measure::KernelSample;

/// A process that connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Its session number, never used before.
    pub session: SessionId,
    /// The task whose profile it uses.
    pub task: TaskKey,
    /// Its priority, from the attempt's record and never from the process.
    pub priority: Priority,
    /// Whether it needs low latency or high throughput.
    pub class: Class,
    /// Its MPS share in thousandths of the slice's SMs: 1,000 without a limit.
    pub share_thousandths: u32,
    /// Its attempt, if that never runs next to others. All sessions of the attempt have the slice together.
    pub exclusive: Option<AttemptId>,
}

/// One event. Events of one session arrive in the order in which they happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// A process connects.
    Join(Join),
    /// A process disconnects or died.
    Leave {
        /// The session that ends.
        session: SessionId,
    },
    /// A session defines a kernel before its first launch. The answer is
    /// [`crate::QueueAction::Defined`].
    Define {
        /// The session that will use the number.
        session: SessionId,
        /// The kernel: boxed, because every other event is small.
        kernel: Box<KernelId>,
    },
    /// A session reports what a kernel needs. The largest reported need counts.
    Need {
        /// The session that measured it.
        session: SessionId,
        /// The number of the kernel in that session.
        kernel: KernelIndex,
        /// What it needs of the session's part of the slice ([`crate::need`]).
        need: ResourceNeed,
    },
    /// A session reports on how many streams it has launched so far. With several, its kernels may
    /// run at the same time.
    Streams {
        /// The session whose streams these are.
        session: SessionId,
        /// The number of streams.
        streams: u32,
    },
    /// A session launches without a grant: it is a holder, or the launch can't wait.
    Launch {
        /// The session that launched.
        session: SessionId,
        /// The session's number for this launch.
        launch: u64,
        /// The kernel that is launched.
        kernel: KernelIndex,
        /// [`crate::GateState::launches`] after the session added this one; zero without a page.
        count: u64,
    },
    /// A thread of a session waits until its launch is granted. Repeating the event changes
    /// nothing.
    Request {
        /// The session that waits.
        session: SessionId,
        /// The session's number for this launch.
        launch: u64,
        /// The kernel that is launched.
        kernel: KernelIndex,
        /// The current grant, if it does not cover this kernel: it ends.
        beyond: Option<u64>,
    },
    /// A session launches under a grant.
    Started {
        /// The session whose kernel was launched.
        session: SessionId,
        /// The session's number for this launch.
        launch: u64,
        /// The kernel that is launched.
        kernel: KernelIndex,
        /// The grant's number.
        grant: u64,
    },
    /// The session's oldest kernel in flight ended.
    Done {
        /// The session whose kernel ended.
        session: SessionId,
    },
    /// A synchronising call of the session returned: it has nothing in flight. If it is a holder,
    /// a gap has begun.
    Sync {
        /// The session that waits for its device.
        session: SessionId,
        /// The grant that it returns early, if that grant [`yields`](crate::Grant::yields).
        returns: Option<u64>,
    },
    /// A holder has brought the device back to its context, or is about to: the answer to
    /// [`crate::QueueAction::Recall`].
    Recalled {
        /// The holder.
        session: SessionId,
    },
    /// A kernel was measured.
    Sample {
        /// The session that measured a kernel.
        session: SessionId,
        /// The measurement.
        sample: KernelSample,
    },
    /// The session is alive and has nothing else to report.
    Alive {
        /// The session that gave a sign of life.
        session: SessionId,
    },
    /// The time of [`crate::KernelQueue::deadline`] has come.
    Tick,
}

impl QueueEvent {
    /// Returns the session that the event concerns.
    pub const fn session(&self) -> Option<SessionId> {
        match self {
            Self::Join(join) => Some(join.session),
            Self::Leave { session }
            | Self::Define { session, .. }
            | Self::Need { session, .. }
            | Self::Streams { session, .. }
            | Self::Launch { session, .. }
            | Self::Request { session, .. }
            | Self::Started { session, .. }
            | Self::Done { session }
            | Self::Sync { session, .. }
            | Self::Recalled { session }
            | Self::Sample { session, .. }
            | Self::Alive { session } => Some(*session),
            Self::Tick => None,
        }
    }
}
