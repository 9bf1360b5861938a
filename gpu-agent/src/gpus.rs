//! One GPU: its state, its file, and the plans that change it.

mod faults;
pub mod file;
pub mod managed;
mod plans;
