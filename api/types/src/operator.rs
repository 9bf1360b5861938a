//! Bodies of the routes with which operators change nodes, GPUs and layouts.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// An administrative override that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdminOverrideView {
    /// The operator who set it.
    pub by: String,
    /// The operator's reason.
    pub reason: Option<String>,
    /// The time at which it was set.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

/// Sets or clears an administrative override of a node, a GPU or a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorRequest {
    /// In whose name an administrator sends the request; by default the caller's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// A reason, for the audit log and other operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One instance of the GPU, for overrides of instances: its first memory slice (`4`),
    /// with its profile (`2g.10gb@4`), or the UUID of its MIG device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
}

/// The result of an operator's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorResult {
    /// Whether the request changed the state.
    pub changed: bool,
}

/// The desired layout of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutRequest {
    /// All instances of the layout: `3g.20gb,2x1g.5gb,2g.10gb@4`, or `empty`.
    pub layout: String,
    /// Whether to pin it: jobs then use its slices and no longer change the layout.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pin: bool,
    /// In whose name an administrator requests it; by default the caller's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// A reason, for the audit log and other operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A preview of the plan for a desired layout; nothing is changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanPreviewView {
    /// UUID of the GPU that the request names.
    pub gpu: String,
    /// Name of the node that has the GPU.
    pub node: String,
    /// Its index on the node.
    pub index: u32,
    /// All instances of the layout, such as `3g.20gb@0`.
    pub layout: Vec<String>,
    /// Those of them that exist already and are kept.
    pub kept: Vec<String>,
    /// The plan's steps in order, such as `destroy 4g.20gb@0`; none if the layout exists already.
    pub steps: Vec<String>,
    /// The predicted duration of all steps.
    pub predicted_secs: f64,
    /// Number of full layouts that are reachable afterwards.
    pub reachability_after: Option<u32>,
}

/// The answer to an accepted request for a layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LayoutApplied {
    /// UUID of the GPU that gets another layout.
    pub gpu: String,
    /// `in_place` (there is nothing to do) or `planned`.
    pub state: String,
    /// The plan's id: `/v1/layouts/{plan}` shows its progress.
    pub plan: Option<String>,
}

/// Which instances can still be created on a GPU, and which jobs must end for further ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuAvailabilityView {
    /// UUID of the GPU that the request names.
    pub gpu: String,
    /// Name of the node that has the GPU.
    pub node: String,
    /// Its index on the node.
    pub index: u32,
    /// The profiles, the smallest first.
    pub profiles: Vec<ProfileAvailabilityView>,
}

/// How many instances of one profile can be created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileAvailabilityView {
    /// The profile's name.
    pub profile: String,
    /// Number that can be created next to the existing instances.
    pub now: u32,
    /// Number that can be created after every idle instance is destroyed.
    pub after_idle: u32,
    /// When the first one can be created: `now`, `after_idle`, `after_busy` or `blocked`.
    pub first: String,
    /// Idle instances that have to be destroyed for the first one, such as `1g.5gb@4`.
    pub idle: Vec<String>,
    /// Instances in use whose jobs must end first.
    pub busy: Vec<String>,
    /// Stuck instances that an operator must repair first.
    pub stuck: Vec<String>,
    /// The jobs that must end first.
    pub job_ids: Vec<u64>,
    /// When the last of them is predicted to end, by time limits and earlier run times.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ready_at: Option<OffsetDateTime>,
    /// The same in one sentence.
    pub text: String,
}

/// One action of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEvent {
    /// Its number; numbers rise with time.
    pub id: u64,
    /// The time of the event.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// `drained`, `undrained`, `quarantined`, `cleared`, `pinned`, `unpinned`, `layout_planned`,
    /// `layout_done` or `layout_failed`.
    pub kind: String,
    /// The affected node.
    pub node: Option<String>,
    /// The affected GPU.
    pub gpu: Option<String>,
    /// The operator.
    pub by: Option<String>,
    /// What happened, in one sentence.
    pub text: String,
}

/// Actions of operators, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEvents {
    /// The events.
    pub items: Vec<ClusterEvent>,
    /// Give it as `cursor` to get the next page.
    pub next_cursor: Option<String>,
}

/// A node's report about its own readiness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// The node's name; its host name if no controller was queried.
    pub node: String,
    /// The findings, one for each check.
    pub findings: Vec<DoctorFinding>,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorFinding {
    /// A stable identifier of the check, such as `mig_mode`.
    pub check: String,
    /// `ok`, `warn` (it works, but not as well as it could) or `blocks`.
    pub level: String,
    /// Index of the GPU, if the check concerns one.
    pub gpu: Option<u32>,
    /// The finding in one sentence.
    pub text: String,
    /// The command or action that fixes it.
    pub remedy: Option<String>,
}
