//! Logs and traces: set-up for every program, W3C trace contexts as plain strings, and the names
//! of metrics and span attributes.
//!
//! Everything here works without a collector too. Spans then still have ids, for log lines and for the
//! `TRACEPARENT` of jobs, and are not sent anywhere.

#![forbid(unsafe_code)]

pub mod context;
pub mod exposition;
mod format;
pub mod names;
pub mod service;
mod setup;

pub use setup::{InitError, TelemetryGuard, exporting, init};
