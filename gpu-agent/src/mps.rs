//! Shared slices: one MPS control daemon for each slice and user, on demand.
//!
//! Each slice has its own task, so that a hanging daemon blocks nothing else. A daemon
//! that dies, a server in fault and a client that broke its server all end the slice's attempts and
//! nothing else. The next attempt gets a fresh daemon in fresh folders.

mod access;
pub mod canary;
mod control;
pub mod counts;
pub mod daemon;
mod log;
mod messages;
mod router;
mod slice;
pub mod terminate;
mod work;
pub mod worker;

use std::path::PathBuf;

pub use control::find;
pub use router::{noted, run};

/// What the node uses.
#[derive(Clone, Debug)]
pub struct MpsSettings {
    /// NVIDIA's control program.
    pub control: PathBuf,
    /// What runs a small kernel as a client, and its arguments.
    pub canary: Vec<String>,
    /// The agent's data folder.
    pub data: PathBuf,
    /// Variables of the agent's own environment that daemons get.
    pub passed: Vec<(String, String)>,
    /// The launcher that starts a worker as a daemon's user; `None` for an agent that is root, or for one that serves its
    /// own account only.
    pub launcher: Option<PathBuf>,
}
