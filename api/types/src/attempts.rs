//! Attempts of jobs: where and how long they ran, what was predicted, and the outcome.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// The attempt's id.
    pub id: String,
    /// Its number: 1 for the first.
    pub number: u32,
    /// `placing`, `starting`, `running`, `stopping`, or how it ended: `succeeded`, `failed`,
    /// `cancelled`, `timed_out`, `out_of_memory`, `preempted`, `lost`, `launch_failed`,
    /// `not_started`.
    pub state: String,
    /// The node that it ran on.
    pub node: String,
    /// UUID of its GPU.
    pub gpu: String,
    /// Index of its GPU on the node.
    pub gpu_index: Option<u32>,
    /// Its slice; absent until the slice exists.
    pub slice: Option<String>,
    /// Profile of the slice, or `whole GPU`.
    pub profile: String,
    /// First memory slice of the instance.
    pub start_slice: Option<u8>,
    /// The decision that chose the placement.
    pub decision: Option<String>,
    /// When the placement was reserved.
    #[serde(with = "time::serde::rfc3339")]
    pub placed_at: OffsetDateTime,
    /// When the program was started.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// The status and the number of the signal, as Slurm writes them: `code:signal`.
    pub exit_code: Option<String>,
    /// How it ended, in one sentence.
    pub detail: Option<String>,
    /// Processor seconds in user mode.
    pub user_secs: Option<f64>,
    /// Processor seconds in the kernel.
    pub system_secs: Option<f64>,
    /// Largest resident set of any one process.
    pub max_rss_bytes: Option<u64>,
    /// GPU energy that is attributed to it, in joules: so far while it runs, final after its end.
    /// The energy of all attempts and of idle time adds up to the GPU's counter. Absent until
    /// measured.
    #[serde(default)]
    pub gpu_energy_joules: Option<f64>,
    /// The peak GPU memory that was measured for it: so far while it runs, final after its end.
    #[serde(default)]
    pub gpu_memory_peak_bytes: Option<u64>,
    /// GPU memory that it uses now, while it runs.
    #[serde(default)]
    pub gpu_memory_bytes: Option<u64>,
    /// GPU memory that it may use: that of its slice, or its limit on a shared slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_given_bytes: Option<u64>,
    /// How it uses its slice: `exclusive`, `mps`, `kernel` or `kernel:exclusive`. With `share` = `auto` the controller
    /// chose that at the placement, and it does not change until the attempt's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Its percentage of the slice's multiprocessors: with `share` = `mps`, or as requested with `share` = `kernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Where that size comes from: `out_of_memory`, `predicted`, `declared`, `first_launch`, `learned`, `estimated`, or
    /// `unknown`. With `first_launch` the job had allocated this much before its first kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_source: Option<String>,
    /// Its counters in the slice's kernel queue so far, with `share` = `kernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelQueueUse>,
    /// The predicted run time at its placement; absent where nothing was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionView>,
    /// The predicted GPU memory, if its job requests no size; absent if its task never ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_prediction: Option<MemoryPredictionView>,
    /// The predicted speed with co-runners under MPS; absent if there was no model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colocation_prediction: Option<ColocationPredictionView>,
}

/// The predicted speed of a run with co-runners under MPS, and the measured speed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ColocationPredictionView {
    /// Number of co-runners on the slice at its start.
    pub co_runners: u32,
    /// 5th percentile of the predicted speed, relative to its task alone on such a slice.
    pub low: f64,
    /// The median of the predicted speed, relative to its task alone.
    pub speed: f64,
    /// 95th percentile of the predicted speed.
    pub high: f64,
    /// The measured speed over its whole run; absent until known.
    pub measured: Option<f64>,
    /// The measured mean number of co-runners; absent until known.
    pub co_runners_mean: Option<f64>,
}

/// The GPU memory that earlier runs of a task predict for a run, and the measured peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryPredictionView {
    /// Number of earlier runs.
    pub runs: u32,
    /// Lower bound of the prediction.
    pub low_bytes: u64,
    /// The memory estimate that the placement requests: the largest peak of earlier runs, or more
    /// than the memory that one ran out of.
    pub estimate_bytes: u64,
    /// Upper bound of the prediction.
    pub high_bytes: u64,
    /// Whether the estimate is raised by half, since recent runs of the task exceeded their
    /// predictions.
    pub cautious: bool,
    /// Its measured peak; absent until it has succeeded.
    pub peak_bytes: Option<u64>,
    /// Memory of its slice, if it ran out of memory.
    pub ran_out_of_bytes: Option<u64>,
}

/// A predicted run time, and the outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredictionView {
    /// The basis: `same_slice`, `learned`, `compared_models`, `other_slice`, `other_model` or
    /// `time_limit`. `same_slice` uses runs of the task on such slices. `learned` uses runs on other
    /// slices, and a model trained on other tasks. `compared_models` uses runs on other GPU models, and
    /// tasks that ran on both. `other_slice` and `other_model` scale runs elsewhere by a rule. With
    /// `time_limit` no run is known.
    pub basis: String,
    /// Number of earlier runs.
    pub runs: u32,
    /// 10th percentile of the predicted run time.
    pub low_secs: f64,
    /// Median of the predicted run time.
    pub expected_secs: f64,
    /// 90th percentile of the predicted run time.
    pub high_secs: f64,
    /// The measured run time; absent until the job has ended with this attempt.
    pub ran_secs: Option<f64>,
}

/// Counters of one attempt's processes in their slice's kernel queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelQueueUse {
    /// Processes that joined the queue: 0 means that no launch was intercepted.
    pub processes: u64,
    /// Kernel launches that were reported to the queue; an attempt that is alone reports none.
    pub launches: u64,
    /// Launches that were not reported, such as those captured into graphs.
    pub launches_unreported: u64,
    /// Predicted gaps after its kernels that have ended.
    pub gaps_seen: u64,
    /// Those in which others launched kernels.
    pub gaps_filled: u64,
    /// Gaps that it ended before their predicted end while another process held a grant.
    pub early_stops: u64,
    /// How often the holder resumed while a kernel of this attempt was still running.
    pub overshoots: u64,
    /// Duration of the longest overshoot.
    pub overshoot_secs_max: f64,
    /// Its kernels that ran in others' gaps.
    pub filled_kernels: u64,
    /// The predicted time of those kernels.
    pub filled_secs: f64,
    /// Completed waits for grants.
    pub waits: u64,
    /// Their total duration.
    pub waited_secs: f64,
    /// Duration of the longest wait.
    pub waited_secs_max: f64,
    /// The part of its time that it progressed: kernel time in gaps, divided by that and its waits.
    pub progress: Option<f64>,
    /// Launches that were granted because their waiting time reached the limit of the queue.
    pub aged: u64,
    /// Launches that timed out and ran without a grant.
    pub ungranted: u64,
    /// Kernels that were measured again because their times had changed.
    pub drifts: u64,
    /// Records that its processes lost, so that these counters are too low.
    pub records_lost: u64,
    /// The largest device memory that one of its processes allocated.
    pub memory_peak_bytes: u64,
    /// Kernels that started next to running kernels of other jobs, because all of them fitted on the slice.
    #[serde(default)]
    pub colocated: u64,
    /// Processes whose session thread runs with raised priority; absent for attempts from before it was counted.
    /// All launches of a process wait for this thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_raised: Option<u64>,
    /// Grants that it received before their gap began; absent for attempts from before they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants_ahead: Option<u64>,
    /// Those of these under which it launched a kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants_ahead_used: Option<u64>,
}
