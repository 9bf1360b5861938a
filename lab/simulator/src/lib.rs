//! Simulation in virtual time: whole clusters under a placement policy ([`cluster`]), and two
//! programs that share one slice kernel by kernel ([`kernel_device`]).
//!
//! Nothing here reads a clock: the same input and seed give the same result, bit for bit.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod kernel_device;
