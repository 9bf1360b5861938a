//! Why a row of a file is not a job: each message states what would be right.

use tessera_model::mig::catalog::UnknownGpuModel;
use tessera_model::spec::BadField;

use super::parse::{ITERATIONS_MAX, SECS_MAX, WATTS_MAX};

/// What is wrong with a row, and what would be right.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowProblem {
    #[error("{column} is {text:?}: write a number, such as 90 or 1.5")]
    NoNumber { column: String, text: String },
    #[error("{column} is {value}: write a whole number, such as 8")]
    NotWhole { column: String, value: f64 },
    #[error("{column} is {value}: write at most {max}")]
    TooLarge { column: String, value: u64, max: u32 },
    #[error("{column} is {text:?}: write seconds, such as 90")]
    NoSeconds { column: String, text: String },
    #[error("class is {class:?}: online, offline or burstable")]
    Class { class: String },
    #[error("there is no submit_s: write when the job arrives")]
    NoSubmitTime,
    #[error(transparent)]
    Gang(#[from] BadField),
    #[error("priority is {priority}: 0 (highest) to 9")]
    Priority { priority: u64 },
    #[error("memory_end_mib ({end}) is below memory_start_mib ({start}): memory only grows")]
    ShrinkingMemory { start: u64, end: u64 },
    #[error("{field} is {value:?}: write seconds from 0 to {SECS_MAX}")]
    Seconds { field: &'static str, value: f64 },
    #[error("{field} is {value}: a percentage is 0 to 100")]
    Percentage { field: &'static str, value: f64 },
    #[error("power_w is {power}: write watts from 0 to {WATTS_MAX}")]
    Power { power: f64 },
    #[error("iterations is {steps}: write a whole number from 1 to {ITERATIONS_MAX}")]
    Iterations { steps: u64 },
    #[error("sm_percent needs bandwidth_percent (or l2_percent) with it")]
    MultiprocessorsAlone,
    #[error("bandwidth_percent and l2_percent need sm_percent with them")]
    MemoryAlone,
    #[error("it has neither times_s (or t1_s, t2_s …) nor duration_s")]
    NoTimes,
    #[error("gpu_fraction is {fraction}: above 0, at most 1")]
    Fraction { fraction: f64 },
    #[error("{secs} s on {slices} slices of {model}: write seconds above 0, at most {SECS_MAX}")]
    Time { secs: f64, slices: u8, model: String },
    #[error("times_s has no time for {model}")]
    NoTimeFor { model: String },
    #[error("times_s: {0}")]
    Model(#[from] UnknownGpuModel),
    #[error("times_s: {model} has no instance of {slices} compute slices, but of {sizes}")]
    NoInstance { model: String, slices: u8, sizes: String },
}
