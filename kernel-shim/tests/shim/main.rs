//! The shim as programs meet it: real processes, real loader, a driver of the tests' own.

mod built;
mod correctness;
mod interception;
mod job;
mod launches;
mod library;
mod needs;
mod queue;
mod sessions;
mod watch;
