//! Jobs as accounting and Slurm's commands need them: many at once, with their runs.

use crate::submit::{RankUpdateView, RankView};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

/// Which jobs to return. Without `jobs` and `since`, these are the jobs that have not ended, and those
/// that ended within the last `recent_secs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct RecordFilter {
    /// Jobs such as `42` (for an array or a gang: all of it) and `42_7`, separated by commas; at most 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<String>,
    /// Users, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Names of jobs, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Also jobs that ended within this many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recent_secs: Option<u32>,
    /// Only jobs that ended at this time or later, or have not ended (RFC 3339).
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub since: Option<OffsetDateTime>,
    /// Only jobs that were submitted at this time or earlier (RFC 3339).
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub until: Option<OffsetDateTime>,
    /// Whether waiting jobs have the reason of their wait.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reasons: bool,
    /// Whether waiting tasks of an array that follow each other and differ in nothing else are one record.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fold: bool,
    /// Whether `specs` has what the jobs requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub specs: bool,
    /// Whether the jobs have their runs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub runs: bool,
}

/// Jobs with what was requested, and their runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobRecords {
    /// The jobs, by number.
    pub jobs: Vec<JobRecord>,
    /// What their submissions requested, by number, if `specs` was set.
    #[serde(default)]
    pub specs: Vec<RequestRecord>,
    /// Whether there are more jobs than are returned at once.
    pub truncated: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobRecord {
    /// Its number.
    pub id: u64,
    /// Number of its submission: that of its array's or gang's first job, or its own.
    pub submission: u64,
    /// Its index, if it is a task of an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_index: Option<u32>,
    /// Its rank, if it is a member of a gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// How many further tasks this record stands for, with the numbers and indexes that follow, if `fold` was set.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
    /// The name that its user gave the job.
    pub name: String,
    /// Name of the user who submitted it.
    pub user: String,
    /// The account of its user; the user's name for users without one.
    pub account: String,
    /// Its state, as in `JobView`.
    pub state: String,
    /// How its newest run ended, as in `AttemptView`, or the state of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Why it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of its runs.
    pub attempts: u32,
    /// When it was accepted.
    #[serde(with = "time::serde::rfc3339")]
    pub submitted_at: OffsetDateTime,
    /// When its newest run's placement was reserved.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub placed_at: Option<OffsetDateTime>,
    /// When its newest run's program was started.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub ended_at: Option<OffsetDateTime>,
    /// The status and the number of the signal, as Slurm writes them: `code:signal`.of its newest run. Absent for jobs of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<String>,
    /// Node of its newest run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Index of that run's GPU on its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_index: Option<u32>,
    /// What updates changed of its order in the queue.
    #[serde(default, skip_serializing_if = "RankUpdateView::is_empty")]
    pub queue_rank: RankUpdateView,
    /// Its time limit in seconds after updates, 0 for none; absent if it was not updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u64>,
    /// The jobs that it waits for after updates, empty for none; absent if that was not updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
    /// Its comment after updates, empty for none; absent if it was not updated, or if the job is another user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Whether it runs again after its node was lost, if that was updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue: Option<bool>,
    /// How many tasks of its array may run at a time, if there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_limit: Option<u32>,
    /// The earliest start, if that was updated.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub begin: Option<OffsetDateTime>,
    /// The partition that it named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Its runs, oldest first, if `runs` was set. Absent for jobs of others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunRecord>,
}

