//! Figures over time. They are kept in the controller's memory, as nodes tell them (every 5 s by
//! default): an hour of each card, the whole life of each attempt until an hour after it.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

/// Which part of the figures is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// How far to look back from the newest figure, in seconds; 3600 if left out.
    #[param(minimum = 1)]
    pub since_secs: Option<u64>,
    /// At most so many points, 1 to 720: finer ones are put together. 60 if left out.
    #[param(minimum = 1, maximum = 720)]
    pub points: Option<u32>,
}

/// What was measured within one step. What could not be read is absent, never zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesPoint {
    /// When the step begins.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// GPU memory in use, on average.
    pub memory_bytes: Option<u64>,
    /// GPU memory in use, at most.
    pub memory_max_bytes: Option<u64>,
    /// The busy share of the whole card from 0 to 1, on average.
    pub activity: Option<f64>,
    /// The busy share of the whole card, at most.
    pub activity_max: Option<f64>,
    /// Power, on average; for an attempt, what it bore of the card's.
    pub power_watts: Option<f64>,
    /// Energy at the end of the step: of a card since its node counts, of an attempt since its
    /// start.
    pub energy_joules: Option<f64>,
}

/// What a running job has of a GPU now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobFigures {
    /// The job.
    pub job_id: u64,
    /// Its attempt.
    pub attempt: String,
    /// GPU memory that it has.
    pub memory_bytes: Option<u64>,
    /// Its busy share of the whole card from 0 to 1.
    pub activity: Option<f64>,
    /// Energy that it bore so far.
    pub energy_joules: Option<f64>,
}

/// A GPU's figures over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuSeries {
    /// Its UUID.
    pub gpu: String,
    /// Its node.
    pub node: String,
    /// Its index on the node.
    pub index: u32,
    /// Memory of the whole card.
    pub memory_total_bytes: u64,
    /// Length of each point, in seconds.
    pub step_secs: u64,
    /// Oldest first; a time in which nothing was told has none.
    pub points: Vec<SeriesPoint>,
    /// The jobs that have it now.
    pub jobs: Vec<JobFigures>,
}

/// The figures of all GPUs over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterSeries {
    /// By node and index.
    pub items: Vec<GpuSeries>,
}

/// An attempt's figures over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttemptSeries {
    /// The attempt's number: 1 for the first.
    pub number: u32,
    /// Its id.
    pub id: String,
    /// Length of each point, in seconds.
    pub step_secs: u64,
    /// Oldest first; none if it ended more than an hour ago, or before its node told of it.
    pub points: Vec<SeriesPoint>,
}

/// A job's figures over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobSeries {
    /// The job.
    pub job_id: u64,
    /// Its attempts, oldest first.
    pub attempts: Vec<AttemptSeries>,
}
