//! The CUDA driver's stand-in as programs meet it.

mod capture;
mod failing_calls;
mod forks;
mod mps;
mod rig;
mod shared;
mod single;
mod slices;
mod streams;
