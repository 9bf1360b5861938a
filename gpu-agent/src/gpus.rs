//! One GPU: its state, its file, and the plans that change it.

mod driver_errors;
pub mod file;
pub mod managed;
mod plans;
