//! The control core: the leader's decisions as pure functions over the state of the cluster.
//!
//! [`ClusterState`] is changed by [`ClusterState::step`] as if the returned [`Round`] were committed
//! already; its effects are carried out only after the commit. If the commit fails, the state is
//! discarded and read again from the store, so it is never ahead of the store.
//!
//! Time and new ids are arguments. Times are milliseconds on the controller's boot clock.
//!
//! Modules use only those below them:
//!
//! 1. Data: [`predictions`], [`rows`], [`commands`], [`answers`] and [`Round`].
//! 2. [`state`]: one owner for each part, which alone keeps the part consistent.
//! 3. Decisions: all other modules. A function takes the owners and the rows of a round that it
//!    changes. `AttemptChanges` has the owners that an attempt's life changes, and `GpuChanges`
//!    those that a new layout modifies.
//!
//! Methods of [`ClusterState`] that take `&self` answer questions. Those that take `&mut self` are
//! in `step`, `input`, `placing`, `load` and `leader` only, and lead to the functions that decide.

#![forbid(unsafe_code)]

pub mod accounts;
pub mod answers;
mod arrivals;
mod attempt_changes;
pub mod callers;
mod cluster_part;
pub mod colocation;
pub mod commands;
mod counterfactual;
#[cfg(test)]
mod crowded_tests;
pub mod deadlines;
mod describe;
mod dispatch;
mod duplicates;
mod duration;
mod ends;
pub mod explain;
mod forecast;
mod free_capacity;
#[cfg(test)]
mod free_capacity_tests;
mod gangs;
mod gate;
mod gpu_changes;
pub mod idle;
mod input;
mod just_in_time;
mod kernel_sharing;
mod layouts;
mod leader;
mod load;
mod memory;
mod memory_curves;
mod memory_growth;
mod memory_requests;
mod mig_mode;
mod migration;
pub mod notifications;
mod out_of_memory;
mod overrides;
mod placing;
mod plans;
mod predicting;
pub mod predictions;
mod preemption;
pub mod queue_rules;
mod reports;
mod reservations;
pub mod rollback;
#[cfg(test)]
mod rollback_tests;
mod round;
pub mod rows;
mod sessions;
mod settle;
#[cfg(test)]
mod simulation;
pub mod site;
mod state;
mod step;
mod usage;
mod view;

pub use input::Input;
pub use round::{CommandResults, JobWrites, Round, RoundEffect, STARTS_MAX};
pub use rows::snapshot::LaunchSpec;
pub use state::ClusterState;
pub use state::planner::Stopwatch;
