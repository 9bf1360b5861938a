//! Bodies of requests and answers. Times are UTC (RFC 3339), sizes are bytes, spans are
//! seconds unless the name says otherwise, states are lower-case words.

mod attempts;
mod explain;
mod jobs;
mod kernels;
mod nodes;
mod operator;
mod past;
mod predictions;
mod series;
mod submit;
pub mod usage;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::attempts::{
    Attempt, CompanyPredictionView, KernelUse, MemoryPredictionView, PredictionView,
};
pub use self::explain::{AlternativeView, CandidateView, Explain};
pub use self::jobs::{
    GangView, Job, JobCounts, JobDetail, JobEventView, JobEvents, JobFilter, JobPage,
};
pub use self::kernels::{KernelTask, KernelTasks, KernelTime, KernelView, TaskKernels};
pub use self::nodes::{
    ComputeView, FaultView, Gpu, Gpus, Instance, LayoutChange, LayoutChanges, MigModeRequest, Node,
    Nodes, ProfileView, SharerView,
};
pub use self::operator::{
    ClusterEvent, ClusterEvents, DoctorReport, Finding, LayoutApplied, LayoutOutlook, LayoutPlan,
    LayoutRequest, OperatorRequest, OperatorResult, OperatorWord, ProfileOutlook,
};
pub use self::past::{
    DecisionView, Decisions, PastAttempt, PastGang, PastJob, PastJobs, RecordedRound,
    RecordedRounds,
};
pub use self::predictions::{
    CompanyOutcomes, MemoryOutcomes, PredictionOutcomes, Predictions, PredictorView,
};
pub use self::series::{
    AttemptSeries, ClusterSeries, GpuSeries, JobFigures, JobSeries, SeriesPoint, SeriesQuery,
};
pub use self::submit::{ArrayRange, GangRequest, SubmitRequest, Submitted, UpdateRequest};

/// The cluster at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterInfo {
    /// The controller's version.
    pub version: String,
    /// The controller's id.
    pub controller: String,
    /// The placement policy.
    pub policy: String,
    /// The leader's epoch.
    pub epoch: u64,
    /// Nodes by state.
    pub nodes: BTreeMap<String, u32>,
    /// GPUs in all.
    pub gpus: u32,
}

/// An error, as RFC 9457 has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Stable name of the kind of error, such as `urn:tessera:problem:bad-field`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What was wrong this time.
    pub detail: String,
    /// The field at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What would be right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// The trace that tells more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}
