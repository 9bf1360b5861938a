//! Bodies of requests and answers. Times are UTC (RFC 3339), sizes are bytes, spans are
//! seconds unless the name says otherwise, states are lower-case words.

mod operator;
mod series;
pub mod usage;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_model::spec::{BadField, JobSpec, RawSpec};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

pub use self::operator::{
    ClusterEvent, ClusterEvents, DoctorReport, Finding, LayoutApplied, LayoutOutlook, LayoutPlan,
    LayoutRequest, OperatorRequest, OperatorResult, OperatorWord, ProfileOutlook,
};
pub use self::series::{
    AttemptSeries, ClusterSeries, GpuSeries, JobFigures, JobSeries, SeriesPoint, SeriesQuery,
};

/// A job to run, or an array of them.
///
/// Give either `script` or `command`. Everything else has a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SubmitRequest {
    /// What to call it; by default the program's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who submits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Text of a script; its first line names the interpreter (`#!/bin/bash`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// A program of the node, and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Absolute path of the folder to run in; by default a folder of the attempt's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// Environment variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// File for standard output; `%j` is the job, `%A` the array, `%a` the index, `%x` the
    /// name, `%u` the user, `%N` the node, `%r` the restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// File for standard error; by default where standard output goes, if that is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// GPU memory that the job needs. Without it, `gpu_profile` or `gpu_whole`, the job gets
    /// the smallest slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// MIG profile that the job wants, such as `1g.5gb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_profile: Option<String>,
    /// Whether the job wants a whole GPU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gpu_whole: bool,
    /// Longest run time in seconds; by default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u64>,
    /// Seconds between `SIGTERM` and `SIGKILL`; by default 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_secs: Option<u64>,
    /// `online` (latency) or `offline` (throughput, the default).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// 0 (highest) to 9; by default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// How many failures of its own the job survives; by default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// What happens when its node is lost: `requeue` (the default), `hold` or `fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<String>,
    /// Jobs with one key share what is learned about them; by default the program and its
    /// arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_key: Option<String>,
    /// Whether the job may wait for hardware that the cluster doesn't have yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_pending: bool,
    /// `exclusive` (the default): the job has its slice to itself. `mps`: other jobs of the same
    /// user may share it under NVIDIA's Multi-Process Service. `kernel`: other jobs of the same user
    /// may share it, and their kernels take turns by `priority`, the lower in the higher's gaps.
    /// `gpu_memory_bytes` is needed with both, and is the job's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// With `share` = `mps`: how many percent of the slice's multiprocessors it may use, 1 to
    /// 100; by default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Signal on which the program saves its state and ends: `USR1`, `USR2`, `HUP`, `INT` or
    /// `TERM`. With one the job's share can be changed while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_signal: Option<String>,
    /// Whether the job waits until it is released.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Makes it an array: one task for each index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayRange>,
    /// Makes it a gang: one process on each of several GPUs, which start together and end together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangRequest>,
}

/// On how many GPUs a job runs, one process each: every one of them asks for what the request asks
/// of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GangRequest {
    /// On how many nodes; by default 1.
    #[serde(default = "one")]
    pub nodes: u32,
    /// On how many GPUs of each; in all at most 256.
    pub gpus_per_node: u32,
}

const fn one() -> u32 {
    1
}

/// The indexes of an array's tasks, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArrayRange {
    /// Smallest index.
    pub first: u32,
    /// Largest index; at most 9,999 above the smallest.
    pub last: u32,
}

/// What is to be changed of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateRequest {
    /// With `share` = `mps`: how many percent of the slice's multiprocessors it may use, 1 to
    /// 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Its rank in the queue: 0 (highest) to 9. One that runs has it when it waits again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Longest run time of an attempt, from its start; 0 for none. One that runs is held to it at
    /// once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u64>,
}

