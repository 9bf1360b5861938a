//! Predictions of jobs' needs, learned from earlier jobs: pure functions from rows of history to
//! models, and from models to numbers with intervals.
//!
//! - [`jct`]: how long a task takes on a size of slice (gradient-boosted trees, as Dyna-P's eq. 5).
//! - [`colocation`]: how fast a job is with co-runners on one slice (random forest with contention
//!   features, as MMK's §III-A), from a controller's knowledge about them.
//! - [`contention`]: the same for any GPU, fitted on public measurements, where a controller has too few runs.
//! - [`memory`]: the memory that a task needs, from its runs.
//! - [`peak`]: the memory that a growing job needs at its end, and when it has to be moved.
//! - [`estimate`]: the memory that a model needs, from its description.
//! - [`drift`]: whether predictions are still accurate; if not, callers get conservative values.
//!
//! Nothing here reads a clock, a file or a source of entropy. The same rows give the same model, bit for bit.
//! So a version that the store names can be trained again and compared. The learners are ours
//! ([`learn`]): available ones use a thread's random numbers or hide their models, and a few
//! hundred lines are enough for tables of this size.

#![forbid(unsafe_code)]

pub mod colocation;
pub mod contention;
pub mod drift;
pub mod estimate;
pub mod jct;
pub mod learn;
pub mod memory;
pub mod number;
pub mod outcome;
pub mod peak;
pub mod random;
pub mod trained;

pub use outcome::{Prediction, PredictionSource};
pub use trained::{HeldOutError, ModelVersion, TooFewRows, TrainedModel, learn_with_error};
