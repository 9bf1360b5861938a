//! What went wrong on a GPU, and what the node made of it.

use serde::{Deserialize, Serialize};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, Millis};

/// Maximum number of faults in one report: the newest.
pub const FAULTS_MAX: usize = 16;
/// Maximum number of attempts that one fault names; a GPU has at most seven instances, and an
/// instance is seldom shared by more.
pub const FAULT_ATTEMPTS_MAX: usize = 16;

/// One fault of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFault {
    /// When it was first seen, milliseconds since 1970 on the node's wall clock.
    pub at_unix: Millis,
    /// What it was.
    pub cause: FaultCause,
    /// The instance that it struck; `None` if it struck the whole GPU, or the driver didn't report it.
    pub slot: Option<Slot>,
    /// The attempts that it hit, at most [`FAULT_ATTEMPTS_MAX`].
    pub attempts: Vec<AttemptId>,
    /// What was done about it.
    pub action: FaultAction,
    /// How often it came, this time included; equal faults in a row are one.
    pub times: u32,
    /// One sentence for people.
    pub message: String,
}

/// What a fault was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FaultCause {
    /// An error that the driver reported by its number.
    Xid(u32),
    /// A call of the management library failed.
    Nvml {
        /// Name of the function of NVML that failed.
        call: String,
        /// Its return code.
        code: u32,
    },
    /// The driver did not answer in time.
    Silence,
}

/// What a fault calls for, the mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FaultAction {
    /// It is only recorded.
    Record,
    /// The program that it hit has failed; the GPU is fine.
    RestartApp,
    /// No new work; a reset is due once the running work is over.
    Drain,
    /// The GPU is unusable until it is reset; its attempts run again elsewhere.
    ResetGpu,
    /// As [`FaultAction::ResetGpu`], but only a restart of the machine helps.
    RestartNode,
}

/// A GPU that is quarantined although it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Since when, milliseconds since 1970.
    pub since_unix: Millis,
    /// When it ends by itself; `None` if only an operator ends it.
    pub until_unix: Option<Millis>,
    /// The reason, as text for people.
    pub reason: String,
}
