//! The controller: keeps jobs, nodes and layouts in PostgreSQL, places jobs, and answers users.
//!
//! - [`http`]: the REST API. Parses at the edge, reads from the store, commands the placer.
//! - [`store`]: every SQL statement.
//! - [`tessera_control`]: what to do, as pure functions; its own crate.
//! - [`actors`]: carries it out.
//! - [`figures`]: live figures of GPUs, as their nodes last reported.
//! - [`kernel_reports`]: kernel profiles that nodes report.
//! - [`memory`]: what the data folder remembers of the store.
//! - [`principal`]: who calls, and what that caller may do; [`directory`], [`tokens`] and [`oidc`]
//!   prove it, and [`audit`] records what callers did.
//! - [`notifications`]: mail and webhooks about jobs.
//! - [`live`], [`reload`]: settings that change while the controller serves.
//! - [`ports`]: how the three speak to each other.

#![forbid(unsafe_code)]

pub mod actors;
pub mod audit;
pub mod calls;
mod certificate_streams;
pub mod clock;
pub mod connections;
pub mod directory;
pub mod figures;
pub mod host_names;
pub mod http;
pub mod identity;
pub mod kernel_reports;
pub mod listeners;
pub mod live;
pub mod memory;
pub mod node_certificates;
pub mod notifications;
pub mod oidc;
mod outgoing;
pub mod ports;
pub mod principal;
pub mod process_metrics;
pub mod reload;
pub mod requests;
pub mod settings;
pub mod step_reports;
pub mod store;
pub mod tokens;
