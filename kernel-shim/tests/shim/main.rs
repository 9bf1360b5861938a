//! The shim as programs use it: real processes, the real loader, and a driver that the tests provide.

mod ahead;
mod built;
mod correctness;
mod interception;
mod job;
mod launches;
mod library;
mod needs;
mod queue;
mod recalls;
mod sessions;
mod watch;
