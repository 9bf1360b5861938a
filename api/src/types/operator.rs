//! What operators say and ask: bodies of the routes that change nodes, GPUs and layouts.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Something that an operator said, and that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorWord {
    /// Who said it.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

/// An operator's word on a node, a GPU or a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorRequest {
    /// Who says it.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One instance of the GPU, where an instance can be meant: its first memory slice (`4`),
    /// with its profile (`2g.10gb@4`), or the UUID of its MIG device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
}

/// What came of an operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorResult {
    /// Whether it was different before.
    pub changed: bool,
}

/// A layout that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutRequest {
    /// All instances that shall stand: `3g.20gb,2x1g.5gb,2g.10gb@4`, or `empty`.
    pub layout: String,
    /// Whether to keep it: jobs then use its slices as they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pin: bool,
    /// Who asks for it.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a layout would take; nothing was changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LayoutPlan {
    /// The GPU.
    pub gpu: String,
    /// Its node.
    pub node: String,
    /// Its index on the node.
    pub index: u32,
    /// All that would stand, such as `3g.20gb@0`.
    pub layout: Vec<String>,
    /// Of those, what stands already and is left alone.
    pub kept: Vec<String>,
    /// What would be done, in order, such as `destroy 4g.20gb@0`; none if it stands already.
    pub steps: Vec<String>,
    /// How long the steps are expected to take.
    pub predicted_secs: f64,
    /// How many full layouts stay reachable afterwards.
    pub reachability_after: Option<u32>,
}

/// A layout that was asked for, as it was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LayoutApplied {
    /// The GPU.
    pub gpu: String,
    /// `stands` (there was nothing to do) or `ordered`.
    pub state: String,
    /// The plan that makes it: ask `/v1/layouts/{plan}` how it goes.
    pub plan: Option<String>,
}

/// What can still be made of a GPU, and what must end first for the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LayoutOutlook {
    /// The GPU.
    pub gpu: String,
    /// Its node.
    pub node: String,
    /// Its index on the node.
    pub index: u32,
    /// By profile, the smallest first.
    pub profiles: Vec<ProfileOutlook>,
}

/// What can be made of one profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileOutlook {
    /// The profile.
    pub profile: String,
    /// How many more can be created beside everything that stands.
    pub now: u32,
    /// How many can be created once every idle instance is gone.
    pub after_idle: u32,
    /// What the first one needs: `now`, `after_idle`, `after_busy` or `blocked`.
    pub first: String,
    /// Idle instances that have to be destroyed for the first one, such as `1g.5gb@4`.
    pub idle: Vec<String>,
    /// Instances in use that have to come free first.
    pub busy: Vec<String>,
    /// Instances that a person has to see to first.
    pub stuck: Vec<String>,
    /// The jobs that have to end first.
    pub job_ids: Vec<u64>,
    /// When the last of them is expected to end, by time limits and by how long their likes ran.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ready_at: Option<OffsetDateTime>,
    /// The same in a sentence.
    pub text: String,
}

/// Something that an operator did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEvent {
    /// Its number; they rise with time.
    pub id: u64,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// `drained`, `undrained`, `quarantined`, `cleared`, `pinned`, `unpinned`, `layout_ordered`,
    /// `layout_done` or `layout_failed`.
    pub kind: String,
    /// On which node.
    pub node: Option<String>,
    /// To which GPU.
    pub gpu: Option<String>,
    /// On whose word.
    pub by: Option<String>,
    /// What happened, in a sentence.
    pub text: String,
}

/// What operators did, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEvents {
    /// The events.
    pub items: Vec<ClusterEvent>,
    /// Give it as `cursor` to get the next page.
    pub next_cursor: Option<String>,
}

/// What a machine's own look at itself found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// The machine; its host name where no controller was asked.
    pub node: String,
    /// What was found, check by check.
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// What was looked at: a stable word such as `mig_mode`.
    pub check: String,
    /// `ok`, `warn` (it works, but not as well as it could) or `blocks`.
    pub level: String,
    /// Index of the GPU that it is about, if it is about one.
    pub gpu: Option<u32>,
    /// What was found, in a sentence.
    pub text: String,
    /// The command, or the deed, that mends it.
    pub remedy: Option<String>,
}
