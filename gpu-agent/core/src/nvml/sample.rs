//! One measurement of a GPU: power, energy, memory and the processes that use it.

use serde::{Deserialize, Serialize};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, Bytes};

/// The power of a GPU and the processes that use it, at one time. A value that the driver doesn't
/// report is `None`, never zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Whether MIG mode is on.
    pub mig: bool,
    /// Memory in use on the whole GPU.
    pub memory_used: Option<Bytes>,
    /// The driver's GPU utilisation, in percent; not reported with MIG on.
    pub busy_percent: Option<u32>,
    /// Power of the whole GPU, in milliwatts.
    pub power_mw: Option<u64>,
    /// Energy of the whole GPU since its driver was loaded, in millijoules.
    pub energy_mj: Option<u64>,
    /// The instances; none with MIG off.
    pub places: Vec<InstanceSample>,
    /// Whether [`ProcessSample::load_percent`] reports loads: never with MIG on.
    pub loads_reported: bool,
    /// The processes that hold a context, by pid.
    pub processes: Vec<ProcessSample>,
}

/// One instance in a [`GpuSample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceSample {
    /// The driver's number of the GPU instance, valid until the layout is changed.
    pub number: u32,
    /// Where the instance is on its GPU.
    pub slot: Slot,
    /// Memory in use.
    pub memory_used: Option<Bytes>,
    /// How many of its own multiprocessors were busy since the last sample, in thousandths: Hopper and newer GPUs count
    /// this for each instance.
    #[serde(default)]
    pub busy: Option<u16>,
}

/// One process in a [`GpuSample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// The process as the kernel numbers it.
    pub pid: u32,
    /// The number of the GPU instance that it uses; `None` with MIG off.
    pub place: Option<u32>,
    /// Memory that it has allocated.
    pub memory: Option<Bytes>,
    /// How busy it keeps the whole GPU, in percent; zero where loads aren't reported.
    pub load_percent: u32,
    /// The attempt that it belongs to, by its environment.
    pub attempt: Option<AttemptId>,
    /// Whether it is a daemon's MPS server, which works for its clients.
    #[serde(default)]
    pub mps_server: bool,
}
