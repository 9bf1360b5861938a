//! What jobs will take, learned from what jobs took: pure functions from rows of history to models,
//! and from models to numbers with intervals.
//!
//! - [`jct`]: how long a task takes on a size of slice (gradient-boosted trees, as Dyna-P's eq. 5).
//! - [`sharing`]: how fast a job is beside others on one slice (random forest with contention
//!   features, as MMK's §III-A; [`sharing::seen`] does with what a controller knows).
//! - [`memory`]: the least memory that a task is known to need.
//! - [`growth`]: what a job whose memory grows will need in the end (MIGM §3.2).
//! - [`drift`]: whether predictions still come true; if not, who asks gets conservative values.
//!
//! Nothing here reads a clock, a file or chance: the same rows give the same model, bit for bit, so
//! that a version that the store names can be trained again and compared. The learners are ours
//! ([`learn`]): those on offer draw from a thread's chance or keep their models to themselves, and
//! a few hundred lines serve tables of this size.

#![forbid(unsafe_code)]

pub mod drift;
pub mod growth;
pub mod jct;
pub mod learn;
pub mod memory;
pub mod number;
pub mod outcome;
pub mod sharing;
pub mod trained;

pub use outcome::{Prediction, Source};
pub use trained::{TooFew, Trained, Version};
