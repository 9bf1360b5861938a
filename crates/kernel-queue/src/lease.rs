//! Grants: a limited amount of predicted kernel time, valid until a given time.
//!
//! A grant is a lease: it ends without an answer. A session that dies with a grant delays no other
//! session beyond its `until`.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, SessionId};
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

/// A grant in the state of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantLease {
    /// The session that has the grant.
    pub session: SessionId,
    /// The grant as it was sent.
    pub grant: Grant,
    /// Predicted time of the kernels that were reported as launched.
    pub spent: Nanos,
}

impl GrantLease {
    /// Returns the rest of the budget.
    pub const fn left(&self) -> Nanos {
        self.grant.budget.minus(self.spent)
    }
}
