//! The vocabulary of Tessera: ids, units, job specifications, the life cycle of jobs and attempts,
//! and the geometry of partitioned GPUs with its laws.
//!
//! Pure: no clock, no randomness, no environment, no I/O. Time and new ids are arguments.
//! Everything that comes from outside is parsed once into a type that can't be wrong.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod batch;
pub mod board_power;
pub mod container;
pub mod dependency;
pub mod gang;
pub mod idle;
pub mod ids;
pub mod isolation;
pub mod lease;
pub mod life;
pub mod mail;
pub mod mig;
pub mod needs;
pub mod number;
pub mod place;
pub mod readings;
pub mod retention;
pub mod share;
pub mod sizing;
pub mod spec;
pub mod task;
pub mod units;

pub use gang::{GangMember, GangShape};
pub use ids::{
    AttemptId, BootId, ControllerId, DecisionId, GpuId, JobId, JobRef, NodeId, NodeIdentity,
    NodeName, PlanId, SliceId, SubmissionId,
};
pub use retention::RetentionTime;
pub use units::{Bytes, Millis};