impl SubmitRequest {
    /// Reads the request into a job's specification.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the first field that breaks a rule, and what would be right.
    pub fn into_spec(self) -> Result<JobSpec, BadField> {
        JobSpec::parse(RawSpec {
            name: self.name,
            user: self.user,
            script: self.script,
            command: self.command,
            work_dir: self.work_dir,
            env: self.env,
            stdout: self.stdout,
            stderr: self.stderr,
            gpu_memory_bytes: self.gpu_memory_bytes,
            gpu_profile: self.gpu_profile,
            gpu_whole: self.gpu_whole,
            time_limit_secs: self.time_limit_secs,
            grace_secs: self.grace_secs,
            class: self.class,
            priority: self.priority,
            max_retries: self.max_retries,
            on_lost: self.on_lost,
            task_key: self.task_key,
            allow_pending: self.allow_pending,
            share: self.share,
            sm_percent: self.sm_percent,
            checkpoint_signal: self.checkpoint_signal,
            gang: self.gang.map(|gang| (gang.nodes, gang.gpus_per_node)),
        })
    }
}

/// An accepted submit: committed before this answer was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// The job's number; for an array or a gang its number, which is that of its first task.
    pub job_id: u64,
    /// How many jobs were accepted.
    pub tasks: u32,
    /// `queued` or `held`.
    pub state: String,
}

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

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// Its id.
    pub id: String,
    /// Its number: 1 for the first.
    pub number: u32,
    /// `placing`, `starting`, `running`, `stopping`, or how it ended: `succeeded`, `failed`,
    /// `cancelled`, `timed_out`, `out_of_memory`, `preempted`, `lost`, `launch_failed`,
    /// `not_started`.
    pub state: String,
    /// Where.
    pub node: String,
    /// On which GPU.
    pub gpu: String,
    /// Index of that GPU on its node.
    pub gpu_index: Option<u32>,
    /// On which slice; absent until the slice stands.
    pub slice: Option<String>,
    /// Profile of the slice, or `whole GPU`.
    pub profile: String,
    /// First memory slice of the instance.
    pub start_slice: Option<u8>,
    /// The decision that chose the place.
    pub decision: Option<String>,
    /// When the place was reserved.
    #[serde(with = "time::serde::rfc3339")]
    pub placed_at: OffsetDateTime,
    /// When the program was started.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// `code:signal`.
    pub exit_code: Option<String>,
    /// One sentence on its end.
    pub detail: Option<String>,
    /// Processor seconds in user mode.
    pub user_secs: Option<f64>,
    /// Processor seconds in the kernel.
    pub system_secs: Option<f64>,
    /// Largest resident set of any one process.
    pub max_rss_bytes: Option<u64>,
    /// Energy of the GPU that it bore: so far, while it runs; in the end whole millijoules that
    /// add up with those of others and with what nobody bore to what the card's counter gained.
    /// Absent until measured.
    #[serde(default)]
    pub gpu_energy_joules: Option<f64>,
    /// The most GPU memory that it was seen to have; told when it is over.
    #[serde(default)]
    pub gpu_memory_peak_bytes: Option<u64>,
    /// GPU memory that it has now, while it runs.
    #[serde(default)]
    pub gpu_memory_bytes: Option<u64>,
    /// What it did in its slice's kernel queue so far, with `share` = `kernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelUse>,
    /// How long it was expected to run when it was placed; absent where nothing was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionView>,
    /// What GPU memory it was expected to have, if its job names no size; absent where its task never
    /// ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_prediction: Option<MemoryPredictionView>,
    /// How fast it was expected to be beside others under MPS; absent where no model said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub company_prediction: Option<CompanyPredictionView>,
}

/// How fast a run under MPS was expected to be beside those who were there, and was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompanyPredictionView {
    /// How many others were on the slice as it came.
    pub others: u32,
    /// Its speed over that of its task alone on such a slice: one in twenty was expected to be slower.
    pub low: f64,
    /// What was expected.
    pub speed: f64,
    /// One in twenty was expected to be faster.
    pub high: f64,
    /// What it was over its whole run; absent until that is known.
    pub came: Option<f64>,
    /// How many others were there on average; absent until that is known.
    pub beside: Option<f64>,
}

