//! The agent's decisions. Pure: no clock, no files, no sockets. The caller passes the time, writes
//! the returned records, and then acts.

#![forbid(unsafe_code)]

pub mod attempts;
pub mod attribution;
pub mod companion;
pub mod container;
pub mod doctor;
pub mod driver_watch;
pub mod environment;
pub mod health;
pub mod kernel;
pub mod kernel_log;
pub mod ledger;
pub mod mps;
pub mod nvml;
pub mod out_of_memory;
pub mod output;
pub mod ownership;
pub mod plan;
pub mod retention;
pub mod shepherd;
pub mod telemetry;
pub mod xids;
