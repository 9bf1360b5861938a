//! Messages between the node, its GPUs and the sources of driver errors.

use tessera_frames::cluster::{FaultAction, FaultCause, GpuReport, PlanEnd, PlanOrder};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, GpuId, Millis, PlanId};

/// From the node to its GPUs.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuOrder {
    /// Change a layout.
    Apply(PlanOrder),
    /// Switch MIG mode, at an administrator's request.
    SetMigMode {
        /// The GPU's id.
        gpu: GpuId,
        /// On or off.
        on: bool,
    },
    /// Treat it as healthy again, at an operator's request.
    Clear {
        /// The GPU's id.
        gpu: GpuId,
        /// One instance only; everything if left out.
        slot: Option<Slot>,
    },
    /// Record which attempts a fault affected.
    Hit {
        /// The GPU that it belongs to.
        gpu: GpuId,
        /// When the fault was seen.
        at_unix: Millis,
        /// The fault.
        cause: FaultCause,
        /// The attempts that ran on the failed part of the GPU.
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

/// What the driver calls a GPU and its instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuNumbers {
    /// The number of its device node.
    pub minor: u32,
    /// The numbers of its GPU instances.
    pub instances: Vec<(Slot, u32)>,
}

/// From a GPU to the node.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuEvent {
    /// What the driver calls it and its instances.
    Numbered(GpuId, GpuNumbers),
    /// It was read.
    Changed(Box<GpuReport>),
    /// A layout plan ended.
    PlanEnded {
        /// The GPU that it belongs to.
        gpu: GpuId,
        /// The plan's id.
        plan: PlanId,
        /// How it ended.
        end: PlanEnd,
    },
    /// A switch of MIG mode ended.
    MigModeEnded {
        /// The GPU that it belongs to.
        gpu: GpuId,
        /// What prevents it, if anything does.
        problem: Option<String>,
    },
    /// A fault occurred that ends attempts.
    Struck(AttemptFault),
}

/// A fault that ends attempts.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptFault {
    /// The GPU that it belongs to.
    pub gpu: GpuId,
    /// When, on the wall clock.
    pub at_unix: Millis,
    /// What it was.
    pub cause: FaultCause,
    /// The required action.
    pub action: FaultAction,
    /// The affected instance; the whole GPU, if none is named.
    pub slot: Option<Slot>,
    /// The affected process, if the driver named it.
    pub pid: Option<u32>,
}

/// An error that the driver reported by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedError {
    /// The source of the report.
    pub source: ErrorSource,
    /// When it happened, on the wall clock.
    pub at_unix: Millis,
    /// The affected GPU.
    pub on: GpuAddress,
    /// The error's number.
    pub xid: u32,
    /// The driver's number of the affected GPU instance.
    pub instance: Option<u32>,
    /// The affected process.
    pub pid: Option<u32>,
}

/// Something that the driver reported by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverNotice {
    /// An error.
    Noticed(ReportedError),
    /// A GPU is lost; the driver didn't report which.
    Lost,
}

/// The source of an error report: the same error comes from both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorSource {
    /// The driver's events.
    Events,
    /// Lines of the driver in the kernel's log.
    KernelLog,
}

/// How an error report names a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuAddress {
    /// By its UUID.
    Gpu(GpuId),
    /// By its place on the bus, as `0000:65:00`.
    Bus(String),
}
