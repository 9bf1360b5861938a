//! The shim as programs meet it: real processes, real loader, a driver of the tests' own.

mod built;
mod interception;
mod library;
