//! One GPU: how it stands, its journal, and the plans that change it.

mod faults;
pub mod file;
pub mod one;
mod plans;

use tessera_model::mig::Slot;
use tessera_model::{AttemptId, GpuId, Millis, PlanId};
use tessera_wire::frames::{FaultAction, FaultCause, GpuReport, PlanEnd, PlanOrder};

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
    /// Remember which attempts a fault hit.
    Hit {
        /// On which GPU.
        gpu: GpuId,
        /// When the fault was seen.
        at_unix: Millis,
        /// Which fault.
        cause: FaultCause,
        /// The attempts.
        attempts: Vec<AttemptId>,
    },
}

impl GpuOrder {
    /// Returns the GPU that it is about.
    pub const fn gpu(&self) -> &GpuId {
        match self {
            Self::Apply(order) => &order.gpu,
            Self::SetMigMode { gpu, .. } | Self::Clear { gpu, .. } | Self::Hit { gpu, .. } => gpu,
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
    /// A fault struck that ends attempts.
    Struck(Strike),
}

/// A fault that ends attempts.
#[derive(Clone, Debug, PartialEq)]
pub struct Strike {
    /// On which GPU.
    pub gpu: GpuId,
    /// When, on the wall clock.
    pub at_unix: Millis,
    /// What it was.
    pub cause: FaultCause,
    /// What it calls for.
    pub action: FaultAction,
    /// The instance that it struck; the whole GPU, if none is named.
    pub slot: Option<Slot>,
    /// The process that it struck, if the driver named it.
    pub pid: Option<u32>,
}

/// An error that the driver told of by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noticed {
    /// Who told.
    pub source: Source,
    /// When it happened, on the wall clock.
    pub at_unix: Millis,
    /// The GPU that it struck.
    pub on: Place,
    /// The error's number.
    pub xid: u32,
    /// The driver's number of the GPU instance that it struck.
    pub instance: Option<u32>,
    /// The process that it struck.
    pub pid: Option<u32>,
}

/// What is heard of GPUs without asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// An error.
    Noticed(Noticed),
    /// A GPU is lost, it was not said which.
    Lost,
}

/// Who told of an error: the same one comes by both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The driver's events.
    Events,
    /// The kernel's log.
    KernelLog,
}

/// How the teller names a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// By its UUID.
    Gpu(GpuId),
    /// By its place on the bus, as `0000:65:00`.
    Bus(String),
}
