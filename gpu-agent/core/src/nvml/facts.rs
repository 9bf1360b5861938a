//! The state of a GPU and its instances, as the driver reports it.

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::{ComputeInstanceReport, MigReport};
use tessera_model::mig::Slot;
use tessera_model::mig::compute::Cut;
use tessera_model::{Bytes, GpuId, SliceId};

/// One GPU as its driver reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Its UUID.
    pub gpu: GpuId,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Memory of the whole GPU.
    pub memory: Bytes,
    /// How it can be partitioned.
    pub mig: MigReport,
    /// What stands, by start.
    pub instances: Vec<InstanceFacts>,
    /// Where it sits on the bus, as the kernel log writes it: `0000:65:00`.
    pub bus: Option<String>,
    /// The minor number of its device file.
    pub minor: Option<u32>,
    /// What the driver advises (field 230); `None` where it gives no advice.
    pub recovery: Option<u32>,
    /// Whether a row of its memory waits for a reset to be remapped.
    pub remap_pending: bool,
    /// Whether its MIG mode ends with the boot, as on Hopper and later.
    pub mode_volatile: bool,
    /// Whether any process computes on it, with MIG on or off.
    pub used: bool,
}

/// One GPU instance as its driver reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceFacts {
    /// Where it stands and what it is.
    pub slot: Slot,
    /// The driver's number of it, by which errors name it; given anew to later instances.
    pub number: u32,
    /// How many compute instances stand in it.
    pub compute: u32,
    /// The MIG device over the whole of it, if it isn't cut further.
    pub slice: Option<SliceId>,
    /// Its compute instances by start, if it is cut further.
    #[serde(default)]
    pub parts: Vec<ComputeInstanceReport>,
    /// Memory that a job can use.
    pub memory: Bytes,
    /// Streaming multiprocessors.
    pub sms: u16,
    /// Processes that use it.
    pub users: Vec<InstanceUser>,
}

impl InstanceFacts {
    /// Returns the compute instances that can be seen, of an instance of `compute_slices`.
    pub fn cut(&self, compute_slices: u8) -> Cut {
        if self.slice.is_some() {
            return Cut::whole(compute_slices).unwrap_or_default();
        }
        let mut cut = Cut::default();
        for part in self.parts.iter().filter(|part| part.slice.is_some()) {
            cut.insert(part.slot);
        }
        cut
    }

    /// Returns the MIG devices over it.
    pub fn slices(&self) -> impl Iterator<Item = &SliceId> {
        self.slice.iter().chain(self.parts.iter().filter_map(|part| part.slice.as_ref()))
    }
}

/// A process that uses an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceUser {
    /// Its pid.
    pub pid: u32,
    /// Whether it belongs to an attempt of ours, by its environment.
    pub ours: bool,
}
