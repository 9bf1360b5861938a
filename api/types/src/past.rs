//! Recorded decisions, rounds and jobs: the input of replays and of simulations.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::CandidateView;

/// One recorded decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// UUID of the decision.
    pub id: String,
    /// The time of the decision.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The job that it concerns.
    pub job_id: u64,
    /// `start` or `wait`.
    pub outcome: String,
    /// A stable identifier of the reason.
    pub reason: Option<String>,
    /// The policy that decided.
    pub policy: String,
    /// The reason in one sentence, with the numbers that decided.
    pub summary: String,
    /// What would start the job.
    pub would_start_if: Option<String>,
    /// The node that it was placed on.
    pub node: Option<String>,
    /// The GPU's UUID.
    pub gpu: Option<String>,
    /// Layout steps that precede the start.
    pub steps: Vec<String>,
    /// The placements that were considered, best first.
    pub candidates: Vec<CandidateView>,
    /// Number of further placements that were considered.
    pub candidates_left_out: u32,
}

/// Decisions, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionPage {
    /// The decisions.
    pub items: Vec<DecisionView>,
    /// Give it as `cursor` to get the next page.
    pub next_cursor: Option<String>,
}

/// A recorded scheduling round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordedRound {
    /// Its number, in the order of commits; rounds that failed leave gaps.
    pub round: u64,
    /// When it was committed.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Epoch of the leader that decided.
    pub epoch: u64,
    /// Its position in its chain: 0 is a full record, each later one adds to the one before.
    pub number: u64,
    /// SHA-256 of the decisions in hex, computed when they were made.
    pub digest: String,
    /// Input and output of the policy; its `format` names the version.
    #[schema(value_type = Object)]
    pub record: serde_json::Value,
}

/// Recorded rounds, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordedRounds {
    /// The rounds.
    pub items: Vec<RecordedRound>,
    /// Give it as `cursor` to get the next page.
    pub next_cursor: Option<String>,
    /// When the oldest kept round was committed; absent if there is none.
    #[serde(with = "time::serde::rfc3339::option")]
    pub oldest_at: Option<OffsetDateTime>,
}

/// A recorded job with the fields that simulations need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastJob {
    /// Its number.
    pub id: u64,
    /// The name that its user gave it.
    pub name: String,
    /// The user who submitted it.
    pub user: String,
    /// `online` or `offline`.
    pub class: String,
    /// 0 (highest) to 9.
    pub priority: u8,
    /// Requested GPU memory, if it requested an amount.
    pub gpu_memory_bytes: Option<u64>,
    /// Requested profile, if it named one.
    pub gpu_profile: Option<String>,
    /// Whether it requested a whole GPU.
    pub gpu_whole: bool,
    /// `exclusive`, `mps`, `kernel`, `kernel:exclusive` or `auto`.
    pub share: String,
    /// Key of its task; absent where it is not known.
    pub task: Option<String>,
    /// Whether it can checkpoint its work and continue elsewhere.
    pub movable: bool,
    /// Longest run time in seconds.
    pub time_limit_secs: Option<u64>,
    /// Its deadline, if it has one.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub deadline: Option<OffsetDateTime>,
    /// Its state now.
    pub state: String,
    /// When it was accepted.
    #[serde(with = "time::serde::rfc3339")]
    pub submitted_at: OffsetDateTime,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// Its gang, if it is one process of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<PastGang>,
    /// Its attempts, oldest first.
    pub attempts: Vec<PastAttempt>,
}

/// The gang of a recorded job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastGang {
    /// Number of its first member, whose rank is 0; the others follow by rank.
    pub id: u64,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of GPUs on each node.
    pub gpus_per_node: u32,
}

/// An attempt of a recorded job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastAttempt {
    /// The node's name.
    pub node: String,
    /// The GPU's UUID.
    pub gpu: String,
    /// Index of that GPU on its node.
    pub gpu_index: u32,
    /// The driver's name of the GPU model; absent if the GPU is gone.
    pub gpu_model: Option<String>,
    /// Profile of the slice, or `whole GPU`.
    pub profile: String,
    /// First memory slice of the instance.
    pub start_slice: Option<u8>,
    /// Whether it may have had co-runners on its slice.
    pub shared: bool,
    /// Its state, or how it ended.
    pub state: String,
    /// When the placement was reserved.
    #[serde(with = "time::serde::rfc3339")]
    pub placed_at: OffsetDateTime,
    /// When the program was started.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// GPU energy that is attributed to it, as far as it was measured.
    pub gpu_energy_millijoules: Option<u64>,
    /// The peak GPU memory that was measured for it.
    pub gpu_memory_peak_bytes: Option<u64>,
}

/// Recorded jobs, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastJobs {
    /// The jobs.
    pub items: Vec<PastJob>,
    /// Give it as `cursor` to get the next page.
    pub next_cursor: Option<String>,
    /// When the oldest kept job was accepted; absent if there is none.
    #[serde(with = "time::serde::rfc3339::option")]
    pub oldest_at: Option<OffsetDateTime>,
}
