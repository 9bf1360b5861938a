//! Grants: "until this moment, at most so many nanoseconds of predicted kernel time".
//!
//! A grant is a lease. It needs no answer to end, and a session that died with one holds up
//! nobody beyond its `until`.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, SessionId};
use crate::time::Nanos;

/// Why a session may launch although another holds the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The holder is in a gap. Ends at once when the holder launches.
    Gap,
    /// The holder has been silent for longer than it ever was: it may have died. Ends as a gap.
    Lapse,
    /// It waited long enough (MMK's threshold). Does not end with the gap: else it might never.
    Aged,
    /// It fits beside what runs (MMK's admission). Does not end with the gap either.
    Beside,
}

impl Kind {
    /// Tells whether the holder's return ends it.
    pub const fn ends_with_the_gap(self) -> bool {
        match self {
            Self::Gap | Self::Lapse => true,
            Self::Aged | Self::Beside => false,
        }
    }
}

/// What the page shows that the sessions of a slice share.
///
/// Two numbers, each with one kind of writer, so that neither can hide the other's step: holders
/// add one to `launches` before each launch, the queue sets `epoch` when it ends grants. Without
/// a shared page `launches` stays zero, and the messages alone end grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Rises when the queue ends grants.
    pub epoch: Epoch,
    /// Launches of holders.
    pub launches: u64,
}

impl Gate {
    /// Tells whether a grant that was given at `given` is over.
    pub fn has_passed(self, given: Self) -> bool {
        self.epoch > given.epoch || self.launches > given.launches
    }
}

/// A grant as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Rises with every grant of the slice, so that a late one is known as such.
    pub number: u64,
    /// What the gate must not have passed, if the grant ends with the gap.
    pub gate: Gate,
    /// Why.
    pub kind: Kind,
    /// Before this nothing may be launched: the holder's kernel still runs.
    pub from: Nanos,
    /// From this on nothing may be launched, whatever is left.
    pub until: Nanos,
    /// Predicted kernel time that may be spent.
    pub budget: Nanos,
    /// Launches that may be made.
    pub launches: u16,
    /// Kernels that may be launched and not done at any moment.
    pub in_flight: u16,
    /// Whether others wait: then it is given back when the host turns to other work, by
    /// [`crate::Event::Sync`].
    pub yields: bool,
}

/// A grant as the queue remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whose.
    pub session: SessionId,
    /// What was sent.
    pub grant: Grant,
    /// Predicted kernel time that was reported as launched.
    pub spent: Nanos,
}

impl Lease {
    /// Returns what may still be spent.
    pub const fn left(&self) -> Nanos {
        self.grant.budget.minus(self.spent)
    }
}
