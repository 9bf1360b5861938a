//! What the queue is told.

use tessera_model::spec::{Class, Priority};

use crate::ids::{KernelId, KernelIndex, SessionId, TaskKey};
use crate::measure::Sample;

/// A process that connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Its number, never used before.
    pub session: SessionId,
    /// Whose profile it uses.
    pub task: TaskKey,
    /// Its queue: taken from the attempt's record, never from the process.
    pub priority: Priority,
    /// Whether it is bound by latency or by throughput.
    pub class: Class,
    /// Its MPS share: thousandths of the slice's SMs, 1,000 without a limit.
    pub share_thousandths: u32,
}

/// One thing that happened. Events of one session come in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process connects.
    Join(Join),
    /// It disconnects, or is known to have died.
    Leave {
        /// Which.
        session: SessionId,
    },
    /// It will launch this kernel: answered by [`crate::Action::Defined`].
    Define {
        /// Who.
        session: SessionId,
        /// What; boxed, because every other event is small.
        kernel: Box<KernelId>,
    },
    /// A session launches without a grant: because it holds, or because it waited for too long.
    Launch {
        /// Who.
        session: SessionId,
        /// The session's number of this launch.
        launch: u64,
        /// What.
        kernel: KernelIndex,
        /// [`crate::Gate::launches`] after the session added this one; zero without a page.
        count: u64,
    },
    /// A thread of a session is blocked until its launch is granted. Saying it again changes
    /// nothing.
    Want {
        /// Who.
        session: SessionId,
        /// The session's number of this launch.
        launch: u64,
        /// What.
        kernel: KernelIndex,
        /// The grant that does not cover this kernel, if it holds one: it ends.
        beyond: Option<u64>,
    },
    /// A session launched under a grant.
    Started {
        /// Who.
        session: SessionId,
        /// The session's number of this launch.
        launch: u64,
        /// What.
        kernel: KernelIndex,
        /// The grant's number.
        grant: u64,
    },
    /// The session's oldest kernel in flight ended.
    Done {
        /// Whose.
        session: SessionId,
    },
    /// A synchronising call of the session returned: it has nothing in flight, and if it holds
    /// the device, a gap has surely begun.
    Sync {
        /// Whose.
        session: SessionId,
        /// The grant that it gives back, if that one [`crate::Grant::yields`].
        returns: Option<u64>,
    },
    /// A kernel was measured.
    Sample {
        /// Whose.
        session: SessionId,
        /// What it did.
        sample: Sample,
    },
    /// The session is there and has nothing to say.
    Alive {
        /// Which.
        session: SessionId,
    },
    /// The moment of [`crate::Queue::deadline`] has come.
    Tick,
}

impl Event {
    /// Returns who it is about.
    pub const fn session(&self) -> Option<SessionId> {
        match self {
            Self::Join(join) => Some(join.session),
            Self::Leave { session }
            | Self::Define { session, .. }
            | Self::Launch { session, .. }
            | Self::Want { session, .. }
            | Self::Started { session, .. }
            | Self::Done { session }
            | Self::Sync { session, .. }
            | Self::Sample { session, .. }
            | Self::Alive { session } => Some(*session),
            Self::Tick => None,
        }
    }
}
