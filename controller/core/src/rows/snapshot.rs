//! Everything that a leader reads from the store: once at its start, and again whenever its state
//! and the store may differ.

use std::collections::HashMap;
use std::sync::Arc;

use tessera_frames::cluster::{ArrayPosition, GpuReport};
use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::Slot;
use tessera_model::spec::JobSpec;
use tessera_model::{
    AttemptId, BootId, Bytes, DecisionId, GangMember, GpuId, JobId, Millis, NodeId, NodeName,
    PlanId, SliceId,
};
use tessera_placement::SharingRequest;

use super::growth::OpenGrowth;
use super::nodes::{LayoutPlanRow, RequestedLayout};
use super::overrides::AdminOverrideRow;
use super::preemptions::{OpenPreemption, SentBackJob};
use super::submitted::{OwnMemory, SubmittedJob};
use crate::predictions::{JobCheckpoint, MemorySample, RunSample};

/// A stored node.
#[derive(Clone, Debug)]
pub struct NodeRow {
    /// Its id.
    pub node: NodeId,
    /// The name under which the node joined.
    pub name: NodeName,
    /// Counts how often the node was lost or registered again.
    pub generation: u64,
    /// Whether it was declared lost.
    pub lost: bool,
    /// The id of its last boot.
    pub boot: BootId,
    /// Its agent's version.
    pub software: String,
    /// Its processor cores.
    pub cores: u32,
    /// The host's memory, as the agent reported it last.
    pub memory_bytes: u64,
    /// Whether its slices can be shared.
    pub mps: bool,
    /// Whether it can share slices kernel by kernel.
    pub kernel: bool,
    /// When it last registered, milliseconds since 1970.
    pub last_seen_unix: Millis,
}

/// A stored GPU.
#[derive(Clone, Debug)]
pub struct GpuRow {
    /// The node that has it.
    pub node: NodeId,
    /// The number of the newest plan.
    pub layout_gen: u64,
    /// The newest report.
    pub report: GpuReport,
}

/// A live attempt with its job.
#[derive(Clone, Debug)]
pub struct LiveRow {
    /// The attempt that had not ended when the snapshot was read.
    pub attempt: AttemptId,
    /// The job that the attempt belongs to.
    pub job: JobId,
    /// The job's state.
    pub state: JobState,
    /// The attempt's number.
    pub number: u32,
    /// The node on which it runs.
    pub node: NodeId,
    /// The generation that it was placed for.
    pub generation: u64,
    /// The GPU on which it runs.
    pub gpu: GpuId,
    /// Its slot; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// Its share of the slice; `None` if it has the slice to itself.
    pub share: Option<SharingRequest>,
    /// Its slice, once that exists.
    pub slice: Option<SliceId>,
    /// The decision that placed it.
    pub decision: DecisionId,
    /// How long ago its job was accepted.
    pub waited: Millis,
    /// How long ago its program was started.
    pub ran: Option<Millis>,
    /// How much of its job was finished before it, in millionths.
    pub done: u32,
    /// The GPU memory that it was given; `None` if an earlier version placed it.
    pub gpu_memory: Option<Bytes>,
}

/// The launch specification of a job with its history.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    /// The job specification that its attempts run.
    pub spec: Arc<JobSpec>,
    /// Its index in its array.
    pub array: Option<ArrayPosition>,
    /// Its membership in its gang.
    pub gang: Option<GangMember>,
    /// W3C trace context of its submit.
    pub traceparent: Option<String>,
    /// How many retries it has used up.
    pub charged: u32,
    /// How many attempts ended without the job's fault.
    pub uncharged: u32,
    /// How many attempts it had.
    pub attempts: u32,
    /// Whether its time limit was changed after its submit.
    pub relimited: bool,
    /// Why it runs again.
    pub restart_reason: Option<Outcome>,
    /// How long ago it was accepted.
    pub waited: Millis,
    /// How much of it is checkpointed, in millionths.
    pub done: u32,
    /// What its own attempts showed about its memory.
    pub own: OwnMemory,
}

/// A plan that is under way.
#[derive(Clone, Debug)]
pub struct OpenPlan {
    /// Its id.
    pub plan: PlanId,
    /// The GPU that gets another layout.
    pub gpu: GpuId,
    /// The requested layout, if an administrator requested it.
    pub requested_layout: Option<OpenLayoutRequest>,
}

/// A requested layout whose plan is under way.
#[derive(Clone, Debug)]
pub struct OpenLayoutRequest {
    /// The plan, to be sent again.
    pub row: LayoutPlanRow,
    /// The request.
    pub requested: RequestedLayout,
}

/// All rows that a new leader needs.
#[derive(Clone, Debug, Default)]
pub struct StoreSnapshot {
    /// All nodes that have registered.
    pub nodes: Vec<NodeRow>,
    /// All GPUs that nodes have reported.
    pub gpus: Vec<GpuRow>,
    /// Jobs that are queued.
    pub waiting: Vec<SubmittedJob>,
    /// Live attempts.
    pub live: Vec<LiveRow>,
    /// The launch specifications of the live attempts.
    pub launch_specs: HashMap<JobId, LaunchSpec>,
    /// Plans under way.
    pub plans: Vec<OpenPlan>,
    /// Administrative overrides that are set or cleared.
    pub overrides: Vec<AdminOverrideRow>,
    /// How long placement is still held (rule F14).
    pub hold_left: Millis,
    /// How long leases of earlier leaders may still run on silent nodes.
    pub granted_left: Millis,
    /// The generation below which nodes are lost (rule F14).
    pub generation_min: u64,
    /// Earlier runs, the oldest first.
    pub runs: Vec<RunSample>,
    /// The memory of those runs, the oldest first.
    pub memory_samples: Vec<MemorySample>,
    /// The durations of tasks' migrations, the oldest first.
    pub migrations: Vec<(String, Millis)>,
    /// Checkpoints of unfinished jobs.
    pub checkpoints: Vec<JobCheckpoint>,
    /// Predictions of the memory of unfinished jobs whose outcome is open.
    pub growths: Vec<OpenGrowth>,
    /// Attempts that were requested to end in favour of other jobs.
    pub preemptions: Vec<OpenPreemption>,
    /// Unfinished jobs that were sent back to the queue before.
    pub sent_back: Vec<SentBackJob>,
}
