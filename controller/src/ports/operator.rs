//! What operators tell nodes, GPUs and slices, and what comes of it.

use std::collections::BTreeMap;

use tessera_model::mig::{First, Outlook, ProfileName, Slot, Wanted};
use tessera_model::{GpuId, JobId, Millis, NodeName, PlanId, SliceId};

pub use crate::store::operator::Kind;

/// What an operator wants.
#[derive(Clone, Debug)]
pub enum OperatorOrder {
    /// Say something that stays in force.
    Say {
        /// What.
        kind: Kind,
        /// Of what.
        on: On,
        /// Who says it.
        by: String,
        /// Why.
        reason: Option<String>,
    },
    /// Take it back.
    Lift {
        /// What.
        kind: Kind,
        /// Of what.
        on: On,
        /// Who takes it back.
        by: String,
    },
    /// Give a GPU a layout.
    Apply(LayoutWish),
}

/// What an order is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum On {
    /// A whole node.
    Node(NodeName),
    /// A whole GPU.
    Gpu(GpuId),
    /// One instance of a GPU.
    Slice(GpuId, SliceName),
}

/// How people name an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceName {
    /// By its first memory slice.
    At(u8),
    /// By its profile and first memory slice.
    Named(ProfileName, u8),
    /// By the UUID of its MIG device.
    Id(SliceId),
}

/// A layout that an operator wants.
#[derive(Clone, Debug)]
pub struct LayoutWish {
    /// On which GPU.
    pub gpu: GpuId,
    /// All that shall stand there.
    pub wanted: Wanted,
    /// Whether it is to be kept when jobs would need another.
    pub pin: bool,
    /// Who wants it.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// What came of an order; committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorDone {
    /// It is in force, or no longer.
    Said {
        /// Whether it was different before.
        changed: bool,
    },
    /// The layout stands already.
    Stands,
    /// A plan for the layout is under way.
    Ordered {
        /// Which.
        plan: PlanId,
    },
}

/// Why an order is not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct OperatorRefused {
    /// How it is refused.
    pub kind: RefusedKind,
    /// What can't be done, for people.
    pub problem: String,
    /// What would be right.
    pub expected: Option<String>,
}

/// How an order is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedKind {
    /// There is no such thing.
    NotFound,
    /// No GPU of its kind could ever do it.
    Impossible,
    /// Something stands in the way that a person, or a job's end, clears.
    InTheWay,
    /// The GPU is being changed: it may be possible in a moment.
    Changing,
}

/// What a layout would take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutDraft {
    /// All that would stand, such as `3g.20gb@0`.
    pub layout: Vec<String>,
    /// Of those, what stands already and is left alone.
    pub kept: Vec<String>,
    /// What would be done, in order.
    pub steps: Vec<String>,
    /// How long that is expected to take.
    pub cost: Millis,
    /// How many full layouts stay reachable afterwards.
    pub reachability_after: Option<u32>,
}

/// What can still be made of a GPU.
#[derive(Clone, Debug)]
pub struct GpuOutlook {
    /// By profile, with its name.
    pub profiles: Vec<(String, Outlook)>,
    /// What every instance that the outlook names is called, and which jobs have it.
    pub names: BTreeMap<Slot, (String, Vec<JobId>)>,
}

impl GpuOutlook {
    /// Returns the slots that have to go before the first instance of a profile: idle ones, those
    /// in use, and those that a person must see to.
    pub fn in_the_way(first: &First) -> (&[Slot], &[Slot], &[Slot]) {
        match first {
            First::Now => (&[], &[], &[]),
            First::AfterIdle { idle } => (idle, &[], &[]),
            First::AfterBusy { busy, idle, .. } => (idle, busy, &[]),
            First::Blocked { stuck } => (&[], &[], stuck),
        }
    }
}
