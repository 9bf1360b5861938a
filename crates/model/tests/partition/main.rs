//! The partition state machine: its numbers on known GPUs, its laws on any.

mod invented;
mod laws;
mod naive;
mod numbers;
mod plans;
