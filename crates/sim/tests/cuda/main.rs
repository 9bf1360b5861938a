//! The CUDA driver's stand-in as programs meet it.

mod rig;
mod shared;
mod single;
