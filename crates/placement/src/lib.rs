//! Which jobs run where: policies as pure functions from what is known to what to do.
//!
//! A policy sees a [`ClusterView`] and the queue in order, and returns [`Decision`]s, each with
//! its reasons. It reads no clock and keeps no state, so the live controller and the simulator
//! run the very same code, and a recorded round can be replayed.

#![forbid(unsafe_code)]

mod ask;
mod board;
pub mod decision;
pub mod estimate;
mod explain;
pub mod fair;
mod feasibility;
pub mod forecast;
pub mod gangs;
pub mod parts;
pub mod policy;
pub mod record;
mod round;
mod seating;
pub mod session;
mod sharing;
pub mod turns;
pub mod view;
mod want;

pub use ask::ask;
pub use decision::{Candidate, Decision, Explanation, Place, Reshape, Seat, Stayers, WaitReason};
pub use estimate::{Basis, Empirical, Estimator, Prediction, SliceKind};
pub use feasibility::{Feasibility, could_ever_fit, could_hold, largest_possible};
pub use forecast::{Account, Companion, Demand, Forecast, Limit, Unknown};
pub use gangs::{GangFeasibility, gang_could_ever_fit};
pub use policy::{Policy, by_name, for_simulation};
pub use session::{Session, session};
pub use turns::Turn;
pub use view::{
    Client, Closed, Closure, ClusterView, GpuView, InstanceState, InstanceView, MigView,
    OperatorWord, QueuedJob, Seats, Sharer, Tenancy,
};
