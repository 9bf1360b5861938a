//! The client against a small real HTTP server.

mod client;
mod fake;
