//! The client and the command against a small real HTTP server.

mod client;
mod command;
mod fake;
mod mig;