/// What GPU memory a run was expected to have, by earlier runs of its task, and had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryPredictionView {
    /// How many earlier runs.
    pub runs: u32,
    /// It was expected to have so much at least.
    pub low_bytes: u64,
    /// What was asked for, as far as a slice has it: the most that an earlier run had, or more than
    /// the slice had that one ran out of.
    pub floor_bytes: u64,
    /// It was expected to have no more.
    pub high_bytes: u64,
    /// Whether half as much again is asked for, since runs of the task stopped to keep to what was
    /// foretold.
    pub cautious: bool,
    /// The most that it had; absent until it ended well and that is known.
    pub peak_bytes: Option<u64>,
    /// The memory of its slice, if it ran out of that.
    pub ran_out_of_bytes: Option<u64>,
}

/// How long something was expected to take, and took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictionView {
    /// What it rests on: `same_slice` (runs of the task on such slices), `learned` (runs
    /// on other slices and what other tasks taught), `other_slice`,
    /// `other_model` (runs elsewhere, by a rule), or `time_limit` (nothing else).
    pub basis: String,
    /// How many earlier runs.
    pub runs: u32,
    /// Nine in ten were expected to take longer.
    pub low_secs: f64,
    /// Half of them.
    pub expected_secs: f64,
    /// One in ten.
    pub high_secs: f64,
    /// What it took; absent until it has come to its job's end.
    pub ran_secs: Option<f64>,
}

/// What one attempt's processes did in their slice's kernel queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelUse {
    /// Processes that joined the queue: 0 means that no launch was intercepted.
    pub processes: u64,
    /// Kernels launched, as far as the queue was told: one that is alone on its slice tells nothing.
    pub launches: u64,
    /// Launches that passed without being told, such as those that are captured into graphs.
    pub launches_untold: u64,
    /// Gaps after its kernels that were predicted and came to their end.
    pub gaps_seen: u64,
    /// Those in which others launched something.
    pub gaps_filled: u64,
    /// Gaps that it ended early while another held a grant.
    pub early_stops: u64,
    /// Times that the holder came back while a kernel of this attempt was in flight.
    pub overshoots: u64,
    /// How long the longest of those went on.
    pub overshoot_secs_max: f64,
    /// Its kernels that ran in others' gaps.
    pub filled_kernels: u64,
    /// Their predicted time.
    pub filled_secs: f64,
    /// Its waits for grants that came to an end.
    pub waits: u64,
    /// How long they lasted, all together.
    pub waited_secs: f64,
    /// How long the longest of them lasted.
    pub waited_secs_max: f64,
    /// Which part of its time it got on with: of what it waited and what its kernels ran in gaps,
    /// the part that they ran.
    pub progress: Option<f64>,
    /// Its launches that were let go because they had waited long enough.
    pub aged: u64,
    /// Its launches that waited for too long and went unasked.
    pub unasked: u64,
    /// Kernels whose times changed, so that they were measured again.
    pub drifts: u64,
    /// Records that its processes lost: what they did is not all counted.
    pub records_lost: u64,
    /// Most device memory that one of its processes was seen to allocate.
    pub memory_peak_bytes: u64,
}

/// How good predictions are, and the model that makes some of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Predictions {
    /// The model of how slices compare that is in use; absent until enough has run to learn one.
    pub model: Option<PredictorView>,
    /// What came of predictions, by what they rested on.
    pub outcomes: Vec<PredictionOutcomes>,
    /// What came of predictions of memory.
    #[serde(default)]
    pub memory: MemoryOutcomes,
    /// The model of how fast jobs are beside others under MPS; absent until enough shared slices whose
    /// tasks also ran alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub company_model: Option<PredictorView>,
    /// What came of predictions of speeds beside others.
    #[serde(default)]
    pub company: CompanyOutcomes,
}

/// What came of the newest predictions of speeds beside others under MPS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompanyOutcomes {
    /// How many ended whose company stayed as it was when they came, at most 1,000.
    pub outcomes: u64,
    /// How many of them lay in their interval.
    pub within: u64,
    /// By what part of itself the speed was off, in the middle; absent without outcomes.
    pub median_error: Option<f64>,
}

