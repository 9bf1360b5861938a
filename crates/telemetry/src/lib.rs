//! Logs and traces: set-up for every program, W3C trace contexts as plain strings, and the names
//! of metrics and span attributes.
//!
//! Everything here works without a collector too: spans then still have ids, so that log lines
//! carry them and a job still gets a valid `TRACEPARENT`; they are only not sent anywhere.

#![forbid(unsafe_code)]

pub mod context;
pub mod exposition;
mod format;
pub mod names;
mod setup;

pub use setup::{InitError, TelemetryGuard, exporting, init};
