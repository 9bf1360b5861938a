//! CUDA's driver for GPUs that aren't there: `libcuda.so.1`, with the driver's own C interface.
//!
//! A stand-in with a timed device. It computes nothing but what module images request
//! ([`tessera_stand_in::cuda::image`]), but it takes the time that they name. Processes share its
//! device by the rules of [`tessera_stand_in::cuda::schedule`]: what was launched runs to its end,
//! contexts alternate, clients of an MPS server run at the same time. Memory is the node's
//! ([`tessera_stand_in::node`]), so NVML's stand-in shows who has how much of it and which
//! processes are busy. It is set up by the variables of [`tessera_stand_in::cuda`].
//!
//! The 168 functions of `tier-a.tsv` are simulated; each other of `symbols.tsv` returns 801, not
//! supported, once on stderr and always in the trace. A function newer than the driver's version
//! is not found by `cuGetProcAddress`, and returns 801 to those who found it otherwise, as no
//! library can hide an export.
//!
//! Where it knows less than a driver:
//! - kernels of one context run one at a time, whatever their streams, and a graph's nodes one
//!   after another;
//! - a copy between host memory that isn't pinned and the device is staged as it is requested,
//!   and back it is waited for;
//! - memory can't be allocated or freed within a capture, and no callbacks be added;
//! - time slices of compute instances of one GPU instance know nothing of each other, nor does
//!   their bandwidth;
//! - what a context takes for itself, and what copies cost, are settings and constants, not a
//!   GPU's.

#![allow(non_snake_case, reason = "the driver's names are not ours")]

mod abi;
mod call_faults;
mod capture_mode;
mod clock;
mod complaints;
mod driver;
mod exports;
mod gate;
mod memory;
mod slab;
mod table;
mod thread_state;
mod trace;
mod world;
