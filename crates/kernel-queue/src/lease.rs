//! Grants: a limited amount of predicted kernel time, valid until a given time.
//!
//! A grant is a lease: it ends without an answer. A session that dies with a grant delays no other
//! session beyond its `until`.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, KernelIndex, SessionId};
use crate::time::Nanos;

/// Why a filler may launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantKind {
    /// The holder is in a gap. It ends at once when the holder launches.
    Gap,
    /// The holder has been silent for longer than ever before and may be dead. It ends like a gap's
    /// grant.
    Lapse,
    /// The wait exceeded MMK's threshold. It does not end with the gap, since possibly no gap ever
    /// fits.
    Aged,
    /// The kernel fits next to the running kernels (MMK's admission). Does not end with the gap.
    Colocated,
}

impl GrantKind {
    /// Returns whether the holder's return ends the grant.
    pub const fn ends_with_gap(self) -> bool {
        match self {
            Self::Gap | Self::Lapse => true,
            Self::Aged | Self::Colocated => false,
        }
    }
}

/// The state on the page that the sessions of a slice share.
///
/// Each number has one kind of writer, so that no write hides another. Holders add one to
/// `launches` before each launch. The queue sets `epoch` when it ends grants. Without a shared page
/// `launches` stays zero, and only messages end grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateState {
    /// Rises when the queue ends grants.
    pub epoch: Epoch,
    /// Number of launches of holders.
    pub launches: u64,
}

impl GateState {
    /// Returns whether a grant that was given at state `given` is over.
    pub fn has_passed(self, given: Self) -> bool {
        self.epoch > given.epoch || self.launches > given.launches
    }
}

/// A grant as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Rises with every grant of the slice, so that a late message is recognised.
    pub number: u64,
    /// The gate's state when the grant was given. If the gate passed it, a gap's grant is over.
    pub gate: GateState,
    /// Why the session may launch.
    pub kind: GrantKind,
    /// No launch is allowed before this, since the holder's kernel still runs.
    pub from: Nanos,
    /// No launch is allowed from this time on.
    pub until: Nanos,
    /// Predicted kernel time that may be spent.
    pub budget: Nanos,
    /// Maximum number of launches.
    pub launches: u16,
    /// Maximum number of kernels in flight at any time.
    pub in_flight: u16,
    /// Whether other sessions wait. If so, the session returns the grant with
    /// [`crate::QueueEvent::Sync`] when its host turns to other work.
    pub yields: bool,
}

impl Grant {
    /// Returns how long the device needs before the first kernel runs, to change to the session's context. It is what
    /// the budget leaves of the span. For a single launch, the span ends earlier instead.
    pub fn entry(&self) -> Nanos {
        let span = self.until.minus(self.from);
        if self.kind.ends_with_gap() && self.launches > 1 {
            span.minus(self.budget)
        } else {
            Nanos::ZERO
        }
    }
}

/// What a grant that is given ahead of a gap waits for.
///
/// The gap is expected to begin after a launch that the holder has not made yet. The session observes that launch on the
/// gate page. So no message has to pass between the begin of the gap and the first kernel in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GapOpening {
    /// The gate's launches after that launch: those of [`Grant::gate`].
    pub launches: u64,
    /// What is launched. If it is another kernel, the grant is over.
    pub kernel: KernelIndex,
    /// For how long after that launch the device is busy.
    pub busy: Nanos,
    /// For how long after that the grant lasts.
    pub length: Nanos,
    /// The gate's launches from which the gap is near: a waiting thread is woken there.
    pub wake: u64,
}

/// The last launch of a holder, as the gate page shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastLaunch {
    /// The gate's launches after it.
    pub count: u64,
    /// What was launched.
    pub kernel: KernelIndex,
    /// The time of the launch.
    pub at: Nanos,
}

impl Default for LastLaunch {
    /// Returns that of a page on which nothing was launched.
    fn default() -> Self {
        Self { count: 0, kernel: KernelIndex::UNKNOWN, at: Nanos::ZERO }
    }
}

impl GapOpening {
    /// Returns the span of the grant's kernels if this launch opens it; `None` if it is another one.
    pub fn span(&self, last: LastLaunch) -> Option<(Nanos, Nanos)> {
        let is_it = last.count == self.launches && last.kernel == self.kernel;
        let from = last.at.plus(self.busy);
        is_it.then(|| (from, from.plus(self.length)))
    }
}

/// A grant in the state of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantLease {
    /// The session that has the grant.
    pub session: SessionId,
    /// The grant as it was sent.
    pub grant: Grant,
    /// What it waits for, if it was given ahead of its gap and that has not begun.
    pub opening: Option<GapOpening>,
    /// Whether it was given ahead of its gap.
    pub given_ahead: bool,
    /// Predicted time of the kernels that were reported as launched.
    pub spent: Nanos,
}

impl GrantLease {
    /// Returns whether its gap has not begun.
    pub const fn is_ahead(&self) -> bool {
        self.opening.is_some()
    }

    /// Returns the rest of the budget.
    pub const fn left(&self) -> Nanos {
        self.grant.budget.minus(self.spent)
    }
}
