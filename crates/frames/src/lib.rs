//! The frames of Tessera's connections, as plain data, and their encoding.
//!
//! - [`cluster`]: between a controller and its agents.
//! - [`certificates`]: about nodes' certificates.
//! - [`kernel`]: between preloaded shims and the kernel queue of their slice.
//! - [`gate`]: the page of memory that shims and queue share.
//! - [`codec`]: bytes to frames and back; the only file that names bincode.
//!
//! Pure: no clock, no randomness, no environment, no I/O. `tessera-wire` transports the frames.

#![forbid(unsafe_code)]

pub mod certificates;
pub mod cluster;
pub mod codec;
pub mod gate;
pub mod kernel;

/// What [`gate`] takes its atomic numbers from. The shim's model check compiles that file with others.
mod sync {
    pub use std::sync::atomic;
}
