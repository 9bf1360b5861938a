//! Placement policies: pure functions from the cluster's state to decisions about which job runs
//! where.
//!
//! A policy sees a [`ClusterView`] and the queue in order, and returns [`Decision`]s, each with
//! its reasons. It reads no clock and keeps no state, so the live controller and the simulator run
//! the same code, and a recorded round can be replayed.

#![forbid(unsafe_code)]

mod auto_share;
pub mod compute_instances;
mod decide_round;
pub mod decision;
pub mod estimate;
mod explain;
pub mod facts;
pub mod fair;
mod feasibility;
pub mod gangs;
pub mod kernel_sharing;
pub mod migration_cooldown;
mod numbers;
pub mod offer;
pub mod placement_search;
mod places;
pub mod policy;
pub mod power;
pub mod power_cap;
pub mod predictor;
pub mod preemption;
pub mod preemption_search;
pub mod record;
pub mod request;
mod round;
mod sharing;
pub mod view;
pub mod working_state;

pub use auto_share::share_slices;
pub use decide_round::decide_round;
pub use decision::{
    Decision, Explanation, JobPlacement, PlacedJob, PlacementCandidate, Reshape, StayingJobs,
    WaitReason,
};
pub use estimate::{Basis, Empirical, Estimator, Prediction, SliceKind};
pub use explain::name_job_ahead;
pub use facts::{Account, CoRunner, Demand, JobFacts, JobTable, KnownJobs, SliceLimit};
pub use feasibility::{Feasibility, could_ever_fit, could_hold, largest_possible};
pub use gangs::{GangFeasibility, gang_could_ever_fit};
pub use kernel_sharing::{KernelLengths, KernelSharer, TaskLoad};
pub use policy::session::{Session, session};
pub use policy::{Policy, by_name};
pub use predictor::{
    Knowledge, Predictor, RunTime, SearchBudget, SharedPart, SpeedBasis, SpeedRange, Unknown,
    Unlimited,
};

pub use view::{
    AdminOverride, ClosureKind, ClusterView, ComputeInstancesView, GpuClosure, GpuView,
    InstanceState, InstanceView, MigView, MpsClient, QueueKey, QueuedJob, SharingRequest, Tenancy,
};
