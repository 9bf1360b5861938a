//! What the agent knows of GPUs from NVIDIA's management library, as plain data. The calls
//! themselves are the agent's, in a process of their own.

pub mod error;
pub mod facts;
pub mod sample;
