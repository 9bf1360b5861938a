//! One GPU: how it stands, its journal, and the plans that change it.

pub mod file;
pub mod one;

use tessera_model::mig::Slot;
use tessera_model::{GpuId, PlanId};
use tessera_wire::frames::{GpuReport, PlanEnd, PlanOrder};

/// From the node to its GPUs.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuOrder {
    /// Change a layout.
    Apply(PlanOrder),
    /// Switch MIG mode, on an administrator's word.
    SetMigMode {
        /// Which GPU.
        gpu: GpuId,
        /// On or off.
        on: bool,
    },
    /// Take it for sound again, on an operator's word.
    Clear {
        /// Which GPU.
        gpu: GpuId,
        /// One instance only; everything if left out.
        slot: Option<Slot>,
    },
}

impl GpuOrder {
    /// Returns the GPU that it is about.
    pub const fn gpu(&self) -> &GpuId {
        match self {
            Self::Apply(order) => &order.gpu,
            Self::SetMigMode { gpu, .. } | Self::Clear { gpu, .. } => gpu,
        }
    }
}

/// From a GPU to the node.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuEvent {
    /// It was read.
    Changed(Box<GpuReport>),
    /// A plan came to its end.
    PlanEnded {
        /// On which GPU.
        gpu: GpuId,
        /// Which plan.
        plan: PlanId,
        /// How.
        end: PlanEnd,
    },
    /// A switch of MIG mode came to its end.
    MigModeEnded {
        /// On which GPU.
        gpu: GpuId,
        /// What is in the way, if anything is.
        problem: Option<String>,
    },
}
