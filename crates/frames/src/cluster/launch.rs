//! The order that starts an attempt.

use serde::{Deserialize, Serialize};
use tessera_model::life::Outcome;
use tessera_model::mig::Slot;
use tessera_model::share::{MpsShare, SmPercent};
use tessera_model::spec::{Class, Priority, RunSpec};
use tessera_model::{AttemptId, Bytes, GpuId, JobId, NodeName, SliceId};

/// Everything that a node needs to run one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchOrder {
    /// The leader's epoch (rule F15).
    pub epoch: u64,
    /// The generation of the node that the placement was made for (rule F7).
    pub generation: u64,
    /// Which attempt (rule F13).
    pub attempt: AttemptId,
    /// The job that it belongs to.
    pub job: JobId,
    /// The attempt's number, for people: 1 for the first.
    pub number: u32,
    /// The GPU that has the slice.
    pub gpu: GpuId,
    /// The instance; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// The slice, by the UUID that it must still have (G11).
    pub slice: SliceId,
    /// The array and this task's place in it.
    pub array: Option<ArrayPosition>,
    /// What people call the job.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// How to run it, as the user specified it.
    pub run: RunSpec,
    /// Why the job runs again, for the program to know; `None` for a first run.
    pub restart_reason: Option<Outcome>,
    /// W3C trace context that the launch continues.
    pub traceparent: Option<String>,
    /// Its part of the slice; `None` if it has the slice to itself.
    pub share: Option<MpsShare>,
    /// Its place in its slice's kernel queue; `None` if it has none.
    pub kernel: Option<KernelQueueSpec>,
    /// Its place among the processes of a job over several GPUs; `None` if it is alone.
    pub gang: Option<GangPosition>,
    /// How often its job ran out of GPU memory before.
    pub oom_count: u32,
}

/// One process's place in its gang, as `torchrun` would set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangPosition {
    /// The gang's number.
    pub gang: JobId,
    /// Its number among all, from 0.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// Its number among those on its node, from 0.
    pub local_rank: u32,
    /// How many there are on its node, as on every other.
    pub local_size: u32,
    /// Its node's number among those of the gang, from 0.
    pub node_rank: u32,
    /// The nodes' names, by their numbers.
    pub nodes: Vec<NodeName>,
    /// Where rank 0 is reached.
    pub master: String,
    /// A port on rank 0's node at which they may meet.
    pub port: u16,
    /// The GPUs and slices of those on its node, by their numbers there; none where each process has only its
    /// own.
    pub devices: Vec<GangDevice>,
}

/// What one member of a gang holds on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangDevice {
    /// The GPU that the member has.
    pub gpu: GpuId,
    /// The instance; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// The slice, by its UUID.
    pub slice: SliceId,
}

impl GangPosition {
    /// Returns whether it only holds its slice for the process of rank 0.
    pub fn is_held_for_another(&self) -> bool {
        !self.devices.is_empty() && self.rank != 0
    }
}

/// What an attempt of the kernel tier is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelQueueSpec {
    /// The slice's memory, as a limit for the programs on it.
    pub memory: Bytes,
    /// Its percentage of the multiprocessors under MPS; `None` for the node's default.
    pub sm: Option<SmPercent>,
    /// Whether it never runs next to the slice's other jobs.
    pub exclusive: bool,
    /// Its queue: 0 (highest) to 9.
    pub priority: Priority,
    /// Latency or throughput.
    pub class: Class,
    /// What its user calls the task whose profile it uses; by default its program and parameters.
    pub task_key: Option<String>,
}

/// One task's place in its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayPosition {
    /// The array's number.
    pub array: JobId,
    /// This task's index.
    pub index: u32,
    /// How many tasks there are.
    pub count: u32,
    /// Smallest index.
    pub min: u32,
    /// Largest index.
    pub max: u32,
}
