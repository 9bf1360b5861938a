//! Carries out what [`crate::core`] decides: actors and the tasks around them.

pub mod foretold;
pub mod history;
pub mod intake;
pub mod leadership;
pub mod links;
pub mod placer;
mod questions;
pub mod teacher;
pub mod traces;
