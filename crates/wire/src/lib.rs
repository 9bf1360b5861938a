//! The messages between controllers, agents and shepherds, and their transport.
//!
//! - [`frames`]: every message, as plain data.
//! - [`kernel`]: the messages between preloaded shims and the kernel queue of their slice.
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
