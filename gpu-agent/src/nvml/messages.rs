//! The messages between the agent and its worker process.

use serde::{Deserialize, Serialize};
use tessera_agent_core::nvml::error::NvmlCallError;
use tessera_agent_core::nvml::facts::{GpuFacts, InstanceFacts};
use tessera_agent_core::nvml::sample::GpuSample;
use tessera_model::GpuId;
use tessera_model::mig::Slot;
use tessera_model::mig::compute::Cut;

/// From the agent to the worker; each is answered by one [`NvmlReply`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NvmlRequest {
    /// Which GPUs exist?
    List,
    /// What is the state of this one?
    Read(GpuId),
    /// What exists in this slot?
    Look(GpuId, Slot),
    /// What does the driver advise to do about it (field 230)?
    Advice(GpuId),
    /// Create a complete instance: the GPU instance and the compute instance that covers it.
    Create(GpuId, Slot),
    /// Give an instance exactly these compute instances, and create it if it doesn't exist.
    Cut(GpuId, Slot, Cut),
    /// Destroy an instance with all that is in it.
    Destroy(GpuId, Slot),
    /// Switch MIG mode.
    SetMigMode(GpuId, bool),
    /// What is its power, and which processes use it?
    Sample(GpuId),
}

impl NvmlRequest {
    /// Returns whether it changes anything: such requests take longer, and must not be cut short.
    pub const fn mutates(&self) -> bool {
        match self {
            Self::List | Self::Read(_) | Self::Look(..) | Self::Advice(_) | Self::Sample(_) => {
                false
            }
            Self::Create(..) | Self::Cut(..) | Self::Destroy(..) | Self::SetMigMode(..) => true,
        }
    }

    /// Returns its name in metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read(_) => "read",
            Self::Look(..) => "look",
            Self::Advice(_) => "advice",
            Self::Create(..) => "create",
            Self::Cut(..) => "cut",
            Self::Destroy(..) => "destroy",
            Self::SetMigMode(..) => "set_mig_mode",
            Self::Sample(_) => "sample",
        }
    }

    /// Returns the GPU that it is about.
    pub const fn gpu(&self) -> Option<&GpuId> {
        match self {
            Self::List => None,
            Self::Read(gpu)
            | Self::Look(gpu, _)
            | Self::Advice(gpu)
            | Self::Create(gpu, _)
            | Self::Cut(gpu, ..)
            | Self::Destroy(gpu, _)
            | Self::SetMigMode(gpu, _)
            | Self::Sample(gpu) => Some(gpu),
        }
    }
}

/// From the worker to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NvmlReply {
    /// To [`NvmlRequest::List`].
    Gpus(Vec<GpuId>),
    /// To [`NvmlRequest::Read`].
    Gpu(Box<GpuFacts>),
    /// To [`NvmlRequest::Look`] and to changes of one slot: what exists there now.
    One(Option<Box<InstanceFacts>>),
    /// To [`NvmlRequest::Advice`]; `None` if the driver gives none.
    Advice(Option<u32>),
    /// To [`NvmlRequest::GpuSample`].
    Sample(Box<GpuSample>),
    /// It was done.
    Done,
    /// The library refused.
    Failed(NvmlCallError),
}
