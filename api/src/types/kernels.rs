//! Tasks' kernels, as they were measured.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

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
