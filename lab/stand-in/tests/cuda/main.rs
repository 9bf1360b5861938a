//! The CUDA driver's stand-in as programs meet it.

mod capture;
mod faults;
mod forks;
mod mps;
mod rig;
mod shared;
mod single;
mod slices;
mod streams;