/// What came of the newest predictions of memory, of jobs that name no size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryOutcomes {
    /// How many runs it is known of what they had, at most 1,000.
    pub outcomes: u64,
    /// How many of them kept within the interval.
    pub within: u64,
    /// How many had more, or ran out of memory.
    pub short: u64,
    /// How many tasks ask for half as much again, since their runs stopped to keep to what was
    /// foretold.
    pub doubted_tasks: u64,
}

/// A model that was trained from what ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictorView {
    /// Its version: equal rows make an equal one.
    pub version: String,
    /// What it was learned with.
    pub learner: String,
    /// Whether it is asked: its predictions have come true as often as they said. If not, the
    /// cautious rule stands in for it until a new one is trained.
    pub trusted: bool,
    /// Pairs of slices, or runs beside others, that it learned from.
    pub rows: u64,
    /// Those of tasks that it had not seen, with which it was tested.
    pub held_out_rows: u64,
    /// By what part the ratio of two slices' times was off there, on average.
    pub held_out_error: f64,
    /// What part of them lay in its interval.
    pub held_out_covered: f64,
    /// When it was trained.
    #[serde(with = "time::serde::rfc3339")]
    pub trained_at: OffsetDateTime,
}

/// What came of the newest predictions that rested on one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictionOutcomes {
    /// On what: `same_slice`, `learned`, `other_slice`, `other_model`, `time_limit`.
    pub basis: String,
    /// How many came to their end, at most 1,000.
    pub outcomes: u64,
    /// How many of them lay in their interval.
    pub within: u64,
    /// By what part of themselves the expected times were off, in the middle.
    pub median_error: f64,
}

/// Tasks whose kernels were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelTasks {
    /// The tasks, the one that was reported last first.
    pub items: Vec<KernelTask>,
}

/// A task whose kernels were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelTask {
    /// Its key: whose it is, and what its jobs call it or the program with its arguments.
    pub task_key: String,
    /// How many kernels it has.
    pub kernels: u32,
    /// Whether measuring is over.
    pub measured: bool,
    /// How many reports of nodes are in it.
    pub reports: u64,
    /// When the last of them came.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// What is known of one task's kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskKernels {
    /// The task's key.
    pub task_key: String,
    /// Whether measuring is over.
    pub measured: bool,
    /// Its kernels, those first that took the device for longest.
    pub kernels: Vec<KernelView>,
}

/// One kernel of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelView {
    /// The function's name, as the driver has it.
    pub name: String,
    /// The grid's three sides.
    pub grid: Vec<u32>,
    /// The block's three sides.
    pub block: Vec<u32>,
    /// How long it runs; absent until measured.
    pub took: Option<KernelTime>,
    /// How long the device is idle after it.
    pub gap: Option<KernelTime>,
}

/// A time that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelTime {
    /// Its mean, in microseconds.
    pub mean_us: f64,
    /// How many samples are in it.
    pub samples: u32,
    /// Whether the mean is known to 5 % at 95 % confidence.
    pub tight: bool,
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

/// Why a job waits, or went where it went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explain {
    /// The job.
    pub job_id: u64,
    /// Its state.
    pub state: String,
    /// The stable word for the reason.
    pub reason: Option<String>,
    /// One sentence with the numbers that decided.
    pub summary: String,
    /// What would start it, for a job that waits.
    pub would_start_if: Option<String>,
    /// How many jobs stand before it in the queue.
    pub jobs_ahead: Option<u64>,
    /// The policy that decided.
    pub policy: String,
    /// The recorded decision, if one was recorded.
    pub decision: Option<String>,
    /// When it was decided.
    #[serde(with = "time::serde::rfc3339::option")]
    pub decided_at: Option<OffsetDateTime>,
    /// What was considered, best first.
    pub candidates: Vec<CandidateView>,
    /// How many more were considered.
    pub candidates_left_out: u32,
    /// How long it is expected to take where it would go, or runs; absent where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionView>,
    /// What GPU memory it is expected to need, if it names none itself; absent where its task never
    /// ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_prediction: Option<MemoryPredictionView>,
    /// What would start it now, found by asking the policy about clusters that are a little
    /// different; for a job that waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<AlternativeView>,
    /// In how many seconds it is expected to start; absent where nothing says when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start_secs: Option<f64>,
    /// When it is expected to start, or why nobody knows, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<String>,
}

