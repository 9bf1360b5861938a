//! The instances on the GPUs of one node, and the rules by which they change.
//!
//! Pure but for the names of processes: files, locks and clocks are [`crate::node`]'s.

mod claims;
mod compute;
mod figures;
mod instances;
mod mode;

use serde::{Deserialize, Serialize};
use tessera_model::mig::Slot;
use tessera_model::mig::catalog::{self, CatalogProfile, GpuModel};
use uuid::Uuid;

pub use claims::{ClaimId, ClaimKind, ClaimPlace, DeviceClaim, OutOfMemory};
pub use compute::ComputePlacement;
pub use figures::MemoryFigures;
pub use instances::SlotPlacement;
pub use mode::ModeActivation;

/// Version of the device file. A file of another version is refused, never guessed at.
pub const FORMAT: u32 = 1;

/// Identifies one instance for as long as the node exists: never reused, so that a handle built
/// from it can be stale but never wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceSerial(pub u64);

/// The stored state of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceState {
    /// Always [`FORMAT`].
    pub format: u32,
    /// Drawn when the node was made; the root of every UUID of the node.
    pub seed: Uuid,
    next_serial: u64,
    /// The GPUs, by index.
    pub gpus: Vec<DeviceGpu>,
    /// The claims of processes.
    pub claims: Vec<DeviceClaim>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceGpu {
    /// Key of the catalogue.
    pub model: String,
    /// Whether MIG mode is on.
    pub mig: bool,
    /// The mode after the next activation.
    pub mig_pending: bool,
    /// Its instances, by serial.
    pub instances: Vec<GpuInstance>,
    /// Energy used up to `settled_ms`, in microjoules.
    microjoules: u64,
    /// When the energy was last added up, in milliseconds since the machine's start.
    settled_ms: u64,
}

/// One GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuInstance {
    /// Identity within the node.
    pub serial: InstanceSerial,
    /// The driver's small number, unique on its GPU among the existing ones.
    pub id: u32,
    /// Its profile and position.
    pub slot: Slot,
    /// Compute instances, by serial.
    pub compute: Vec<ComputeInstance>,
}

/// One compute instance: what NVML calls a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeInstance {
    /// Identity within the node.
    pub serial: InstanceSerial,
    /// Small number, unique in its GPU instance among the existing ones.
    pub id: u32,
    /// The driver's id of its profile, unique within the GPU instance's profile.
    pub profile: u32,
    /// First compute slice of the GPU instance.
    pub start: u8,
    /// The index under which the GPU lists it as a MIG device. It keeps the index for life, so
    /// a destroyed neighbour leaves a hole.
    pub mig_index: u32,
    /// New each time an instance is made.
    pub uuid: Uuid,
}

/// Why the model refuses an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefusal {
    /// The GPU can't do that in its current mode.
    #[error("not supported")]
    NotSupported,
    /// No such profile, placement or instance.
    #[error("invalid argument")]
    InvalidArgument,
    /// There is nothing with that name.
    #[error("not found")]
    NotFound,
    /// Legal in itself, but there is no space.
    #[error("insufficient resources")]
    InsufficientResources,
    /// A process or an instance prevents it.
    #[error("in use")]
    InUse,
}

impl DeviceState {
    /// Makes an empty node of the models `keys`, which must be keys of the catalogue.
    pub fn new(seed: Uuid, keys: &[String], mig: bool, running_ms: u64) -> Self {
        let gpus = keys
            .iter()
            .map(|key| DeviceGpu {
                model: key.clone(),
                mig,
                mig_pending: mig,
                instances: Vec::new(),
                microjoules: 0,
                settled_ms: running_ms,
            })
            .collect();
        Self { format: FORMAT, seed, next_serial: 1, gpus, claims: Vec::new() }
    }

    /// Returns the UUID of a GPU, as NVML writes it.
    pub fn gpu_uuid(&self, gpu: usize) -> String {
        format!("GPU-{}", Uuid::new_v5(&self.seed, format!("gpu {gpu}").as_bytes()))
    }

