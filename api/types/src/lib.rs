//! Bodies of requests and responses. Times are UTC (RFC 3339), sizes are bytes, durations are
//! seconds unless the name states otherwise, states are lower-case words.

#![forbid(unsafe_code)]

mod attempts;
mod certificates;
mod explain;
mod identity;
mod jobs;
mod memory;
mod nodes;
mod operator;
mod past;
mod power;
mod predictions;
mod records;
mod report;
mod series;
mod sessions;
mod submit;
mod task_kernels;
mod usage;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::attempts::{
    AttemptView, ColocationPredictionView, KernelQueueUse, MemoryPredictionView, PredictionView,
};
pub use self::certificates::{
    AuthorityView, FormerAuthorityView, InvitationRequest, NodeCertificateList,
    NodeCertificateView, NodeInvitation, NodeRevoked, RotationRequest,
};
pub use self::explain::{AlternativeView, CandidateView, JobExplanation, SizeView};
pub use self::identity::{
    AuditEntry, AuditFilter, AuditPage, TokenCreated, TokenList, TokenRequest, TokenView, WhoAmI,
};
pub use self::jobs::{
    GangView, JobCounts, JobDetail, JobEventView, JobEvents, JobFilter, JobPage, JobScriptView,
    JobView,
};
pub use self::memory::{
    AttemptMemoryView, EfficiencyQuery, EfficiencyReport, GrowthView, JobMemory, MemoryBandView,
    MemoryPointView, TaskEfficiency,
};
pub use self::nodes::{
    ComputeView, FaultView, GpuDetails, GpuListing, InstanceDetails, LayoutPlan, LayoutPlans,
    MigModeRequest, NodeDetails, NodeListing, ProfileView, SharerView,
};
pub use self::operator::{
    AdminOverrideView, ClusterEvent, ClusterEvents, DoctorFinding, DoctorReport,
    GpuAvailabilityView, LayoutApplied, LayoutRequest, OperatorRequest, OperatorResult,
    PlanPreviewView, ProfileAvailabilityView,
};
pub use self::past::{
    DecisionPage, DecisionView, PastAttempt, PastGang, PastJob, PastJobs, RecordedRound,
    RecordedRounds,
};
pub use self::power::PowerReport;
pub use self::predictions::{
    ColocationOutcomes, MemoryOutcomes, PredictionOutcomes, PredictionReport, PredictorView,
};
pub use self::records::{
    JobRecord, JobRecords, RecordFilter, RequestRecord, RunRecord, StepReceipt, StepRecord,
    StepReport,
};
pub use self::report::{AccountingReport, ReportFigures, ReportLine, ReportQuery};
pub use self::series::{
    AttemptSeries, ClusterSeries, GpuSeries, JobFigures, JobSeries, SeriesPoint, SeriesQuery,
};
pub use self::sessions::{
    InteractiveRequest, SessionCommand, SessionEvent, SessionOpening, TerminalView,
};
pub use self::submit::{
    ArrayRange, ContainerRequest, DeadlineView, EarlySignalRequest, GangRequest, RankUpdateView,
    RankView, SubmitRequest, SubmitResponse, UpdateRequest,
};
pub use self::task_kernels::{KernelTask, KernelTasks, KernelTime, KernelView, TaskKernels};
pub use self::usage::{AccountUsage, UsageReport, UserUsage};

/// An overview of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterInfo {
    /// The controller's version.
    pub version: String,
    /// The controller's instance id.
    pub controller: String,
    /// The placement policy.
    pub policy: String,
    /// The leader's epoch.
    pub epoch: u64,
    /// Number of nodes by state.
    pub nodes: BTreeMap<String, u32>,
    /// Number of GPUs.
    pub gpus: u32,
    /// Partitions in which a job that requests one GPU may start on a part of one; `*` stands for all jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_gpus: Vec<String>,
    /// How a job without `share` is treated: `exclusive` or `auto`. Older controllers omit it.
    #[serde(default = "exclusive")]
    pub share_default: String,
    /// The partitions that the operator's settings define.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionView>,
    /// Limits and protections that jobs don't have everywhere, each with the nodes that lack it. A node that is not
    /// connected is not listed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub isolation_gaps: BTreeMap<String, Vec<String>>,
}

fn exclusive() -> String {
    "exclusive".to_owned()
}

/// A partition, as batch schedulers call a part of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionView {
    /// The name that `--partition` takes.
    pub name: String,
    /// Its nodes, such as `n1,gpu[1-3]`; all nodes, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// The model of its GPUs; any, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
}

/// An error in the format of RFC 9457.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemDetails {
    /// Stable name of the kind of error, such as `urn:tessera:problem:bad-field`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of error as text.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What was wrong with this request.
    pub detail: String,
    /// The invalid field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What is expected instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// Id of the request's trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}
