//! What users touch: the bodies of the REST API, a typed client, and the `tessera` command.

#![forbid(unsafe_code)]

pub mod cli;
pub mod client;
pub mod types;
