//! The memory of a job's attempts over time, its prediction, and how well jobs use what they get.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

/// The GPU memory of a job's attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobMemory {
    /// Number of the job.
    pub job_id: u64,
    /// The sizes that slices of its newest attempt's GPU can have, the smallest first; empty while the GPU is not
    /// known.
    pub sizes_bytes: Vec<u64>,
    /// Its attempts whose memory was observed, oldest first.
    pub attempts: Vec<AttemptMemoryView>,
}

/// The GPU memory of one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttemptMemoryView {
    /// The attempt's number.
    pub number: u32,
    /// UUID of the attempt.
    pub id: String,
    /// The memory that it may use.
    pub capacity_bytes: u64,
    /// What positions count: `iterations` of its program, or `seconds`.
    pub unit: String,
    /// What is done about predictions while it runs: `off`, `advise` or `act`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_prediction: Option<String>,
    /// Whether a framework reserves memory in advance, so that nothing is predicted.
    pub preallocated: bool,
    /// Whether it is, or was, moved to a larger slice by a prediction.
    pub moved: bool,
    /// Its memory over positions, oldest first; at most 64 points.
    pub points: Vec<MemoryPointView>,
    /// The prediction that it exceeds its memory: the newest while it runs, otherwise the first
    /// that was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<GrowthView>,
    /// The predicted band from the newest point to the crossing, while it runs.
    pub band: Vec<MemoryBandView>,
    /// The outcome of the prediction: `true`, `false`, `missed` or `late`; absent while it is open,
    /// or if there was nothing to predict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

/// The memory of an attempt at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryPointView {
    /// The last position that the point stands for.
    pub position: u64,
    /// The maximum memory there.
    pub used_bytes: u64,
}

/// The predicted memory of an attempt at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryBandView {
    /// The iteration, or the second for programs without iterations.
    pub position: u64,
    /// Lower bound of the 99 % interval.
    pub low_bytes: u64,
    /// The expected memory.
    pub value_bytes: u64,
    /// Upper bound of the 99 % interval.
    pub high_bytes: u64,
}

/// A prediction that an attempt exceeds its memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GrowthView {
    /// The position at which it was predicted.
    pub position: u64,
    /// The memory in use there.
    pub used_bytes: u64,
    /// The position at which its memory is expected to be exceeded.
    pub crossing: u64,
    /// The earliest such position.
    pub earliest: u64,
    /// How long after the prediction that is, in seconds.
    pub after_secs: f64,
    /// The memory that it is predicted to need at its end, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<MemoryBandView>,
}

/// Whose efficiency is reported, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct EfficiencyQuery {
    /// Start of the period (RFC 3339); by default seven days ago.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub since: Option<OffsetDateTime>,
    /// Only the jobs of these users, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// How well tasks used what they requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EfficiencyReport {
    /// Beginning of the period.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// The tasks, those that held the most unused memory first; at most 1,000.
    pub tasks: Vec<TaskEfficiency>,
}

/// How well the runs of one task used what they requested. Only runs that succeeded count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskEfficiency {
    /// Name of the user whose runs these are.
    pub user: String,
    /// The name of the task's newest job.
    pub name: String,
    /// Number of runs.
    pub runs: u64,
    /// How many of them have a measured peak.
    pub measured: u64,
    /// The memory that the newest run had.
    pub given_bytes: u64,
    /// The peak that 95 % of the runs did not exceed; absent if none was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Memory held and not used, in GiB hours, over the runs with a peak.
    pub unused_gib_hours: f64,
    /// The time limit of the newest run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_secs: Option<u64>,
    /// The run time that 95 % of the runs did not exceed, in seconds.
    pub ran_secs: u64,
    /// The memory to request: the peak and a fifth; absent with fewer than five measured peaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<u64>,
    /// The time limit to request: the run time and a half, at least a minute; absent with fewer than five runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_limit_secs: Option<u64>,
}
