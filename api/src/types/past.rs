//! What was decided and what ran: what a replay of the past starts from.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::CandidateView;

/// One recorded decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// Its id.
    pub id: String,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// About which job.
    pub job_id: u64,
    /// `start` or `wait`.
    pub outcome: String,
    /// The stable word for the reason.
    pub reason: Option<String>,
    /// The policy that decided.
    pub policy: String,
    /// One sentence with the numbers that decided.
    pub summary: String,
    /// What would start the job.
    pub would_start_if: Option<String>,
    /// Where it went.
    pub node: Option<String>,
    /// On which GPU.
    pub gpu: Option<String>,
    /// Layout steps that went before.
    pub steps: Vec<String>,
    /// What was considered, best first.
    pub candidates: Vec<CandidateView>,
    /// How many more were considered.
    pub candidates_left_out: u32,
}

/// Decisions, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Decisions {
    /// The decisions.
    pub items: Vec<DecisionView>,
    /// Give it as `cursor` to get the next page.
    pub next_cursor: Option<String>,
}

/// A round of the placement, as it was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordedRound {
    /// Its number, in the order of commits; rounds that failed leave gaps.
    pub round: u64,
    /// When it was committed.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Epoch of the leader that decided.
    pub epoch: u64,
    /// Its place in its chain: 0 has everything, each other adds to the one before.
    pub number: u64,
    /// SHA-256 of what was decided, in hex, worked out as it was decided.
    pub digest: String,
    /// What the policy saw and said; its `format` names the version.
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
    /// When the oldest round that is kept was committed; absent if none is.
    #[serde(with = "time::serde::rfc3339::option")]
    pub oldest_at: Option<OffsetDateTime>,
}

/// A job of the past, with what simulations need of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastJob {
    /// Its number.
    pub id: u64,
    /// What people call it.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// `online` or `offline`.
    pub class: String,
    /// 0 (highest) to 9.
    pub priority: u8,
    /// GPU memory that it asked for, if it asked for an amount.
    pub gpu_memory_bytes: Option<u64>,
    /// Profile that it asked for, if it named one.
    pub gpu_profile: Option<String>,
    /// Whether it asked for a whole GPU.
    pub gpu_whole: bool,
    /// `exclusive`, `mps` or `kernel`.
    pub share: String,
    /// What its runs share with those of other jobs; absent where that is not known.
    pub task: Option<String>,
    /// Whether it can put its work aside and go on elsewhere.
    pub movable: bool,
    /// Longest run time in seconds.
    pub time_limit_secs: Option<u64>,
    /// Its state now.
    pub state: String,
    /// When it was accepted.
    #[serde(with = "time::serde::rfc3339")]
    pub submitted_at: OffsetDateTime,
    /// When it reached its end.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// Its gang, if it is one process of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<PastGang>,
    /// Its runs, oldest first.
    pub attempts: Vec<PastAttempt>,
}

/// The gang of a job of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastGang {
    /// Number of its first member, whose rank is 0; the others follow by rank.
    pub id: u64,
    /// On how many nodes it runs.
    pub nodes: u32,
    /// On how many GPUs of each.
    pub gpus_per_node: u32,
}

/// A run of a job of the past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastAttempt {
    /// Where.
    pub node: String,
    /// On which GPU.
    pub gpu: String,
    /// Index of that GPU on its node.
    pub gpu_index: u32,
    /// The driver's name for the board; absent if the GPU is gone.
    pub gpu_model: Option<String>,
    /// Profile of the slice, or `whole GPU`.
    pub profile: String,
    /// First memory slice of the instance.
    pub start_slice: Option<u8>,
    /// Whether others may have been on its slice.
    pub shared: bool,
    /// How it stands, or how it ended.
    pub state: String,
    /// When the place was reserved.
    #[serde(with = "time::serde::rfc3339")]
    pub placed_at: OffsetDateTime,
    /// When the program was started.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// Energy of the GPU that it bore, as far as it was measured.
    pub gpu_energy_millijoules: Option<u64>,
    /// The most GPU memory that it was seen to have.
    pub gpu_memory_peak_bytes: Option<u64>,
}

/// Jobs of the past, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastJobs {
    /// The jobs.
    pub items: Vec<PastJob>,
    /// Give it as `cursor` to get the next page.
    pub next_cursor: Option<String>,
    /// When the oldest job that is kept was accepted; absent if there is none.
    #[serde(with = "time::serde::rfc3339::option")]
    pub oldest_at: Option<OffsetDateTime>,
}
