//! GPUs and their instances, as nodes report them.

use serde::{Deserialize, Serialize};
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::mig::{Geometry, Slot};
use tessera_model::{Bytes, GpuId, SliceId};

use super::health::{GpuFault, Quarantine};

/// One GPU as its driver reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReport {
    /// Its UUID.
    pub gpu: GpuId,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Memory of the whole GPU.
    pub memory: Bytes,
    /// Streaming multiprocessors of the whole GPU, if known.
    pub sms: Option<u16>,
    /// How it can be partitioned.
    pub mig: MigReport,
    /// The instances that stand, in the order of their first memory slices.
    pub instances: Vec<InstanceReport>,
    /// The newest layout plan that this GPU obeyed; older ones are refused.
    pub layout_gen: u64,
    /// Whether work may go there.
    pub health: GpuHealth,
    /// What went wrong on it recently, oldest first; at most [`FAULTS_MAX`](super::FAULTS_MAX).
    #[serde(default)]
    pub faults: Vec<GpuFault>,
    /// Set while its node keeps new work away from it, although it answers.
    #[serde(default)]
    pub quarantine: Option<Quarantine>,
    /// Legal placements that the driver refused recently: not to be tried again for now.
    #[serde(default)]
    pub refused: Vec<Slot>,
}

/// Whether and how a GPU can be partitioned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MigReport {
    /// The board has no MIG.
    Unsupported,
    /// MIG mode is off: the whole GPU is one slice.
    Off,
    /// MIG mode is on.
    On {
        /// Profiles and placements, as the driver lists them.
        geometry: Geometry,
    },
}

/// One GPU instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceReport {
    /// Where it stands, and what it is.
    pub slot: Slot,
    /// The MIG device over the whole of it; `None` while it has no compute instance (incomplete),
    /// when it is cut further, or when its device can't be seen.
    pub slice: Option<SliceId>,
    /// Memory that a job can use.
    pub memory: Bytes,
    /// Streaming multiprocessors.
    pub sms: u16,
    /// What keeps it from being used or destroyed, beyond attempts of ours.
    pub trouble: Option<InstanceTrouble>,
    /// Its compute instances by start, if it is cut further; none if one covers the whole of it.
    #[serde(default)]
    pub parts: Vec<ComputeInstanceReport>,
}

impl InstanceReport {
    /// Returns the compute instances that it is cut into; none if one covers the whole of it.
    pub fn cut(&self) -> Cut {
        let mut cut = Cut::default();
        for part in &self.parts {
            cut.insert(part.slot);
        }
        cut
    }
}

/// One of several compute instances of a GPU instance, whose memory they share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeInstanceReport {
    /// Its compute slices.
    pub slot: ComputeSlot,
    /// The MIG device over it; `None` while it can't be seen.
    pub slice: Option<SliceId>,
    /// Streaming multiprocessors.
    pub sms: u16,
}

/// What is the matter with an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum InstanceTrouble {
    /// Processes of no job use it, or another program made it.
    Foreign {
        /// At most 16 processes; none for a foreign instance that no process uses now.
        pids: Vec<u32>,
    },
    /// It could not be destroyed or completed after bounded retries.
    Stuck {
        /// The driver's error, as text for people.
        reason: String,
    },
}

/// Whether work may go to a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GpuHealth {
    /// It answers.
    Healthy,
    /// Its driver did not answer in time; its running attempts go on.
    Unresponsive,
    /// It is lost or in error.
    Faulty {
        /// The driver's error, as text for people.
        reason: String,
    },
}
