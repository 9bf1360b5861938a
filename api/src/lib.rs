//! What users touch: the bodies of the REST API, a typed client, and the `tessera` command.

#![forbid(unsafe_code)]

pub mod client;
pub mod types;