/// Something that would start a job that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlternativeView {
    /// What would have to be different, after "if".
    pub change: String,
    /// What would follow, after "it".
    pub effect: String,
}

/// One place that was considered for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CandidateView {
    /// The node.
    pub node: String,
    /// The GPU.
    pub gpu: String,
    /// Index of the GPU on its node.
    pub gpu_index: u32,
    /// Profile, or `whole GPU`.
    pub profile: String,
    /// First memory slice.
    pub start_slice: Option<u8>,
    /// Memory of the slice.
    pub memory_bytes: u64,
    /// Whether it was taken.
    pub chosen: bool,
    /// `chosen`, or what ruled it out.
    pub verdict: String,
    /// How many full layouts stay reachable after taking it.
    pub reachability_after: Option<u32>,
}

/// One machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// `available`, `connecting` (not yet reported), `silent` (no word, its lease still runs)
    /// or `lost`.
    pub state: String,
    /// Version of its agent.
    pub agent_version: String,
    /// Processor cores.
    pub cores: u32,
    /// Memory.
    pub memory_bytes: u64,
    /// Whether it has NVIDIA's MPS control program, so that jobs can share slices there.
    #[serde(default)]
    pub mps: bool,
    /// Its generation: rises each time it is declared lost.
    pub generation: u64,
    /// When it was last heard of.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_seen_at: Option<OffsetDateTime>,
    /// Set while an operator keeps new work away from it.
    #[serde(default)]
    pub drained: Option<OperatorWord>,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
}

/// The machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    /// By name.
    pub items: Vec<Node>,
}

/// One GPU and its layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// Its UUID.
    pub id: String,
    /// Its node.
    pub node: String,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Memory of the whole card.
    pub memory_bytes: u64,
    /// `healthy`, `unresponsive` or `faulty`.
    pub health: String,
    /// What is wrong, if something is.
    pub health_text: Option<String>,
    /// `on`, `off` or `unsupported`.
    pub mig: String,
    /// How many memory slices it has (0 without MIG).
    pub memory_slices: u8,
    /// Whether its layout is being changed.
    pub changing: bool,
    /// Set while an operator keeps new work away from it.
    #[serde(default)]
    pub drained: Option<OperatorWord>,
    /// Set while an operator, or its node by itself, keeps it out of use.
    #[serde(default)]
    pub quarantined: Option<OperatorWord>,
    /// Set while an operator keeps its layout as it is.
    #[serde(default)]
    pub pinned: Option<OperatorWord>,
    /// What went wrong on it lately, oldest first; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultView>,
    /// How many full layouts stay reachable without destroying anything.
    pub reachability: Option<u32>,
    /// What stands on it, by first memory slice.
    pub instances: Vec<Instance>,
    /// Profiles that it offers.
    pub profiles: Vec<ProfileView>,
}

/// Something that went wrong on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FaultView {
    /// When it was first seen.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// `xid 79`, `nvml CALL code 15`, or `silence` if the driver didn't answer in time.
    pub cause: String,
    /// First memory slice of the instance that it struck; absent if it struck the whole GPU.
    pub start: Option<u8>,
    /// The attempts that it hit.
    pub attempts: Vec<String>,
    /// What was done: `record`, `restart_app`, `drain`, `reset_gpu` or `restart_node`.
    pub action: String,
    /// How often it came; equal faults in a row are one.
    pub times: u32,
    /// One sentence on it.
    pub text: String,
}

/// The GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gpus {
    /// By node and index.
    pub items: Vec<Gpu>,
}

