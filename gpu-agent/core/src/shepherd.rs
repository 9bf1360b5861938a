//! What the agent and its shepherds know about an attempt, as plain data, and the meaning of its
//! end.

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
    /// Its state.
    pub status: AttemptStatus,
}

/// Why an attempt is killed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillReason {
    /// The lease expired (F5).
    LeaseRanOut,
    /// The node now has another generation (F11).
    OldGeneration,
    /// The controller revoked the launch (F8).
    Revoked,
    /// The driver reported an error of the program, with this number.
    Xid(u32),
    /// The GPU has an error after which no program on it can go on.
    GpuFailed {
        /// The driver's error, if it was one.
        xid: Option<u32>,
    },
    /// The sharing jobs of its slice can't continue: its MPS server or daemon failed.
    MpsFault,
}

/// Returns the record of an attempt that ended at `now_unix` without having run.
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
