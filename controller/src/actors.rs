//! Actors and the tasks around them: they carry out what [`tessera_control`] decides.

mod agent_link;
pub mod intake;
pub mod leadership;
pub mod links;
pub mod placer;
pub mod prediction_metrics;
mod questions;
pub mod retention;
pub mod traces;
pub mod trainer;
