//! The state of a GPU and its instances in the driver's report.

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::{ComputeInstanceReport, MigReport};
use tessera_model::mig::compute::Cut;
use tessera_model::mig::{Slot, catalog};
use tessera_model::{Bytes, GpuId, SliceId};

/// One GPU in its driver's report.
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
    /// Its instances, by start.
    pub instances: Vec<InstanceFacts>,
    /// Its bus address, in the format of the kernel log: `0000:65:00`.
    pub bus: Option<String>,
    /// The minor number of its device file.
    pub minor: Option<u32>,
    /// The driver's advice (field 230); `None` if it gives none.
    pub recovery: Option<u32>,
    /// Whether a row of its memory needs a reset to be remapped.
    pub remap_pending: bool,
    /// Whether its MIG mode ends with the boot, as on Hopper and later.
    pub mode_volatile: bool,
    /// Whether any process uses it for compute, with MIG on or off.
    pub used: bool,
}

impl GpuFacts {
    /// Returns the streaming multiprocessors of the whole GPU: those of its model with MIG off, or else those of
    /// its largest instance. NVML has no query for them.
    pub fn multiprocessors(&self) -> Option<u16> {
        let of_model = catalog::find(&self.model).ok().and_then(|model| model.sms);
        of_model.or_else(|| {
            let MigReport::On { geometry } = &self.mig else { return None };
            geometry.profiles.iter().map(|profile| profile.sms).max().filter(|sms| *sms > 0)
        })
    }
}

/// One GPU instance in its driver's report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceFacts {
    /// Where the instance is on its GPU.
    pub slot: Slot,
    /// The driver's number of it, which errors name; later instances reuse it.
    pub number: u32,
    /// How many compute instances it has.
    pub compute: u32,
    /// The MIG device over the whole of it, if it isn't divided.
    pub slice: Option<SliceId>,
    /// Its compute instances by start, if it is divided.
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
    /// Returns the visible compute instances of an instance with `compute_slices`.
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
    /// The process as the kernel numbers it.
    pub pid: u32,
    /// Whether it belongs to one of the agent's attempts, by its environment.
    pub ours: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(model: &str, mig: MigReport) -> GpuFacts {
        let gpu: GpuId = "GPU-00000000-0000-0000-0000-000000000001".parse().unwrap();
        GpuFacts {
            gpu,
            index: 0,
            model: model.to_owned(),
            memory: Bytes::ZERO,
            mig,
            instances: Vec::new(),
            bus: None,
            minor: None,
            recovery: None,
            remap_pending: false,
            mode_volatile: false,
            used: false,
        }
    }

    #[test]
    fn a_gpu_has_the_multiprocessors_of_its_model_or_of_its_largest_instance() {
        let a30 = &catalog::models()["a30-24gb"];
        let on = || MigReport::On { geometry: a30.geometry() };

        assert_eq!(gpu(&a30.names[0], on()).multiprocessors(), Some(56));
        assert_eq!(gpu("NVIDIA Z1", on()).multiprocessors(), Some(56));
        assert_eq!(gpu("NVIDIA Z1", MigReport::Off).multiprocessors(), None);
    }
}