/// What a submission requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestRecord {
    /// Number of the submission.
    pub submission: u64,
    /// Number of its jobs.
    pub tasks: u32,
    /// The requested GPU resources in words.
    pub gpu: String,
    /// Number of GPUs or slices, over all nodes.
    pub gpus: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// `online` or `offline`.
    pub class: String,
    /// What orders its jobs in the queue, as submitted.
    pub queue_rank: RankView,
    /// Number of processes that are started: one on each node, or one for each GPU. Older controllers do not state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Number of tasks that `srun` starts by default, if the job's options give one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ntasks: Option<u32>,
    /// Processors of each of these tasks, if the job's options give them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_per_task: Option<u32>,
    /// Processors of each process, if limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Host memory of each process, if limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_bytes: Option<u64>,
    /// Time limit in seconds as submitted, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u64>,
    /// Whether it runs again after its node was lost.
    pub requeue: bool,
    /// Its comment, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The partition that it named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The quality of service that it named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// The earliest start as submitted, if there was one.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub begin: Option<OffsetDateTime>,
    /// The time by which it has to be done as submitted, if there was one.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub deadline: Option<OffsetDateTime>,
    /// The model of GPU that it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// The only nodes that it may run on, if they are restricted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodelist: Vec<String>,
    /// The nodes that it may not run on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// The jobs that it waits for, or waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
    /// Its working directory. Absent for jobs of others, as are the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// Pattern of the file for standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// Pattern of the file for standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunRecord {
    /// Its number: 1 for the first.
    pub number: u32,
    /// Its state, or how it ended.
    pub state: String,
    /// Name of the node on which it ran.
    pub node: String,
    /// Index of its GPU on the node.
    pub gpu_index: u32,
    /// Profile of its slice, or `whole GPU`.
    pub profile: String,
    /// When its placement was reserved.
    #[serde(with = "time::serde::rfc3339")]
    pub placed_at: OffsetDateTime,
    /// When its program was started.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// The status and the number of the signal, as Slurm writes them: `code:signal`.
    pub exit_code: Option<String>,
    /// Processor time in user mode, in milliseconds.
    pub user_ms: Option<u64>,
    /// Processor time in the kernel, in milliseconds.
    pub system_ms: Option<u64>,
    /// Largest resident set of any one process.
    pub max_rss_bytes: Option<u64>,
    /// GPU energy that is attributed to it, in millijoules.
    pub gpu_energy_millijoules: Option<u64>,
    /// The peak GPU memory that was measured for it.
    pub gpu_memory_peak_bytes: Option<u64>,
    /// The steps that `srun` started in it, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRecord>,
}

/// What `srun` started once in a run of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepRecord {
    /// Its number, from 0.
    pub step: u32,
    /// Name of its program.
    pub name: String,
    /// Number of its processes.
    pub tasks: u32,
    /// Its nodes, such as `n[1-2]`.
    pub nodes: String,
    /// When it was started.
    #[serde(with = "time::serde::rfc3339")]
    pub started_at: OffsetDateTime,
    /// When it ended.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub ended_at: Option<OffsetDateTime>,
    /// `code:signal`; absent for one that runs, or that ended with its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<String>,
    /// Processor time in user mode, in milliseconds. Like the other amounts it is that of the node where `srun` was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_ms: Option<u64>,
    /// Processor time in the kernel, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_ms: Option<u64>,
    /// Largest resident set of any one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rss_bytes: Option<u64>,
}

/// What `srun` reports about a step: once when it starts its processes, and again when they have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepReport {
    /// The attempt in which it runs: `TESSERA_ATTEMPT_ID`.
    pub attempt: String,
    /// Its number, from 0.
    pub step: u32,
    /// Name of its program.
    pub name: String,
    /// Number of its processes.
    pub tasks: u32,
    /// Its nodes, such as `n[1-2]`.
    pub nodes: String,
    /// How long it has run, in milliseconds.
    #[serde(default)]
    pub ran_ms: u64,
    /// `code:signal`, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<String>,
    /// Processor time in user mode, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_ms: Option<u64>,
    /// Processor time in the kernel, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_ms: Option<u64>,
    /// Largest resident set of any one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rss_bytes: Option<u64>,
}

/// The answer to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepReceipt {
    /// Whether it was recorded. It is not, if the attempt has ended, or has too many steps.
    pub recorded: bool,
}
