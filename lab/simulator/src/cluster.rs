//! A whole cluster in virtual time: jobs that arrive, GPUs that are cut and cut again, and the
//! policies of `tessera-placement` that decide, with the view that a controller gives them.
//!
//! Discrete events, whole milliseconds, no clock and no randomness but the seed: the same workload,
//! cluster, policy and seed give the same run, bit for bit. What a job is stands in [`job`], how
//! sharers slow each other in [`contention`], what moves and cuts cost in [`overheads`], what is
//! measured in [`metrics`], and what no schedule can beat in [`bounds`].

pub mod bounds;
pub mod calibration;
pub mod colocation;
pub mod contention;
mod engine;
pub mod experiment;
mod finding;
pub mod fleet;
pub mod job;
pub mod metrics;
pub mod number;
pub mod overheads;
pub mod predictors;
pub mod report;
pub mod workload;

pub use engine::{SimulationError, SimulationRun, SimulationSetup, run};

/// Finds a policy by its name.
///
/// # Errors
///
/// The names that there are.
pub fn policy(name: &str) -> Result<Box<dyn tessera_placement::Policy>, String> {
    tessera_lab_policies::find_policy(name).ok_or_else(|| {
        let known = tessera_lab_policies::all_names().join(", ");
        format!("there is no policy {name:?}: choose of {known}")
    })
}

/// Finds a policy by its name and changes settings of it, where it has any.
///
/// # Errors
///
/// The names of policies that there are, or of settings.
pub fn policy_with(
    name: &str,
    set: &serde_json::Map<String, serde_json::Value>,
) -> Result<Box<dyn tessera_placement::Policy>, String> {
    let known = policy(name)?;
    if set.is_empty() || !tessera_placement::policy::is_settable(known.as_ref()) {
        return Ok(known);
    }
    let changed = tessera_placement::policy::simulated_with(set).map_err(|bad| bad.to_string())?;
    Ok(Box::new(changed))
}
