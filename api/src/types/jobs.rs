//! Jobs and what happened to them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

use super::Attempt;

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// How people name it: `42`, or `42_7` for task 7 of array 42 or rank 7 of gang 42.
    pub name_id: String,
    /// The array or gang that it belongs to.
    pub array_id: Option<u64>,
    /// Its index in the array, or its rank in the gang.
    pub array_index: Option<u32>,
    /// Its place in its gang, if it is one process of several that start and end together.
    #[serde(default)]
    pub gang: Option<GangView>,
    /// What people call it.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// `queued`, `held`, `placing`, `starting`, `running`, `stopping`, `succeeded`, `failed`,
    /// `cancelled` or `timed_out`.
    pub state: String,
    /// The state in two letters, as batch schedulers show it.
    pub state_short: String,
    /// Why it is in this state, in a word; for a waiting job the reason.
    pub reason: Option<String>,
    /// The same in a sentence.
    pub reason_text: Option<String>,
    /// What it asked for: `any slice`, an amount, a profile, or `a whole GPU`.
    pub gpu_ask: String,
    /// `online` or `offline`.
    pub class: String,
    /// 0 (highest) to 9.
    pub priority: u8,
    /// When it was accepted.
    #[serde(with = "time::serde::rfc3339")]
    pub submitted_at: OffsetDateTime,
    /// When its newest attempt's program was started.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    /// When it reached its end.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// `code:signal` of its newest attempt.
    pub exit_code: Option<String>,
    /// Attempts so far.
    pub attempts: u32,
    /// Node of its newest attempt.
    pub node: Option<String>,
    /// GPU of its newest attempt.
    pub gpu: Option<String>,
    /// Index of that GPU on its node.
    pub gpu_index: Option<u32>,
    /// Slice of its newest attempt, as `CUDA_VISIBLE_DEVICES` named it.
    pub slice: Option<String>,
    /// Profile of that slice, or `whole GPU`.
    pub profile: Option<String>,
}

/// One job's place in its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GangView {
    /// Its number among all, from 0.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// On how many nodes.
    pub nodes: u32,
}

/// A page of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    /// The jobs, newest first.
    pub items: Vec<Job>,
    /// Give it as `cursor` to get the next page; absent on the last.
    pub next_cursor: Option<String>,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct JobFilter {
    /// States, separated by commas; `active` stands for all that are not final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only this user's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Only jobs of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only tasks of this array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<u64>,
    /// Only jobs whose newest attempt is or was on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How many to return: 1 to 1,000, by default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Where the last page ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// One job with everything that is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobDetail {
    /// The job.
    #[serde(flatten)]
    pub job: Job,
    /// What it runs, in one line: the command, or `script (N bytes)`.
    pub program: String,
    /// Where it runs.
    pub work_dir: Option<String>,
    /// Names of its environment variables; values are not shown.
    pub env_names: Vec<String>,
    /// Longest run time in seconds.
    pub time_limit_secs: Option<u64>,
    /// Own failures that it may still survive.
    pub retries_left: u32,
    /// W3C trace context of its submit.
    pub traceparent: Option<String>,
    /// Its runs, oldest first.
    pub attempt_list: Vec<Attempt>,
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobEventView {
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The state that it led to.
    pub state: String,
    /// Which attempt, by number.
    pub attempt: Option<u32>,
    /// What happened, in a sentence.
    pub text: String,
}

/// The events of a job, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobEvents {
    /// The events.
    pub items: Vec<JobEventView>,
}

/// How many jobs are in each state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCounts {
    /// By state; every state is named.
    pub by_state: BTreeMap<String, u64>,
    /// All jobs that were ever accepted.
    pub total: u64,
}
