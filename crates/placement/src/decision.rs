//! What a policy decides, and why.

use serde::{Deserialize, Serialize};
use tessera_model::mig::compute::ComputeSlot;
use tessera_model::mig::{Layout, PlanStep, Slot};
use tessera_model::share::{SliceShare, SmPercent};
use tessera_model::spec::Priority;
use tessera_model::{Bytes, GpuId, JobId, Millis, NodeName};

/// Most candidates that one explanation names; the rest are counted by reason.
pub const CANDIDATES_MAX: usize = 8;

/// One thing to do, or the reason to do nothing, for one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// Start the job there.
    Start {
        /// The job.
        job: JobId,
        /// The instance, or part of one.
        place: JobPlacement,
        /// Why there.
        why: Explanation,
    },
    /// Leave the job in the queue.
    Wait {
        /// The job.
        job: JobId,
        /// Until what.
        reason: WaitReason,
        /// The explanation for people.
        why: Explanation,
    },
    /// Give a GPU another layout and other jobs, moving those that run if need be. Only policies
    /// that move running jobs return this.
    Reshape {
        /// What is to stand and run.
        reshape: Reshape,
        /// The explanation for people.
        why: Explanation,
    },
}

impl Decision {
    /// Returns the GPU that it is about.
    pub const fn gpu(&self) -> Option<&GpuId> {
        match self {
            Self::Start { place, .. } => Some(&place.gpu),
            Self::Reshape { reshape, .. } => Some(&reshape.gpu),
            Self::Wait { .. } => None,
        }
    }
}

/// What is to stand and run on one GPU.
///
/// A job that runs there already, in the same slot with the same part of it, is not disturbed
/// (unless [`StayingJobs`] states otherwise). One in another slot is stopped and continues there. One that
/// isn't named goes back to the queue. All reshapes of a round are one change, so that two jobs may
/// change places: a job leaves its old GPU before it is placed on another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshape {
    /// The GPU.
    pub gpu: GpuId,
    /// Every instance that is to stand; empty for a GPU with MIG off.
    pub layout: Layout,
    /// Who is to run where.
    #[serde(rename = "seats")]
    pub placements: Vec<PlacedJob>,
    /// How long all of them first run together under MPS on the whole GPU, to be measured
    /// (MISO); none where nothing has to be measured.
    pub trial: Option<Millis>,
    /// What becomes of jobs that stay where they are.
    pub stayers: StayingJobs,
}

/// What becomes of jobs whose placement a [`Reshape`] leaves as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StayingJobs {
    /// They run on: only what has to be is destroyed and created.
    #[default]
    RunOn,
    /// The whole GPU is cut anew; they are stopped as well.
    Restart,
}

/// One job's place in a [`Reshape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedJob {
    /// The job.
    pub job: JobId,
    /// The instance; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// Its part of the instance's multiprocessors under MPS; `None` if it has all of them.
    pub sm: Option<SmPercent>,
    /// Where its kernels stand in the instance's queue, under kernel-level sharing, also before there is a co-runner;
    /// such a job has no part of the multiprocessors.
    #[serde(rename = "turn", default, skip_serializing_if = "Option::is_none")]
    pub kernel_priority: Option<Priority>,
}

impl PlacedJob {
    /// Returns the placement of a job that has the instance to itself.
    pub const fn alone(job: JobId, slot: Slot) -> Self {
        Self { job, slot: Some(slot), sm: None, kernel_priority: None }
    }

    /// Returns whether another job may sit on the same instance.
    pub const fn shares(&self) -> bool {
        self.sm.is_some() || self.kernel_priority.is_some()
    }
}

/// Where an attempt is to run, and what has to be made first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlacement {
    /// The GPU.
    pub gpu: GpuId,
    /// The instance's slot; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// Layout steps to take before the launch; empty if the instance stands ready.
    pub steps: Vec<PlanStep>,
    /// Its compute instance, where the instance is cut into several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<ComputeSlot>,
    /// Its part of the slice, where the round chose that it shares it (`--share auto`). Jobs with a fixed way of
    /// sharing have their part in their request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<SliceShare>,
}

