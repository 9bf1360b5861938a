//! Nodes, their GPUs, and the instances of these.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::AdminOverrideView;

/// One machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeDetails {
    /// The node's name, unique in the cluster.
    pub name: String,
    /// UUID of the node, which stays the same if it joins again.
    pub id: String,
    /// `available`, `connecting` (not yet reported), `silent` (no reports, its lease still runs)
    /// or `lost`.
    pub state: String,
    /// Version of the agent that is connected, or was last.
    pub agent_version: String,
    /// Processor cores.
    pub cores: u32,
    /// The host's memory.
    pub memory_bytes: u64,
    /// Whether it has NVIDIA's MPS control program, so that jobs can share slices there.
    #[serde(default)]
    pub mps: bool,
    /// Which limits and protections its jobs don't have: words such as `memory_limit`. Absent while it is not
    /// connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation_gaps: Option<Vec<String>>,
    /// Its generation: rises each time it is declared lost.
    pub generation: u64,
    /// When it last reported.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_seen_at: Option<OffsetDateTime>,
    /// Set while an operator keeps new work away from it.
    #[serde(default)]
    pub drained: Option<AdminOverrideView>,
    /// Set while it is kept out of use, since it claimed numbers that the controller never assigned
    /// to it.
    #[serde(default)]
    pub quarantined: Option<AdminOverrideView>,
    /// The GPUs that the agent reported last.
    pub gpus: Vec<GpuDetails>,
}

/// The machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeListing {
    /// By name.
    pub items: Vec<NodeDetails>,
}

/// One GPU and its layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuDetails {
    /// Its UUID.
    pub id: String,
    /// Name of the node that has it.
    pub node: String,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name of the GPU model.
    pub model: String,
    /// Memory of the whole GPU.
    pub memory_bytes: u64,
    /// `healthy`, `unresponsive` or `faulty`.
    pub health: String,
    /// What is wrong, unless it is healthy.
    pub health_text: Option<String>,
    /// `on`, `off` or `unsupported`.
    pub mig: String,
    /// How many memory slices it has (0 without MIG).
    pub memory_slices: u8,
    /// Whether its layout is being changed.
    pub changing: bool,
    /// Set while an operator keeps new work away from it.
    #[serde(default)]
    pub drained: Option<AdminOverrideView>,
    /// Set while an operator or its node keeps it out of use.
    #[serde(default)]
    pub quarantined: Option<AdminOverrideView>,
    /// Set while an operator pins its layout.
    #[serde(default)]
    pub pinned: Option<AdminOverrideView>,
    /// Its recent faults, oldest first; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultView>,
    /// Number of full layouts that are reachable without destroying an instance.
    pub reachability: Option<u32>,
    /// Its instances, by first memory slice.
    pub instances: Vec<InstanceDetails>,
    /// Profiles that it offers.
    pub profiles: Vec<ProfileView>,
}

/// A fault of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FaultView {
    /// When it was first seen.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// `xid 79`, `nvml CALL code 15`, or `silence` if the driver didn't answer in time.
    pub cause: String,
    /// First memory slice of the affected instance; absent if the whole GPU is affected.
    pub start: Option<u8>,
    /// Ids of the affected attempts.
    pub attempts: Vec<String>,
    /// The action taken: `record`, `restart_app`, `drain`, `reset_gpu` or `restart_node`.
    pub action: String,
    /// How often it occurred; equal faults in a row are counted as one.
    pub times: u32,
    /// The fault in one sentence.
    pub text: String,
}

/// GPUs, and the node of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuListing {
    /// By node and index.
    pub items: Vec<GpuDetails>,
}

/// One instance of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceDetails {
    /// Profile, or `whole GPU`.
    pub profile: String,
    /// First memory slice.
    pub start: u8,
    /// Memory slices.
    pub size: u8,
    /// The value for `CUDA_VISIBLE_DEVICES`.
    pub slice: Option<String>,
    /// Memory that a program on it can use.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub sms: Option<u16>,
    /// `idle`, `taken`, `shared`, `cut` (into compute instances), `foreign`, `stuck`,
    /// `quarantined`, `leaving` or `unfinished`.
    pub state: String,
    /// If it is stuck: the driver's error when it could not be destroyed or completed. If it is
    /// foreign: the processes that use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Set while an operator keeps it out of use.
    #[serde(default)]
    pub quarantined: Option<AdminOverrideView>,
    /// The job that it is assigned to.
    pub job_id: Option<u64>,
    /// That job's name.
    pub job_name: Option<String>,
    /// The jobs that share it, in order of their placement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sharers: Vec<SharerView>,
    /// Its compute instances by start, if an operator split it into several. Each accepts one job
    /// that requests it by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<ComputeView>,
}

/// One of several compute instances of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ComputeView {
    /// The name by which jobs request it, such as `1c.3g.20gb`.
    pub name: String,
    /// First compute slice of the GPU instance.
    pub start: u8,
    /// Compute slices.
    pub slices: u8,
    /// The value for `CUDA_VISIBLE_DEVICES`.
    pub slice: Option<String>,
    /// Streaming multiprocessors.
    pub sms: u16,
    /// Its share of the GPU instance's memory for accounting. All compute instances use that
    /// memory together, and no limit is enforced.
    pub memory_bytes: u64,
    /// The job that it is assigned to.
    pub job_id: Option<u64>,
    /// That job's name.
    pub job_name: Option<String>,
    /// User of that job; all jobs on one GPU instance have the same user.
    pub user: Option<String>,
}

/// One job that shares an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharerView {
    /// Number of the job that has this share.
    pub job_id: u64,
    /// Name of that job, if the caller may see it.
    pub job_name: Option<String>,
    /// Its user; all sharers of an instance have the same user.
    pub user: String,
    /// Its share of the instance's multiprocessors, in percent; absent with kernel-level sharing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Its memory limit.
    pub memory_bytes: u64,
}

/// One profile of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    /// NVIDIA's name of it, such as `1g.5gb`.
    pub name: String,
    /// Memory of an instance.
    pub memory_bytes: u64,
    /// How many of the GPU's compute slices it takes.
    pub compute_slices: u8,
    /// How many of the GPU's memory slices it takes.
    pub memory_slices: u8,
    /// First memory slices on which an instance may start.
    pub starts: Vec<u8>,
    /// Number of further instances that fit next to the existing ones.
    #[serde(default)]
    pub fits_now: u32,
}

/// One plan that changes a GPU's layout, and its progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LayoutPlan {
    /// The plan's id.
    pub plan: String,
    /// UUID of the GPU that gets another layout.
    pub gpu: String,
    /// Name of the node that has the GPU.
    pub node: String,
    /// When the plan was committed.
    #[serde(with = "time::serde::rfc3339")]
    pub planned_at: OffsetDateTime,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// `open`, `done`, `failed` or `refused`.
    pub state: String,
    /// The plan's steps, such as `destroy 4g.20gb@0`.
    pub steps: Vec<String>,
    /// The job that needs it.
    pub job_id: Option<u64>,
    /// The decision that contains it.
    pub decision: Option<String>,
    /// Why it failed.
    pub detail: Option<String>,
    /// The operator who requested it, if one did.
    #[serde(default)]
    pub requested_by: Option<String>,
    /// The operator's reason.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Layout plans, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LayoutPlans {
    /// The plans.
    pub items: Vec<LayoutPlan>,
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
