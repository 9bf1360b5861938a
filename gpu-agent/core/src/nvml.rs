//! What the agent knows about GPUs from NVIDIA's management library, as plain data. The agent makes
//! the calls themselves in a separate process.

pub mod error;
pub mod facts;
pub mod sample;