/// Why a job waits; each is a stable word of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// Every fitting slice is taken.
    Resources,
    /// A job before it in the queue waits, and the policy keeps the order.
    Priority,
    /// Memory is free, but not in a shape that the running neighbours allow.
    MigFragmentation,
    /// The GPU that it would get is being changed.
    AwaitingRepartition,
    /// Its account holds as much as it may have at once.
    Quota,
    /// No available node has what it needs; some node that is away has.
    NodeUnavailable,
    /// The nodes are there, but every GPU that could hold it is kept from it: by instances that Tessera must
    /// not touch, or by its MIG mode.
    GpuBlocked,
    /// Only GPUs that operators drain have what it needs.
    NodeDrained,
    /// Only GPUs that operators keep out of use have what it needs.
    GpuQuarantined,
    /// No node that was ever seen has what it needs.
    BadConstraints,
    /// Nothing is placed at all, until leases of a time that the store lost have run out. Only the
    /// leader gives this reason, never a policy.
    PlacementHeld,
    /// Its user set a time before which it may not start. Only the leader gives this reason.
    BeginTime,
    /// As many tasks of its array run as may at a time. Only the leader gives this reason.
    ArrayTaskLimit,
    /// The jobs that it waits for have not ended, or not started. Only the leader gives this reason.
    Dependency,
    /// The jobs that it waits for ended in a way that never lets it start. Only the leader gives this reason.
    DependencyNeverSatisfied,
}

impl WaitReason {
    /// Returns the word that the API uses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Priority => "priority",
            Self::MigFragmentation => "mig_fragmentation",
            Self::AwaitingRepartition => "awaiting_repartition",
            Self::Quota => "quota",
            Self::NodeUnavailable => "node_unavailable",
            Self::GpuBlocked => "gpu_blocked",
            Self::NodeDrained => "node_drained",
            Self::GpuQuarantined => "gpu_quarantined",
            Self::BadConstraints => "bad_constraints",
            Self::PlacementHeld => "placement_held",
            Self::BeginTime => "begin_time",
            Self::ArrayTaskLimit => "array_task_limit",
            Self::Dependency => "dependency",
            Self::DependencyNeverSatisfied => "dependency_never_satisfied",
        }
    }

    /// Whether the wait ends without an operator, so that the job keeps its place in the queue.
    pub const fn goes_by_itself(self) -> bool {
        match self {
            Self::Resources
            | Self::Priority
            | Self::MigFragmentation
            | Self::AwaitingRepartition => true,
            Self::NodeUnavailable
            | Self::GpuBlocked
            | Self::NodeDrained
            | Self::GpuQuarantined
            | Self::BadConstraints
            | Self::Quota
            | Self::BeginTime
            | Self::ArrayTaskLimit
            | Self::Dependency
            | Self::DependencyNeverSatisfied
            | Self::PlacementHeld => false,
        }
    }
}

/// The reasons of one decision, bounded in size, in words that a user understands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The policy that decided.
    pub policy: String,
    /// One sentence with the numbers that decided.
    pub summary: String,
    /// What would start the job, for a job that waits.
    pub would_start_if: Option<String>,
    /// What was looked at, best first, at most [`CANDIDATES_MAX`].
    pub candidates: Vec<PlacementCandidate>,
    /// How many more were looked at.
    pub candidates_left_out: u32,
}

/// One place that was considered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementCandidate {
    /// The GPU.
    pub gpu: GpuId,
    /// Its node.
    pub node: NodeName,
    /// The GPU's index on the node.
    pub gpu_index: u32,
    /// Profile name, or `whole GPU`.
    pub profile: String,
    /// First memory slice, where one is meant.
    pub start: Option<u8>,
    /// Memory of the instance.
    pub memory: Bytes,
    /// Whether this one was taken.
    pub chosen: bool,
    /// What speaks for it, or what ruled it out, as a stable word: `chosen`, `too_small`,
    /// `larger_than_needed`, `busy`, `fewer_futures`, `needs_repartition`, `later_in_order`,
    /// `changing`, `unavailable`, `drained`, `quarantined`, `foreign`, `stuck`, `cut`,
    /// `other_user`.
    pub verdict: String,
    /// `R` after taking it (MIGM §4), where it was computed.
    pub reachability_after: Option<u32>,
}
