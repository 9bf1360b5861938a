//! The transport of frames between controllers, agents and shims: QUIC with TLS 1.3.
//!
//! - [`link`]: length-prefixed frames over a QUIC stream.
//! - [`tls`]: the cluster's certificates, and the mutual TLS of all its connections.
//! - [`receipt`]: what a controller gave a node, signed.
//! - [`endpoint`]: a controller's endpoint.
//! - [`kernel_identity`]: the certificate of a kernel queue's endpoint, which shims pin.
//!
//! The frames are in `tessera-frames`, which the pure crates use without a transport.

#![forbid(unsafe_code)]

pub mod endpoint;
pub mod kernel_identity;
pub mod link;
pub mod receipt;
pub mod tls;