/// One instance of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// Profile, or `whole GPU`.
    pub profile: String,
    /// First memory slice.
    pub start: u8,
    /// Memory slices.
    pub size: u8,
    /// As `CUDA_VISIBLE_DEVICES` takes it.
    pub slice: Option<String>,
    /// Memory.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub sms: Option<u16>,
    /// `idle`, `taken`, `shared`, `cut` (into compute instances), `foreign`, `stuck`, `quarantined`, `leaving` or `unfinished`.
    pub state: String,
    /// What the driver said when it could not be destroyed or completed, if it is stuck; or whose
    /// processes use it, if it is foreign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Set while an operator keeps it out of use.
    #[serde(default)]
    pub quarantined: Option<OperatorWord>,
    /// The job that has it.
    pub job_id: Option<u64>,
    /// That job's name.
    pub job_name: Option<String>,
    /// The jobs that share it, in the order in which they came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sharers: Vec<SharerView>,
    /// Its compute instances by start, if an operator had it cut into several: each takes a job
    /// that names it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<ComputeView>,
}

/// One of several compute instances of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ComputeView {
    /// What jobs call it, such as `1c.3g.20gb`.
    pub name: String,
    /// First compute slice of the GPU instance.
    pub start: u8,
    /// Compute slices.
    pub slices: u8,
    /// As `CUDA_VISIBLE_DEVICES` takes it.
    pub slice: Option<String>,
    /// Streaming multiprocessors.
    pub sms: u16,
    /// What is counted for it of the GPU instance's memory, which all of them hold together:
    /// nothing keeps a program to it.
    pub memory_bytes: u64,
    /// The job that has it.
    pub job_id: Option<u64>,
    /// That job's name.
    pub job_name: Option<String>,
    /// Whose job that is; all jobs on one GPU instance are of one user.
    pub user: Option<String>,
}

/// One job that shares an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharerView {
    /// The job.
    pub job_id: u64,
    /// Its name.
    pub job_name: Option<String>,
    /// Whose it is; all sharers of an instance are of one user.
    pub user: String,
    /// Its share of the instance's multiprocessors, in percent; none, if the jobs take turns kernel
    /// by kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Its memory limit.
    pub memory_bytes: u64,
}

/// One profile of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    /// Its name.
    pub name: String,
    /// Memory of an instance.
    pub memory_bytes: u64,
    /// Compute slices.
    pub compute_slices: u8,
    /// Memory slices.
    pub memory_slices: u8,
    /// First memory slices on which an instance may start.
    pub starts: Vec<u8>,
    /// How many more can be cut beside everything that stands.
    #[serde(default)]
    pub fits_now: u32,
}

/// One change of a GPU's layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LayoutChange {
    /// The plan.
    pub plan: String,
    /// The GPU.
    pub gpu: String,
    /// Its node.
    pub node: String,
    /// When it was ordered.
    #[serde(with = "time::serde::rfc3339")]
    pub ordered_at: OffsetDateTime,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// `ordered`, `done`, `failed` or `refused`.
    pub state: String,
    /// What was to be done, such as `destroy 4g.20gb@0`.
    pub steps: Vec<String>,
    /// For which job.
    pub job_id: Option<u64>,
    /// The decision that asked for it.
    pub decision: Option<String>,
    /// Why it failed.
    pub detail: Option<String>,
    /// Who asked for it, if an operator did.
    #[serde(default)]
    pub requested_by: Option<String>,
    /// Why, if an operator said it.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Changes of layouts, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LayoutChanges {
    /// The changes.
    pub items: Vec<LayoutChange>,
    /// Give it as `cursor` to get the next page.
    pub next_cursor: Option<String>,
}

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

/// How many jobs are in each state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCounts {
    /// By state; every state is named.
    pub by_state: BTreeMap<String, u64>,
    /// All jobs that were ever accepted.
    pub total: u64,
}

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

/// An administrator's explicit switch of MIG mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigModeRequest {
    /// On or off.
    pub on: bool,
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
