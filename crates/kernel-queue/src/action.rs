//! What the queue has its caller do.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, KernelIndex, SessionId};
use crate::lease::Grant;

/// How a session may launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Freely, with events around every kernel: it is being measured, and nobody fills its gaps.
    Measure,
    /// Freely, and nobody needs to know: there is no rival.
    Free,
    /// Freely, and each launch is told: others fill its gaps.
    Hold,
    /// Only under grants.
    Ask,
}

impl Role {
    /// Tells whether the session launches without asking.
    pub const fn holds(self) -> bool {
        match self {
            Self::Measure | Self::Free | Self::Hold => true,
            Self::Ask => false,
        }
    }
}

/// Why an event led to nothing. The client then runs as if there were no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The session never joined, or its lease ran out: join again under a new number.
    #[error("no such session: it never joined, or was silent for too long; join anew")]
    UnknownSession,
    /// A session of this number is there: numbers are used once.
    #[error("a session of this number is there already: take a new number")]
    SessionTwice,
    /// As many sessions as there may be are there.
    #[error("the slice has as many sessions as it may have: run without the queue")]
    SessionsFull,
    /// As many launches of its priority wait as may.
    #[error("too many launches wait at this priority: launch this one unasked")]
    QueueFull,
    /// The task has more kernels than are kept: launch it under an index of its own choice
    /// beyond the limit; nothing will be known of it.
    #[error("the task has more different kernels than are kept: this one stays unknown")]
    KernelsFull,
}

/// One thing to do, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the session how it may launch from now on. Launches that wait go if it holds.
    Role {
        /// Whom.
        session: SessionId,
        /// How.
        role: Role,
    },
    /// Write this to the gate: every grant of a gap before it is over.
    Gate {
        /// Its new epoch.
        epoch: Epoch,
    },
    /// Send a grant.
    Grant {
        /// To whom.
        session: SessionId,
        /// What.
        grant: Grant,
    },
    /// Tell the session that its grant is over. It may be late: the gate and the grant's end
    /// work without it.
    Revoke {
        /// Whom.
        session: SessionId,
        /// Which grant.
        grant: u64,
    },
    /// Tell the session what to call the kernel that it defined.
    Defined {
        /// Whom.
        session: SessionId,
        /// The kernel's index.
        kernel: KernelIndex,
    },
    /// The session's task is measured: keep its profile.
    Measured {
        /// One of the task's sessions.
        session: SessionId,
    },
    /// A kernel is not what it was: it is being measured again.
    Remeasure {
        /// One of the task's sessions.
        session: SessionId,
        /// Which kernel.
        kernel: KernelIndex,
    },
    /// The session was silent for too long: close its connection.
    Dropped {
        /// Which.
        session: SessionId,
    },
    /// Tell the session that its event led to nothing, and why.
    Refuse {
        /// Whom.
        session: SessionId,
        /// Why.
        why: Refusal,
    },
}
