//! The actions that the queue returns to its caller.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, KernelIndex, SessionId};
use crate::lease::{GapOpening, Grant};
use crate::time::Nanos;

/// The role of a session: how it may launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It launches freely, with events around every kernel. Its task is being measured, so its gaps
    /// stay empty.
    Measure,
    /// It launches freely and without reports, since it has no contender.
    Free,
    /// It launches freely and reports each launch: fillers use its gaps.
    Hold,
    /// It launches only under grants.
    Fill,
}

impl Role {
    /// Returns whether the session launches without grants.
    pub const fn is_holder(self) -> bool {
        match self {
            Self::Measure | Self::Free | Self::Hold => true,
            Self::Fill => false,
        }
    }
}

/// Why the queue ignored an event. The client then runs as if there were no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum QueueRefusal {
    /// The session never joined, or its lease expired: join again under a new number.
    #[error("unknown session: it never joined or was silent for too long; join again")]
    UnknownSession,
    /// A session has this number already: each number is used once.
    #[error("the session number is in use: choose a new number")]
    SessionTwice,
    /// The slice has the maximum number of sessions.
    #[error("the slice has the maximum number of sessions: run without the queue")]
    SessionsFull,
    /// The session, or its priority, has the maximum number of waiting launches.
    #[error("too many launches are waiting at this priority: request this one again later")]
    QueueFull,
    /// The task has more kernels than the profile holds: launch this one as
    /// [`KernelIndex::UNKNOWN`]. It gets no profile.
    #[error("the task has more different kernels than its profile holds: this one gets no profile")]
    KernelsFull,
}

/// One action. Actions are carried out in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueAction {
    /// Send the session its new role. If it became a holder, its waiting launches proceed.
    Role {
        /// The session that gets the role.
        session: SessionId,
        /// The new role.
        role: Role,
    },
    /// Write this epoch to the gate: all earlier grants of gaps are over.
    Gate {
        /// The new epoch.
        epoch: Epoch,
    },
    /// Send a grant.
    Grant {
        /// The session that may launch.
        session: SessionId,
        /// Its terms.
        grant: Grant,
    },
    /// Send a grant for a gap that has not begun. Only sessions of [`crate::KernelQueue::note_gate_reader`] get any.
    GrantAhead {
        /// The session that may launch.
        session: SessionId,
        /// Its terms. They begin with the gap.
        grant: Grant,
        /// What it waits for.
        opening: GapOpening,
    },
    /// Notify the session that its grant is over. The message may be late: the gate and the
    /// grant's expiry do not depend on it.
    Revoke {
        /// The session that had the grant.
        session: SessionId,
        /// The grant's number.
        grant: u64,
    },
    /// Have the session bring the device back to its context, shortly before its gap is expected to end. The switch then
    /// takes place within the gap. Later orders replace earlier ones. The answer is [`crate::QueueEvent::Recalled`].
    Recall {
        /// The holder.
        session: SessionId,
        /// When to do so.
        at: Nanos,
        /// The gate's launches: if there are more, the gap has ended.
        launches: u64,
    },
    /// Send the session the index of the kernel that it defined.
    Defined {
        /// The session that defined it.
        session: SessionId,
        /// The kernel's index.
        kernel: KernelIndex,
    },
    /// A waiting launch of the session has a new predicted time: send it before a grant that is based on it.
    Predicted {
        /// The session that waits.
        session: SessionId,
        /// The kernel that it waits to launch.
        kernel: KernelIndex,
    },
    /// The session's task is measured: keep its profile.
    Measured {
        /// One of the task's sessions.
        session: SessionId,
    },
    /// The time of a kernel changed: it is being measured again.
    Remeasure {
        /// One of the task's sessions.
        session: SessionId,
        /// The kernel's index.
        kernel: KernelIndex,
    },
    /// The session was silent for too long: close its connection.
    Dropped {
        /// The silent session.
        session: SessionId,
    },
    /// Notify the session that its event was ignored.
    Refuse {
        /// The session that sent the event.
        session: SessionId,
        /// The reason.
        why: QueueRefusal,
    },
}
