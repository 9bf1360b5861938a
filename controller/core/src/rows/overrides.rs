//! Administrative overrides, and the log of who set and cleared them.

use std::fmt;

use tessera_model::mig::Slot;
use tessera_model::{GpuId, Millis, NodeId};

/// A kind of administrative override.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverrideKind {
    /// No new attempts start; running ones finish.
    Drained,
    /// No new attempts start, and the layout is not changed there.
    Quarantined,
    /// The layout is not changed.
    Pinned,
}

impl OverrideKind {
    /// Returns the name in the store and the API.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Quarantined => "quarantined",
            Self::Pinned => "pinned",
        }
    }
}

/// What an override applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverrideTarget {
    /// A whole node.
    Node(NodeId),
    /// A whole GPU.
    Gpu(GpuId),
    /// One instance, or the slot where it was.
    Slice(GpuId, Slot),
}

/// An administrative override in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminOverrideRow {
    /// The kind of override.
    pub kind: OverrideKind,
    /// What it applies to.
    pub target: OverrideTarget,
    /// The administrator who set it.
    pub by: String,
    /// The reason, as text for people.
    pub reason: Option<String>,
    /// When it was set, milliseconds since 1970.
    pub since_unix: Millis,
}

impl fmt::Display for AdminOverrideRow {
    /// Such as `drained (maintenance, by ada)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{} ({reason}, by {})", self.kind.word(), self.by),
            None => write!(f, "{} (by {})", self.kind.word(), self.by),
        }
    }
}

/// A change of the overrides in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideChange {
    /// The override is set, or set again.
    Set(AdminOverrideRow),
    /// The override is cleared.
    Clear(OverrideKind, OverrideTarget),
}

/// An entry of the operator log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorEvent {
    /// A stable name of the event, such as `drained`.
    pub kind: &'static str,
    /// The node's name.
    pub node: Option<String>,
    /// The GPU that it concerns; none if it concerns a node or a job.
    pub gpu: Option<GpuId>,
    /// The administrator.
    pub by: Option<String>,
    /// The entry's text: a sentence.
    pub text: String,
}
