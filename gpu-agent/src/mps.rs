//! Shared slices: one MPS control daemon for each slice and user, on demand.
//!
//! Each slice has a task of its own, so that a daemon which hangs holds up nobody else. A daemon
//! that dies, a server in fault and a client that broke its server all end the slice's attempts
//! and nothing else; the next attempt gets a fresh daemon in fresh folders.

pub mod canary;
mod control;
pub mod daemon;
mod log;
mod router;
mod slice;
pub mod terminate;

use std::path::PathBuf;

use tessera_frames::cluster::ExitRecord;
use tessera_model::share::MpsShare;
use tessera_model::{AttemptId, SliceId};

pub use control::find;
pub use router::{noted, run};

/// Orders that may wait: as many as attempts.
pub const ORDERS_MAX: usize = 4096;

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
}

/// From the node.
#[derive(Clone, Debug)]
pub enum MpsOrder {
    /// An attempt is to start on a slice.
    Want(SharerRequest),
    /// Its program runs.
    Running {
        /// The attempt's id.
        attempt: AttemptId,
        /// Its program.
        pid: u32,
    },
    /// It is over, or will never run; answered by [`MpsEvent::Judged`] if there is a record.
    Ended {
        /// The attempt's id.
        attempt: AttemptId,
        /// The end as its shepherd recorded it.
        record: Option<Box<ExitRecord>>,
    },
    /// Always first: the attempts that an earlier agent left running.
    Adopt(Vec<AttemptId>),
}

/// An attempt that is to share a slice.
#[derive(Clone, Debug)]
pub struct SharerRequest {
    /// Its id.
    pub attempt: AttemptId,
    /// The slice.
    pub slice: SliceId,
    /// The user's name.
    pub user: String,
    /// Its part.
    pub share: MpsShare,
}

/// To the node.
#[derive(Clone, Debug)]
pub enum MpsEvent {
    /// The slice serves: the attempt may start, with these variables.
    Ready {
        /// The attempt's id.
        attempt: AttemptId,
        /// What its clients need.
        environment: Vec<(String, String)>,
        /// What is to be run before it is killed.
        before_kill: Vec<String>,
    },
    /// The slice can't be shared.
    Refused {
        /// The attempt's id.
        attempt: AttemptId,
        /// The reason, as text for people.
        reason: String,
    },
    /// The sharers of a slice can't go on.
    Fault {
        /// The attempts' ids.
        attempts: Vec<AttemptId>,
    },
    /// How an end counts.
    Judged {
        /// The attempt's id.
        attempt: AttemptId,
        /// As it is to be reported.
        record: Box<ExitRecord>,
    },
}
