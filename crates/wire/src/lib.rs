//! The transport of frames between controllers, agents and shims: QUIC with TLS 1.3.
//!
//! - [`link`]: length-prefixed frames over a QUIC stream.
//! - [`tls`]: the cluster's certificates, and the mutual TLS of all its connections.
//! - [`authority`]: a controller's authority: it signs, is replaced, and is trusted.
//! - [`joining`]: requests for certificates, and the trust of a machine that joins.
//! - [`replace`]: files that are replaced together.
//! - [`receipt`]: what a controller gave a node, signed.
//! - [`endpoint`]: a controller's endpoint.
//! - [`gate_page`]: the memory of a gate page, handed over on a Unix socket.
//! - [`kernel_identity`]: the certificate of a kernel queue's endpoint, which shims pin.
//!
//! The frames are in `tessera-frames`, which the pure crates use without a transport.

#![forbid(unsafe_code)]

pub mod authority;
pub mod endpoint;
pub mod gate_page;
pub mod joining;
pub mod kernel_identity;
pub mod link;
pub mod receipt;
pub mod replace;
pub mod tls;
