//! What the agent and its worker process say to each other.

use serde::{Deserialize, Serialize};
use tessera_model::mig::Slot;
use tessera_model::mig::compute::Cut;
use tessera_model::{AttemptId, Bytes, GpuId, SliceId};
use tessera_wire::frames::{MigReport, PartReport};

use super::fault::Fault;

/// From the agent to the worker; each is answered by one [`Reply`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Which GPUs are there?
    List,
    /// How does this one stand?
    Read(GpuId),
    /// What stands in this place?
    Look(GpuId, Slot),
    /// What does the driver advise to do about it (field 230)?
    Advice(GpuId),
    /// Make an instance, whole: the GPU instance and the compute instance that covers it.
    Create(GpuId, Slot),
    /// Make an instance have exactly these compute instances; make it, if it isn't there.
    Cut(GpuId, Slot, Cut),
    /// Destroy an instance with all that is in it.
    Destroy(GpuId, Slot),
    /// Switch MIG mode.
    SetMigMode(GpuId, bool),
    /// What does it draw, who uses it?
    Sample(GpuId),
}

impl Request {
    /// Tells whether it changes anything: such requests take longer, and must not be cut short.
    pub const fn mutates(&self) -> bool {
        match self {
            Self::List | Self::Read(_) | Self::Look(..) | Self::Advice(_) | Self::Sample(_) => {
                false
            }
            Self::Create(..) | Self::Cut(..) | Self::Destroy(..) | Self::SetMigMode(..) => true,
        }
    }

    /// Returns what it is called in metrics.
    pub const fn word(&self) -> &'static str {
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
pub enum Reply {
    /// To [`Request::List`].
    Gpus(Vec<GpuId>),
    /// To [`Request::Read`].
    Gpu(Box<GpuFacts>),
    /// To [`Request::Look`] and to changes of one place: what stands there now.
    One(Option<Box<InstanceFacts>>),
    /// To [`Request::Advice`]; `None` if the driver gives none.
    Advice(Option<u32>),
    /// To [`Request::Sample`].
    Sample(Box<Sample>),
    /// It was done.
    Done,
    /// The library refused.
    Failed(Fault),
}

/// One GPU as its driver tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Its UUID.
    pub gpu: GpuId,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Memory of the whole card.
    pub memory: Bytes,
    /// How it can be partitioned.
    pub mig: MigReport,
    /// What stands, by start.
    pub instances: Vec<InstanceFacts>,
    /// Where it sits on the bus, as the kernel log writes it: `0000:65:00`.
    pub bus: Option<String>,
    /// The minor number of its device file.
    pub minor: Option<u32>,
    /// What the driver advises (field 230); `None` where it doesn't say.
    pub recovery: Option<u32>,
    /// Whether a row of its memory waits for a reset to be remapped.
    pub remap_pending: bool,
    /// Whether its MIG mode ends with the boot, as on Hopper and later.
    pub mode_volatile: bool,
    /// Whether any process computes on it, with MIG on or off.
    pub used: bool,
}

/// One GPU instance as its driver tells it.
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
    pub parts: Vec<PartReport>,
    /// Memory that a job can use.
    pub memory: Bytes,
    /// Streaming multiprocessors.
    pub sms: u16,
    /// Processes that use it.
    pub users: Vec<User>,
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
pub struct User {
    /// Its pid.
    pub pid: u32,
    /// Whether it belongs to an attempt of ours, by its environment.
    pub ours: bool,
}

/// What a GPU draws and who uses it, at one moment. What the driver doesn't tell is `None`, never
/// zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Whether MIG mode is on.
    pub mig: bool,
    /// Memory in use on the whole card.
    pub memory_used: Option<Bytes>,
    /// How much of the last moments the card was busy, in percent; not told with MIG on.
    pub busy_percent: Option<u32>,
    /// Power of the whole card, in milliwatts.
    pub power_mw: Option<u64>,
    /// Energy of the whole card since its driver was loaded, in millijoules.
    pub energy_mj: Option<u64>,
    /// The instances; none with MIG off.
    pub places: Vec<PlaceSample>,
    /// Whether [`ProcessSample::load_percent`] tells loads: never with MIG on.
    pub loads_told: bool,
    /// The processes that hold a context, by pid.
    pub processes: Vec<ProcessSample>,
}

/// One instance in a [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceSample {
    /// The driver's number of the GPU instance: good until the next change of the layout.
    pub number: u32,
    /// Where it stands and what it is.
    pub slot: Slot,
    /// Memory in use.
    pub memory_used: Option<Bytes>,
}

/// One process in a [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// Its pid.
    pub pid: u32,
    /// The number of the GPU instance that it uses; `None` with MIG off.
    pub place: Option<u32>,
    /// Memory that it has allocated.
    pub memory: Option<Bytes>,
    /// How busy it keeps the whole card, in percent; zero where loads aren't told.
    pub load_percent: u32,
    /// The attempt that it belongs to, by its environment.
    pub attempt: Option<AttemptId>,
    /// Whether it is a daemon's MPS server: what it does, it does for its clients.
    #[serde(default)]
    pub mps_server: bool,
}
