//! What the agent and its shepherds know of an attempt, as plain data, and what its end means.

pub mod verdict;

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::{AttemptStatus, ExitRecord};
use tessera_model::life::Outcome;
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, Bytes, GpuId, JobId, Millis};

/// The attempt of a shepherd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldAttempt {
    /// The attempt's id.
    pub attempt: AttemptId,
    /// The job that it belongs to.
    pub job: JobId,
    /// The generation that it was launched under.
    pub generation: u64,
    /// The GPU that it uses.
    pub gpu: GpuId,
    /// The instance that it uses; `None` for a whole GPU.
    pub slot: Option<Slot>,
    /// How it stands.
    pub status: AttemptStatus,
}

/// Why an attempt is ended at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillReason {
    /// The lease ran out (F5).
    LeaseRanOut,
    /// The node has another generation by now (F11).
    OldGeneration,
    /// The controller gave the launch up (F8).
    Revoked,
    /// The driver reported an error of the program's, by this number.
    Xid(u32),
    /// Its GPU failed.
    GpuFailed {
        /// The driver's error, if it was one.
        xid: Option<u32>,
    },
    /// The sharers of its slice can't go on: its MPS server or daemon failed.
    MpsFault,
}

/// Returns the record of an attempt that was over, without running, at `now_unix`.
pub fn never_ran_at(now_unix: Millis, outcome: Outcome, detail: String) -> ExitRecord {
    ExitRecord {
        outcome,
        exit: None,
        detail,
        started_unix: Millis::ZERO,
        ended_unix: now_unix,
        user_time: Millis::ZERO,
        system_time: Millis::ZERO,
        max_rss: Bytes::ZERO,
    }
}