    /// Finds a GPU instance and the index of its GPU.
    pub fn gpu_instance(&self, serial: InstanceSerial) -> Option<(usize, &GpuInstance)> {
        self.gpu_instances().find(|(_, instance)| instance.serial == serial)
    }

    /// Finds a compute instance, its GPU instance and the index of its GPU.
    pub fn compute_instance(
        &self,
        serial: InstanceSerial,
    ) -> Option<(usize, &GpuInstance, &ComputeInstance)> {
        self.compute_instances().find(|(_, _, compute)| compute.serial == serial)
    }

    /// Finds what a UUID names, as NVML writes it.
    pub fn by_uuid(&self, uuid: &str) -> Option<ClaimPlace> {
        let gpu =
            || (0..self.gpus.len()).find(|gpu| self.gpu_uuid(*gpu) == uuid).map(ClaimPlace::Gpu);
        let compute = || {
            let (_, _, compute) =
                self.compute_instances().find(|(_, _, compute)| compute.mig_uuid() == uuid)?;
            Some(ClaimPlace::Compute(compute.serial))
        };
        gpu().or_else(compute)
    }

    /// Returns the index of the GPU on which a place is, or `None` if the place is gone.
    pub fn gpu_of(&self, place: ClaimPlace) -> Option<usize> {
        match place {
            ClaimPlace::Gpu(gpu) => (gpu < self.gpus.len()).then_some(gpu),
            ClaimPlace::Compute(serial) => self.compute_instance(serial).map(|(gpu, _, _)| gpu),
        }
    }

    fn gpu_instances(&self) -> impl Iterator<Item = (usize, &GpuInstance)> {
        self.gpus
            .iter()
            .enumerate()
            .flat_map(|(index, gpu)| gpu.instances.iter().map(move |instance| (index, instance)))
    }

    fn compute_instances(&self) -> impl Iterator<Item = (usize, &GpuInstance, &ComputeInstance)> {
        self.gpu_instances()
            .flat_map(|(gpu, instance)| instance.compute.iter().map(move |c| (gpu, instance, c)))
    }

    const fn take_serial(&mut self) -> InstanceSerial {
        let serial = InstanceSerial(self.next_serial);
        self.next_serial += 1;
        serial
    }
}

impl DeviceGpu {
    /// Returns the catalogue's entry for the GPU.
    pub fn model(&self) -> &'static GpuModel {
        catalog::models().get(&self.model).expect("the key is checked whenever a state is read")
    }

    /// Finds a profile by the driver's id.
    pub fn profile(&self, id: u32) -> Option<&'static CatalogProfile> {
        self.model().profiles.iter().find(|p| p.profile.id.0 == id)
    }

    /// Returns the profile that takes the whole GPU.
    pub fn whole(&self) -> &'static CatalogProfile {
        self.model()
            .profiles
            .iter()
            .max_by_key(|p| (p.profile.compute_slices, !p.profile.has_suffix()))
            .expect("the catalogue leaves out models without profiles")
    }

    /// Finds the MIG device at an index.
    pub fn mig_device(&self, mig_index: u32) -> Option<&ComputeInstance> {
        self.instances.iter().flat_map(|i| &i.compute).find(|c| c.mig_index == mig_index)
    }
}

impl GpuInstance {
    /// Returns its profile on `gpu`, the GPU on which it exists.
    pub fn profile(&self, gpu: &DeviceGpu) -> &'static CatalogProfile {
        gpu.profile(self.slot.profile.0).expect("only profiles of the model are ever created")
    }
}

impl ComputeInstance {
    /// Returns the MIG device's UUID, as NVML writes it.
    pub fn mig_uuid(&self) -> String {
        format!("MIG-{}", self.uuid)
    }
}

/// Returns the lowest number from `first` on that `taken` lacks.
fn lowest_free(first: u32, taken: impl Iterator<Item = u32> + Clone) -> u32 {
    (first..).find(|n| taken.clone().all(|t| t != *n)).expect("fewer instances than numbers")
}
