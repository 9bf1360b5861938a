//! A whole cluster in virtual time. Jobs arrive, GPUs are repartitioned, and the policies of
//! `tessera-placement` decide with the same view as in a controller.
//!
//! Discrete events, whole milliseconds, no clock and no randomness except the seed: the same
//! workload, cluster, policy and seed give the same run, bit for bit. [`job`] defines jobs, and
//! [`contention`] how co-runners slow each other. [`overheads`] has the cost of migrations and
//! partitioning, [`metrics`] the results, and [`bounds`] the bounds of all schedules.

pub mod bounds;
pub mod calibration;
pub mod colocation;
pub mod contention;
mod engine;
pub mod exact_batch;
pub mod experiment;
mod finding;
pub mod fleet;
pub mod job;
mod measured;
pub mod metrics;
pub mod number;
pub mod overheads;
pub mod predictors;
pub mod report;
mod sharing;
pub mod workload;

pub use engine::{HALF_LIFE, SimulationError, SimulationRun, SimulationSetup, run};

/// Why a name and settings are not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The simulator runs no policy of this name.
    #[error("there is no policy {name:?}: choose one of \
             {}", tessera_lab_policies::all_names().join(", "))]
    Unknown {
        /// The name that no row has.
        name: String,
    },
    /// The policy has no such settings.
    #[error(transparent)]
    Settings(#[from] tessera_placement::policy::BadSettings),
}

/// Finds a policy by its name.
///
/// # Errors
///
/// [`PolicyError::Unknown`] lists the existing names.
pub fn policy(name: &str) -> Result<Box<dyn tessera_placement::Policy>, PolicyError> {
    tessera_lab_policies::find_policy(name)
        .ok_or_else(|| PolicyError::Unknown { name: name.to_owned() })
}

/// Finds a policy by its name and changes settings of it, where it has any.
///
/// # Errors
///
/// [`PolicyError`] lists the names of the existing policies, or of settings.
pub fn policy_with(
    name: &str,
    set: &serde_json::Map<String, serde_json::Value>,
) -> Result<Box<dyn tessera_placement::Policy>, PolicyError> {
    let known = policy(name)?;
    if set.is_empty() || !tessera_placement::policy::is_settable(known.as_ref()) {
        return Ok(known);
    }
    Ok(Box::new(tessera_placement::policy::simulated_with(set)?))
}
