//! The agent as a process: attempts, layouts, errors of the driver, files, and walls between users, with the simulated
//! driver.
//!
//! One program, because each test program compiles the agent's asynchronous code once more.

mod attempts;
mod common;
mod companion;
mod containers;
mod fencing;
mod gpu_errors;
mod layout;
mod matrix;
mod telemetry;
mod throughput;
mod torn;
mod walls;
