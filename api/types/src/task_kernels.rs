//! Measured kernels of tasks.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Tasks whose kernels were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelTasks {
    /// The tasks, the most recently reported first.
    pub items: Vec<KernelTask>,
}

/// A task whose kernels were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelTask {
    /// Its key: the user, and the `task_key` of its jobs or the program with its arguments.
    pub task_key: String,
    /// Number of its kernels.
    pub kernels: u32,
    /// Whether the measurement is complete.
    pub measured: bool,
    /// Number of reports from nodes.
    pub reports: u64,
    /// When the last report arrived.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// The measured kernels of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskKernels {
    /// The key under which runs of the task are counted together.
    pub task_key: String,
    /// Whether the measurement is complete.
    pub measured: bool,
    /// Its kernels, the longest device time first.
    pub kernels: Vec<KernelView>,
}

/// One kernel of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelView {
    /// The function's name, as the driver reports it.
    pub name: String,
    /// The grid's three sides.
    pub grid: Vec<u32>,
    /// The block's three sides.
    pub block: Vec<u32>,
    /// Its run time; absent until measured.
    pub took: Option<KernelTime>,
    /// The idle time of the device after it.
    pub gap: Option<KernelTime>,
}

/// A measured time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelTime {
    /// Its mean, in microseconds.
    pub mean_us: f64,
    /// Number of samples.
    pub samples: u32,
    /// Whether the mean is known to 5 % at 95 % confidence.
    pub tight: bool,
}
