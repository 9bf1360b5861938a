//! Time series. The controller keeps them in memory, as nodes report them (every 5 s by default).
//! It keeps one hour for each GPU, and for each attempt its whole run and one hour after it.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

/// Which part of a time series to return.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// How far to go back from the newest point, in seconds; by default 3600.
    #[param(minimum = 1)]
    pub since_secs: Option<u64>,
    /// Maximum number of points, 1 to 720; finer ones are merged. By default 60.
    #[param(minimum = 1, maximum = 720)]
    pub points: Option<u32>,
}

/// The measurements of one step. Values that could not be read are absent, never zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesPoint {
    /// When the step begins.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// GPU memory in use, on average.
    pub memory_bytes: Option<u64>,
    /// GPU memory in use, at most.
    pub memory_max_bytes: Option<u64>,
    /// The busy share of the whole GPU from 0 to 1, on average.
    pub activity: Option<f64>,
    /// The busy share of the whole GPU, at most.
    pub activity_max: Option<f64>,
    /// Power, on average; for an attempt, its part of the GPU's power.
    pub power_watts: Option<f64>,
    /// Energy at the end of the step: of a GPU since its node counts, of an attempt since its
    /// start.
    pub energy_joules: Option<f64>,
}

/// What a running job uses of a GPU now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobFigures {
    /// Number of the job.
    pub job_id: u64,
    /// UUID of the attempt that is running.
    pub attempt: String,
    /// GPU memory that it uses.
    pub memory_bytes: Option<u64>,
    /// Its busy share of the whole GPU from 0 to 1.
    pub activity: Option<f64>,
    /// Energy that is attributed to it so far.
    pub energy_joules: Option<f64>,
}

/// A GPU's time series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuSeries {
    /// Its UUID.
    pub gpu: String,
    /// Name of the node that has the GPU.
    pub node: String,
    /// Its index on the node.
    pub index: u32,
    /// Memory of the whole GPU.
    pub memory_total_bytes: u64,
    /// Length of each point, in seconds.
    pub step_secs: u64,
    /// Oldest first; there is no point where nothing was reported.
    pub points: Vec<SeriesPoint>,
    /// The jobs that run on it now.
    pub jobs: Vec<JobFigures>,
}

/// The time series of all GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterSeries {
    /// The GPUs, by node and index.
    pub items: Vec<GpuSeries>,
}

/// An attempt's time series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttemptSeries {
    /// The attempt's number: 1 for the first.
    pub number: u32,
    /// UUID of the attempt.
    pub id: String,
    /// Length of each point, in seconds.
    pub step_secs: u64,
    /// Oldest first; empty if it ended more than an hour ago, or before its node's first report.
    pub points: Vec<SeriesPoint>,
}

/// A job's time series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobSeries {
    /// Number of the job.
    pub job_id: u64,
    /// Its attempts, oldest first.
    pub attempts: Vec<AttemptSeries>,
}
