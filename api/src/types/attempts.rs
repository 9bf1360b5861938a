//! Attempts of jobs: where, how long, what was foretold of them, what came.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

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
