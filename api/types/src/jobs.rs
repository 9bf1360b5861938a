//! Jobs and their events.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

use super::AttemptView;
use super::submit::RankView;

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// The job's number.
    pub id: u64,
    /// Its name on the command line: `42`, or `42_7` for task 7 of array 42 or rank 7 of gang 42. If task 7 is a gang,
    /// that is its rank 0.
    pub name_id: String,
    /// The array or gang that it belongs to.
    pub array_id: Option<u64>,
    /// Its index in the array, or its rank in a gang that is not a task of an array.
    pub array_index: Option<u32>,
    /// Its rank in its gang, if it is one of several processes that start and end together.
    #[serde(default)]
    pub gang: Option<GangView>,
    /// The name that its user gave it.
    pub name: String,
    /// The user who submitted it.
    pub user: String,
    /// `queued`, `held`, `placing`, `starting`, `running`, `stopping`, `succeeded`, `failed`,
    /// `cancelled` or `timed_out`.
    pub state: String,
    /// The state in two letters, as batch schedulers show it.
    pub state_short: String,
    /// A stable identifier of why it is in this state, or of why it waits.
    pub reason: Option<String>,
    /// The same in one sentence.
    pub reason_text: Option<String>,
    /// The requested GPU resources: `any slice`, an amount, a profile, or `a whole GPU`.
    pub gpu_request: String,
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
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// `code:signal` of its newest attempt.
    pub exit_code: Option<String>,
    /// Number of attempts so far.
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

/// One job's rank in its gang, and the gang's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GangView {
    /// Its rank, from 0.
    pub rank: u32,
    /// Number of processes.
    pub size: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Whether the gang is a task of an array. Then `array_index` is the index of the task.
    #[serde(default)]
    pub in_array: bool,
}

/// Jobs, and where the next page begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    /// The jobs, newest first.
    pub items: Vec<JobView>,
    /// Give it as `cursor` to get the next page; absent on the last.
    pub next_cursor: Option<String>,
}

/// Which jobs a listing contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct JobFilter {
    /// States, separated by commas; `active` stands for all that are not final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only jobs of this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Only jobs with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only tasks of this array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<u64>,
    /// Only jobs whose newest attempt is or was on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Number of jobs to return: 1 to 1,000, by default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// One job with all details.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobDetail {
    /// The fields of the listing.
    #[serde(flatten)]
    pub job: JobView,
    /// Its program in one line: the command, or `script (N bytes)`.
    pub program: String,
    /// Its working directory.
    pub work_dir: Option<String>,
    /// Names of its environment variables; values are not shown.
    pub env_names: Vec<String>,
    /// Whether its program is interactive, over the session `main`.
    #[serde(default)]
    pub interactive: bool,
    /// What orders it in the queue, after updates.
    pub queue_rank: RankView,
    /// The time by which it has to be done.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub deadline: Option<OffsetDateTime>,
    /// The jobs that it waits for, or waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
    /// Longest run time in seconds.
    pub time_limit_secs: Option<u64>,
    /// For how many seconds its GPUs may do nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_secs: Option<u64>,
    /// What follows then: `end` or `requeue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_action: Option<String>,
    /// The image of the container that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// How often it may still be retried after its own failures.
    pub retries_left: u32,
    /// What is done when it runs out of GPU memory: `larger`, `same` or `fail`.
    #[serde(default)]
    pub oom_policy: String,
    /// How often it ran out of GPU memory.
    #[serde(default)]
    pub oom_count: u32,
    /// What is done if its GPU memory is predicted to exceed its slice, if its user stated that:
    /// `off`, `advise` or `act`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_prediction: Option<String>,
    /// The minimum GPU memory that it requests, since it ran out of less, or was predicted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_estimate_bytes: Option<u64>,
    /// The GPU memory that an attempt had allocated before its first kernel, if its calls of the driver were observed.
    /// The next attempt requests at least that much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_before_launch_bytes: Option<u64>,
    /// Multiprocessors that this kernel needs for as few steps as the whole GPU allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_multiprocessors: Option<u32>,
    /// W3C trace context of its submit.
    pub traceparent: Option<String>,
    /// Who submitted it: its user, or an operator who acted for its user.
    #[serde(default)]
    pub submitted_by: String,
    /// What proved that name, and from where the submit came.
    #[serde(default)]
    pub submitted_from: Option<String>,
    /// Its attempts, oldest first.
    pub attempt_list: Vec<AttemptView>,
}

/// One event of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobEventView {
    /// When it happened.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The job's state after it.
    pub state: String,
    /// Number of the attempt.
    pub attempt: Option<u32>,
    /// What happened, in one sentence.
    pub text: String,
}

/// The script that a job runs, as its user submitted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobScriptView {
    /// Its text as it was submitted.
    pub script: String,
}

/// The events of a job, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobEvents {
    /// The events.
    pub items: Vec<JobEventView>,
}

/// Number of jobs in each state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCounts {
    /// Number of jobs by state; every state is included.
    pub by_state: BTreeMap<String, u64>,
    /// Number of all jobs that were ever accepted.
    pub total: u64,
}
