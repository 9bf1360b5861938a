//! Nodes, their GPUs, and what stands on those.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::OperatorWord;

/// One machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// `available`, `connecting` (not yet reported), `silent` (no word, its lease still runs)
    /// or `lost`.
    pub state: String,
    /// Version of its agent.
    pub agent_version: String,
    /// Processor cores.
    pub cores: u32,
    /// Memory.
    pub memory_bytes: u64,
    /// Whether it has NVIDIA's MPS control program, so that jobs can share slices there.
    #[serde(default)]
    pub mps: bool,
    /// Its generation: rises each time it is declared lost.
    pub generation: u64,
    /// When it was last heard of.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_seen_at: Option<OffsetDateTime>,
    /// Set while an operator keeps new work away from it.
    #[serde(default)]
    pub drained: Option<OperatorWord>,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
}

/// The machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    /// By name.
    pub items: Vec<Node>,
}

/// One GPU and its layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// Its UUID.
    pub id: String,
    /// Its node.
    pub node: String,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Memory of the whole card.
    pub memory_bytes: u64,
    /// `healthy`, `unresponsive` or `faulty`.
    pub health: String,
    /// What is wrong, if something is.
    pub health_text: Option<String>,
    /// `on`, `off` or `unsupported`.
    pub mig: String,
    /// How many memory slices it has (0 without MIG).
    pub memory_slices: u8,
    /// Whether its layout is being changed.
    pub changing: bool,
    /// Set while an operator keeps new work away from it.
    #[serde(default)]
    pub drained: Option<OperatorWord>,
    /// Set while an operator, or its node by itself, keeps it out of use.
    #[serde(default)]
    pub quarantined: Option<OperatorWord>,
    /// Set while an operator keeps its layout as it is.
    #[serde(default)]
    pub pinned: Option<OperatorWord>,
    /// What went wrong on it lately, oldest first; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultView>,
    /// How many full layouts stay reachable without destroying anything.
    pub reachability: Option<u32>,
    /// What stands on it, by first memory slice.
    pub instances: Vec<Instance>,
    /// Profiles that it offers.
    pub profiles: Vec<ProfileView>,
}

/// Something that went wrong on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FaultView {
    /// When it was first seen.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// `xid 79`, `nvml CALL code 15`, or `silence` if the driver didn't answer in time.
    pub cause: String,
    /// First memory slice of the instance that it struck; absent if it struck the whole GPU.
    pub start: Option<u8>,
    /// The attempts that it hit.
    pub attempts: Vec<String>,
    /// What was done: `record`, `restart_app`, `drain`, `reset_gpu` or `restart_node`.
    pub action: String,
    /// How often it came; equal faults in a row are one.
    pub times: u32,
    /// One sentence on it.
    pub text: String,
}

/// The GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gpus {
    /// By node and index.
    pub items: Vec<Gpu>,
}

/// One instance of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// Profile, or `whole GPU`.
    pub profile: String,
    /// First memory slice.
    pub start: u8,
    /// Memory slices.
    pub size: u8,
    /// As `CUDA_VISIBLE_DEVICES` takes it.
    pub slice: Option<String>,
    /// Memory.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub sms: Option<u16>,
    /// `idle`, `taken`, `shared`, `cut` (into compute instances), `foreign`, `stuck`, `quarantined`, `leaving` or `unfinished`.
    pub state: String,
    /// What the driver said when it could not be destroyed or completed, if it is stuck; or whose
    /// processes use it, if it is foreign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Set while an operator keeps it out of use.
    #[serde(default)]
    pub quarantined: Option<OperatorWord>,
    /// The job that has it.
    pub job_id: Option<u64>,
    /// That job's name.
    pub job_name: Option<String>,
    /// The jobs that share it, in the order in which they came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sharers: Vec<SharerView>,
    /// Its compute instances by start, if an operator had it cut into several: each takes a job
    /// that names it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<ComputeView>,
}

/// One of several compute instances of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ComputeView {
    /// What jobs call it, such as `1c.3g.20gb`.
    pub name: String,
    /// First compute slice of the GPU instance.
    pub start: u8,
    /// Compute slices.
    pub slices: u8,
    /// As `CUDA_VISIBLE_DEVICES` takes it.
    pub slice: Option<String>,
    /// Streaming multiprocessors.
    pub sms: u16,
    /// What is counted for it of the GPU instance's memory, which all of them hold together:
    /// nothing keeps a program to it.
    pub memory_bytes: u64,
    /// The job that has it.
    pub job_id: Option<u64>,
    /// That job's name.
    pub job_name: Option<String>,
    /// Whose job that is; all jobs on one GPU instance are of one user.
    pub user: Option<String>,
}

/// One job that shares an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharerView {
    /// The job.
    pub job_id: u64,
    /// Its name.
    pub job_name: Option<String>,
    /// Whose it is; all sharers of an instance are of one user.
    pub user: String,
    /// Its share of the instance's multiprocessors, in percent; none, if the jobs take turns kernel
    /// by kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Its memory limit.
    pub memory_bytes: u64,
}

/// One profile of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    /// Its name.
    pub name: String,
    /// Memory of an instance.
    pub memory_bytes: u64,
    /// Compute slices.
    pub compute_slices: u8,
    /// Memory slices.
    pub memory_slices: u8,
    /// First memory slices on which an instance may start.
    pub starts: Vec<u8>,
    /// How many more can be cut beside everything that stands.
    #[serde(default)]
    pub fits_now: u32,
}

/// One change of a GPU's layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LayoutChange {
    /// The plan.
    pub plan: String,
    /// The GPU.
    pub gpu: String,
    /// Its node.
    pub node: String,
    /// When it was ordered.
    #[serde(with = "time::serde::rfc3339")]
    pub ordered_at: OffsetDateTime,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// `ordered`, `done`, `failed` or `refused`.
    pub state: String,
    /// What was to be done, such as `destroy 4g.20gb@0`.
    pub steps: Vec<String>,
    /// For which job.
    pub job_id: Option<u64>,
    /// The decision that asked for it.
    pub decision: Option<String>,
    /// Why it failed.
    pub detail: Option<String>,
    /// Who asked for it, if an operator did.
    #[serde(default)]
    pub requested_by: Option<String>,
    /// Why, if an operator said it.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Changes of layouts, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LayoutChanges {
    /// The changes.
    pub items: Vec<LayoutChange>,
    /// Give it as `cursor` to get the next page.
    pub next_cursor: Option<String>,
}

/// An administrator's explicit switch of MIG mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigModeRequest {
    /// On or off.
    pub on: bool,
}
