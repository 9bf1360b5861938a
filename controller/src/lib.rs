//! The controller: keeps jobs, nodes and layouts in PostgreSQL, places jobs, and answers users.
//!
//! - [`http`]: the REST API. Parses at the edge, reads from the store, commands the placer.
//! - [`store`]: every SQL statement.
//! - [`core`]: what to do, as pure functions.
//! - [`actors`]: carries it out.
//! - [`figures`]: what GPUs draw now, as their nodes last said.
//! - [`kernels`]: what nodes say of kernels.
//! - [`memory`]: what the data folder remembers of the store.
//! - [`ports`]: how the three speak to each other.

#![forbid(unsafe_code)]

pub mod actors;
pub mod clock;
pub mod core;
pub mod figures;
pub mod http;
pub mod identity;
pub mod kernels;
pub mod memory;
pub mod ports;
pub mod settings;
pub mod store;
