//! The command against a small real HTTP server.

mod command;
// The client's tests use the same server.
#[path = "../../../client/tests/end_to_end/fake.rs"]
mod fake;
mod mig;
