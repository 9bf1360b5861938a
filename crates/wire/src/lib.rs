//! What controllers, agents and shepherds say to each other, and how.
//!
//! - [`frames`]: every message, as plain data.
//! - [`kernel`]: what preloaded shims and the kernel queue of their slice say to each other.
//! - [`gate`]: the page of memory that both see beside it.
//! - [`codec`]: bytes to messages and back; the only file that names bincode.
//! - [`link`]: length-prefixed frames over a QUIC stream.
//! - [`tls`]: the cluster's certificates, and the mutual TLS that every connection uses.

#![forbid(unsafe_code)]

pub mod codec;
pub mod endpoint;
pub mod frames;
pub mod gate;
pub mod kernel;
pub mod link;
pub mod tls;

pub use frames::{ToAgent, ToController};
