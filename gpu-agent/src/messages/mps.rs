//! Messages between the node and the slices that attempts share.

use tessera_frames::cluster::ExitRecord;
use tessera_model::share::MpsShare;
use tessera_model::{AttemptId, SliceId};

use crate::shepherd::protocol::AccountNumbers;
use tessera_agent_core::mps::SharerOrder;

/// Orders that may wait: as many as attempts.
pub const MPS_ORDERS_MAX: usize = 4096;

/// From the node.
#[derive(Clone, Debug)]
pub enum MpsOrder {
    /// An attempt is to start on a slice.
    Share(SharerRequest),
    /// Its program runs.
    Running {
        /// The attempt's id.
        attempt: AttemptId,
        /// Its program.
        pid: u32,
    },
    /// It has ended, or will never run; answered by [`MpsEvent::Judged`] if there is a record.
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
    /// The slice that is to be shared.
    pub slice: SliceId,
    /// The user's name.
    pub user: String,
    /// The user's account; `None` for the agent's own.
    pub account: Option<AccountNumbers>,
    /// Its part.
    pub share: MpsShare,
    /// What orders its kernels.
    pub order: SharerOrder,
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
        /// The command to run before it is killed.
        before_kill: Vec<String>,
    },
    /// The slice can't be shared.
    Refused {
        /// The attempt's id.
        attempt: AttemptId,
        /// The reason, as text for people.
        reason: String,
    },
    /// The sharers of a slice can't continue.
    Fault {
        /// The attempts' ids.
        attempts: Vec<AttemptId>,
    },
    /// How an end counts.
    Judged {
        /// The attempt's id.
        attempt: AttemptId,
        /// The record to report.
        record: Box<ExitRecord>,
    },
}
