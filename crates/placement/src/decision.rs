//! The decisions of policies and their reasons.

use serde::{Deserialize, Serialize};
use tessera_model::mig::compute::ComputeSlot;
use tessera_model::mig::{Layout, PlanStep, Slot};
use tessera_model::share::{SliceShare, SmPercent};
use tessera_model::spec::Priority;
use tessera_model::{Bytes, GpuId, JobId, Millis, NodeName};

use crate::preemption::Preemption;

/// The most candidates that one explanation names; the others are counted.
pub const CANDIDATES_MAX: usize = 8;

/// One action for a job or a GPU, or the reason why a job waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// Start the job there.
    Start {
        /// The job that starts.
        job: JobId,
        /// The instance, or part of one.
        place: JobPlacement,
        /// Why it starts there.
        why: Explanation,
    },
    /// Leave the job in the queue.
    Wait {
        /// The job that goes on waiting.
        job: JobId,
        /// Why it waits.
        reason: WaitReason,
        /// The explanation for people.
        why: Explanation,
    },
    /// Change the layout and the jobs of a GPU, and move running jobs if necessary. Only policies
    /// that move running jobs return this.
    Reshape {
        /// The instances and jobs that the GPU is to have.
        reshape: Reshape,
        /// The explanation for people.
        why: Explanation,
    },
    /// Send running jobs back to the queue, so that a job of a higher class gets their place.
    Preempt {
        /// The jobs, and the place.
        preemption: Box<Preemption>,
        /// The explanation for the job that gets the place.
        why: Explanation,
    },
}

impl Decision {
    /// Returns the GPU that it is about.
    pub const fn gpu(&self) -> Option<&GpuId> {
        match self {
            Self::Start { place, .. } => Some(&place.gpu),
            Self::Reshape { reshape, .. } => Some(&reshape.gpu),
            Self::Preempt { preemption, .. } => Some(&preemption.place.gpu),
            Self::Wait { .. } => None,
        }
    }
}

/// The instances and jobs that one GPU is to have.
///
/// A job that runs there already, in the same slot with the same part of it, is not disturbed
/// (unless [`StayingJobs`] states otherwise). A job that is named with another slot is stopped and
/// continues there. A running job that isn't named returns to the queue. All reshapes of a round
/// are one change, so two jobs may swap places: a job leaves its old GPU before it is placed on
/// another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshape {
    /// The GPU that gets another layout.
    pub gpu: GpuId,
    /// All instances that the GPU is to have; empty for a GPU with MIG off.
    pub layout: Layout,
    /// The jobs with their placements.
    #[serde(rename = "seats")]
    pub placements: Vec<PlacedJob>,
    /// How long all of them first run together under MPS on the whole GPU, to be measured
    /// (MISO); `None` if nothing has to be measured.
    pub trial: Option<Millis>,
    /// Whether jobs that keep their placement are stopped.
    pub stayers: StayingJobs,
}

/// Whether jobs whose placement a [`Reshape`] doesn't change are stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StayingJobs {
    /// They continue to run: only the necessary instances are destroyed and created.
    #[default]
    RunOn,
    /// The whole GPU is repartitioned, and they are stopped as well.
    Restart,
}

/// One job's placement in a [`Reshape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedJob {
    /// The job that has the placement.
    pub job: JobId,
    /// The instance; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// Its part of the instance's multiprocessors under MPS; `None` if it has all of them.
    pub sm: Option<SmPercent>,
    /// Its priority in the instance's kernel queue under kernel-level sharing, also before there is
    /// a co-runner. Such a job has no percentage of the multiprocessors.
    #[serde(rename = "turn", default, skip_serializing_if = "Option::is_none")]
    pub kernel_priority: Option<Priority>,
}

impl PlacedJob {
    /// Returns the placement of a job that has the instance to itself.
    pub const fn alone(job: JobId, slot: Slot) -> Self {
        Self { job, slot: Some(slot), sm: None, kernel_priority: None }
    }

    /// Returns whether another job may share the same instance.
    pub const fn shares(&self) -> bool {
        self.sm.is_some() || self.kernel_priority.is_some()
    }
}

