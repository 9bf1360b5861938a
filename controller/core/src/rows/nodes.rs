//! Nodes that register, and plans for the layouts of their GPUs.

use tessera_model::mig::{Layout, PlanStep};
use tessera_model::{AttemptId, BootId, DecisionId, GpuId, JobId, NodeId, NodeName, PlanId};

/// A node at its registration.
#[derive(Clone, Debug)]
pub struct NodeRegistration {
    /// Its id, from its certificate.
    pub node: NodeId,
    /// Its name, from its certificate.
    pub name: NodeName,
    /// The id of its current boot.
    pub boot: BootId,
    /// Its new generation.
    pub generation: u64,
    /// Its agent's version.
    pub software: String,
    /// Its processor cores.
    pub cores: u32,
    /// The host's memory, as the agent reports it.
    pub memory_bytes: u64,
    /// Whether its slices can be shared.
    pub mps: bool,
    /// Whether it can share slices kernel by kernel.
    pub kernel: bool,
}

/// A layout plan for a GPU.
#[derive(Clone, Debug)]
pub struct LayoutPlanRow {
    /// Its id.
    pub plan: PlanId,
    /// The GPU that gets another layout.
    pub gpu: GpuId,
    /// The node that has the GPU.
    pub node: NodeId,
    /// Its number, above those of all earlier plans on this GPU.
    pub layout_gen: u64,
    /// The plan's steps.
    pub steps: Vec<PlanStep>,
    /// The steps as text.
    pub steps_text: Vec<String>,
    /// The job for which it is made, the first of several.
    pub job: Option<JobId>,
    /// The attempt for which it is made.
    pub attempt: Option<AttemptId>,
    /// The decision that led to it.
    pub decision: Option<DecisionId>,
    /// The requested layout, if an administrator requested it.
    pub requested: Option<RequestedLayout>,
}

/// A layout that an administrator requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedLayout {
    /// The administrator.
    pub by: String,
    /// The reason, as text for people.
    pub reason: Option<String>,
    /// All desired instances of the GPU.
    pub layout: Layout,
    /// Whether the layout is kept when jobs would need another.
    pub pin: bool,
}

/// A plan that ended.
#[derive(Clone, Debug)]
pub struct EndedPlan {
    /// The plan that ended.
    pub plan: PlanId,
    /// `done`, `failed` or `refused`.
    pub state: &'static str,
    /// Why it failed, as text for people.
    pub detail: Option<String>,
}
