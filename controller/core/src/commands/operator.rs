//! Administrators' commands for nodes, GPUs and slices, and their results.

use std::collections::BTreeMap;

use tessera_model::mig::{DesiredLayout, FirstOpening, ProfileAvailability, ProfileName, Slot};
use tessera_model::{GpuId, JobId, Millis, NodeName, PlanId, SliceId};

pub use crate::rows::overrides::OverrideKind;

/// An administrator's command.
#[derive(Clone, Debug)]
pub enum OperatorCommand {
    /// Sets an administrative override, or changes the one that is set.
    SetOverride {
        /// The kind of override.
        kind: OverrideKind,
        /// What it applies to.
        on: OverrideScope,
        /// The administrator.
        by: String,
        /// The reason, as text for people.
        reason: Option<String>,
    },
    /// Clears an administrative override.
    ClearOverride {
        /// The kind of override.
        kind: OverrideKind,
        /// What it applies to.
        on: OverrideScope,
        /// The administrator.
        by: String,
    },
    /// Request a layout for a GPU.
    ApplyLayout(LayoutCommand),
    /// Switch the MIG mode of a GPU.
    SetMigMode {
        /// The GPU whose mode is to change.
        gpu: GpuId,
        /// Whether MIG is switched on.
        on: bool,
    },
}

/// What a command applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideScope {
    /// A whole node.
    Node(NodeName),
    /// A whole GPU.
    Gpu(GpuId),
    /// One instance of a GPU.
    Slice(GpuId, InstanceName),
}

/// The ways in which users name an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceName {
    /// By its first memory slice.
    At(u8),
    /// By its profile and first memory slice.
    Named(ProfileName, u8),
    /// By the UUID of its MIG device.
    Id(SliceId),
}

/// A layout that an administrator requests.
#[derive(Clone, Debug)]
pub struct LayoutCommand {
    /// The GPU that is to get another layout.
    pub gpu: GpuId,
    /// All desired instances of the GPU.
    pub desired: DesiredLayout,
    /// Whether the layout is kept when jobs would need another.
    pub pin: bool,
    /// The administrator who requested it.
    pub by: String,
    /// The reason, as text for people.
    pub reason: Option<String>,
}

/// The result of a command; it is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorOutcome {
    /// The override was set or cleared.
    OverrideApplied {
        /// Whether that changed anything.
        changed: bool,
    },
    /// The GPU has the layout already.
    Stands,
    /// The GPU's MIG mode is as requested.
    MigModeSet,
    /// A plan for the layout is under way.
    Planned {
        /// The plan that carries the command out.
        plan: PlanId,
    },
}

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct OperatorRefusal {
    /// The kind of refusal.
    pub kind: RefusalKind,
    /// What is impossible, as text.
    pub problem: String,
    /// What would be possible instead.
    pub expected: Option<String>,
}

/// Why an operator's command is refused, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The node, GPU or slice does not exist.
    NotFound,
    /// No GPU of its model could ever do it.
    Impossible,
    /// An obstacle exists until an administrator clears it or a job ends.
    InTheWay,
    /// The GPU is being changed: the command may be possible soon.
    Changing,
}

/// A plan preview: the steps and the time that a layout needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanPreview {
    /// The instances of the layout, such as `3g.20gb@0`.
    pub layout: Vec<String>,
    /// The instances of the layout that exist already and are not changed.
    pub kept: Vec<String>,
    /// The plan's steps, in order.
    pub steps: Vec<String>,
    /// The expected duration of the steps.
    pub cost: Millis,
    /// How many full layouts stay reachable afterwards.
    pub reachability_after: Option<u32>,
}

/// The availability of a GPU: what can still be created on it.
#[derive(Clone, Debug)]
pub struct GpuAvailability {
    /// By profile, with its name.
    pub profiles: Vec<(String, ProfileAvailability)>,
    /// By slot of each instance: its name, and the jobs that have it.
    pub names: BTreeMap<Slot, (String, Vec<JobId>)>,
}

impl GpuAvailability {
    /// Returns the slots that have to be freed before the first instance of a profile: idle ones,
    /// those in use, and those that need an administrator.
    pub fn in_the_way(first: &FirstOpening) -> (&[Slot], &[Slot], &[Slot]) {
        match first {
            FirstOpening::Now => (&[], &[], &[]),
            FirstOpening::AfterIdle { idle } => (idle, &[], &[]),
            FirstOpening::AfterBusy { busy, idle, .. } => (idle, busy, &[]),
            FirstOpening::Blocked { stuck } => (&[], &[], stuck),
        }
    }
}