/// The placement of an attempt, with the layout steps that come first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlacement {
    /// The GPU on which the job runs.
    pub gpu: GpuId,
    /// The instance's slot; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// Layout steps before the launch; empty if the instance exists.
    pub steps: Vec<PlanStep>,
    /// Its compute instance, where the instance is cut into several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<ComputeSlot>,
    /// Its share of the slice, if the round decided that it shares (`--share auto`). Jobs with a
    /// fixed way of sharing have their part in their request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<SliceShare>,
}

/// The reason why a job waits; each is a stable value in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// Every fitting slice is taken.
    Resources,
    /// A job ahead of it in the queue waits, and the policy keeps the order.
    Priority,
    /// Memory is free, but running jobs leave no valid position for an instance.
    MigFragmentation,
    /// The GPU that it would get is being changed.
    AwaitingRepartition,
    /// Its account holds as many compute slices as its quota allows.
    Quota,
    /// Its slice would exceed the cluster's power cap.
    PowerCap,
    /// No available node has what it needs, but an unavailable one does.
    NodeUnavailable,
    /// Every suitable GPU on available nodes is blocked by instances that Tessera must not touch,
    /// or by its MIG mode.
    GpuBlocked,
    /// Only GPUs that operators drain have what it needs.
    NodeDrained,
    /// Only GPUs that operators keep out of use have what it needs.
    GpuQuarantined,
    /// No node that was ever seen has what it needs.
    BadConstraints,
    /// No job is placed until the leases that a database rollback lost have expired. Only the
    /// leader gives this reason, never a policy.
    PlacementHeld,
    /// Its user set a time before which it may not start. Only the leader gives this reason.
    BeginTime,
    /// As many tasks of its array run as its limit allows. Only the leader gives this reason.
    ArrayTaskLimit,
    /// Jobs that it depends on have not ended or not started. Only the leader gives this reason.
    Dependency,
    /// Jobs that it depends on ended so that its condition can never hold. Only the leader gives
    /// this reason.
    DependencyNeverSatisfied,
}

impl WaitReason {
    /// Returns the value in the API.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Priority => "priority",
            Self::MigFragmentation => "mig_fragmentation",
            Self::AwaitingRepartition => "awaiting_repartition",
            Self::Quota => "quota",
            Self::PowerCap => "power_cap",
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

    /// The reasons of jobs that wait only because other jobs have the slices.
    pub const LACKS_SLICES: [Self; 3] = [Self::Resources, Self::Priority, Self::MigFragmentation];

    /// Returns whether the job waits only because other jobs have the slices.
    pub fn is_lack_of_slices(self) -> bool {
        Self::LACKS_SLICES.contains(&self)
    }

    /// Returns whether the wait ends without an operator, so that the job keeps its position in the
    /// queue.
    pub const fn goes_by_itself(self) -> bool {
        match self {
            Self::Resources
            | Self::Priority
            | Self::MigFragmentation
            | Self::AwaitingRepartition
            | Self::PowerCap => true,
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

/// The reasons of one decision for its user, bounded in size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The policy that decided.
    pub policy: String,
    /// One sentence with the numbers that decided.
    pub summary: String,
    /// What would let the job start, if it waits.
    pub would_start_if: Option<String>,
    /// The candidates that were considered, best first, at most [`CANDIDATES_MAX`].
    pub candidates: Vec<PlacementCandidate>,
    /// How many more candidates were considered.
    pub candidates_left_out: u32,
}

/// One placement that was considered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementCandidate {
    /// The GPU that would be used.
    pub gpu: GpuId,
    /// Name of the node that has the GPU.
    pub node: NodeName,
    /// The GPU's index on the node.
    pub gpu_index: u32,
    /// Profile name, or `whole GPU`.
    pub profile: String,
    /// First memory slice, if a specific one is meant.
    pub start: Option<u8>,
    /// Memory of the instance.
    pub memory: Bytes,
    /// Whether this one was taken.
    pub chosen: bool,
    /// Why it was preferred or ruled out, as a stable value: `chosen`, `too_small`,
    /// `larger_than_needed`, `busy`, `fewer_futures`, `needs_repartition`, `later_in_order`,
    /// `changing`, `unavailable`, `drained`, `quarantined`, `kept`, `foreign`, `stuck`,
    /// `cut`, `other_user`, `pinned`, `leaving`.
    pub verdict: String,
    /// `R` after taking it (MIGM §4), where it was computed.
    pub reachability_after: Option<u32>,
}
