//! What a policy sees.

use std::sync::Arc;

use tessera_model::mig::{Geometry, Slot, StateSpace};
use tessera_model::spec::{GpuAsk, Priority};
use tessera_model::{Bytes, GpuId, JobId, Millis, NodeName};

/// The cluster at one moment: every GPU that agents reported, in a fixed order (node name, then
/// index on the node). The order is part of the input: policies break ties by it.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    /// The GPUs.
    pub gpus: Vec<GpuView>,
}

/// One GPU as its agent last reported it, with what has been decided since laid over it.
#[derive(Clone, Debug)]
pub struct GpuView {
    /// Its UUID.
    pub id: GpuId,
    /// The node it is in.
    pub node: NodeName,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Memory of the whole card.
    pub memory: Bytes,
    /// Streaming multiprocessors of the whole card, if the driver says.
    pub sms: Option<u16>,
    /// Reported profiles and placements; `None` where MIG is off or not supported.
    pub mig: Option<Arc<MigView>>,
    /// Whether new attempts may start here: its node is available and the GPU is healthy.
    pub available: bool,
    /// Whether a layout plan is under way: its layout can't be changed again until it ends.
    pub changing: bool,
    /// What stands on it. With MIG off: the whole GPU as one instance.
    pub instances: Vec<InstanceView>,
}

/// The partitioning rules of one GPU, shared by all GPUs of its model.
#[derive(Debug)]
pub struct MigView {
    /// As the agent reported it.
    pub geometry: Geometry,
    /// States and reachability of the plain profiles.
    pub space: StateSpace,
}

/// One instance, standing or promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceView {
    /// Where it stands; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// Memory that a job can use.
    pub memory: Bytes,
    /// What it is doing.
    pub state: InstanceState,
}

/// What an instance is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Nothing runs on it: a job may start, or it may be destroyed.
    Idle,
    /// A job has it: it runs there, is starting, or the instance is being made for it.
    Taken {
        /// By whom.
        job: JobId,
    },
    /// Somebody outside Tessera uses or made it: planned around, never touched.
    Foreign,
    /// It can't be used or destroyed until a person looks.
    Stuck,
}

impl InstanceState {
    /// Tells whether the instance must be left alone.
    pub const fn busy(&self) -> bool {
        !matches!(self, Self::Idle)
    }
}

/// A job that waits for a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedJob {
    /// Its number; the queue's order among equals.
    pub id: JobId,
    /// What it asks for.
    pub gpu: GpuAsk,
    /// 0 (highest) to 9.
    pub priority: Priority,
    /// When it was accepted, on the database's clock.
    pub submitted: Millis,
}
