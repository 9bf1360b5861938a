//! The state of attempts, and how they end.

use serde::{Deserialize, Serialize};
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::sizing::OOM_EXIT_CODE;
use tessera_model::{AttemptId, Bytes, JobId, Millis};

/// How one attempt stands on its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptReport {
    /// Its id.
    pub attempt: AttemptId,
    /// The job that it belongs to.
    pub job: JobId,
    /// How it stands.
    pub status: AttemptStatus,
}

/// How an attempt stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AttemptStatus {
    /// Written to the node's journal; its program has not been started yet.
    Journalled,
    /// Its program runs.
    Running {
        /// Process id of the program.
        pid: u32,
        /// When it was started, milliseconds since 1970 on the node's wall clock.
        started_unix: Millis,
    },
    /// It is over; kept on the node's disk until acknowledged.
    Ended(ExitRecord),
}

/// How an attempt ended, as its shepherd wrote it down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// How it ended.
    pub outcome: Outcome,
    /// The program's exit status, if it ever ran and its end was seen.
    pub exit: Option<ProgramExit>,
    /// One sentence for people; empty where the outcome is enough.
    pub detail: String,
    /// When the program was started, milliseconds since 1970; zero if never.
    pub started_unix: Millis,
    /// When it ended, milliseconds since 1970.
    pub ended_unix: Millis,
    /// Processor time in user mode.
    pub user_time: Millis,
    /// Processor time in the kernel.
    pub system_time: Millis,
    /// Largest resident set of any one process.
    pub max_rss: Bytes,
}

/// How the detail of a record begins if the host's memory ran out, not the GPU's. The layout of records stays
/// as it is, since shepherds of earlier versions write them.
pub const HOST_MEMORY_DETAIL: &str = "the kernel killed it for lack of host memory";

/// What the detail of a record holds if an allocator refused memory to the program, as its companion observed.
pub const REFUSED_DETAIL: &str = " (its allocator was refused)";

/// What shows that a program ran out of GPU memory, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OomEvidence {
    /// The end of its output alone: such a line may be about anything.
    Text,
    /// Its allocator was refused memory, as its companion observed.
    Refused,
    /// The program itself, by its exit status [`OOM_EXIT_CODE`].
    Reported,
}

impl ExitRecord {
    /// Returns what shows that the program ran out of GPU memory, if it did. Then it ended itself; if the
    /// host's memory runs out, the kernel kills it.
    pub fn out_of_gpu_memory(&self) -> Option<OomEvidence> {
        let exit = self.exit.filter(|exit| {
            let is_host = self.detail.starts_with(HOST_MEMORY_DETAIL);
            self.outcome == Outcome::OutOfMemory && !is_host && *exit != ProgramExit::Signal(9)
        })?;
        Some(match exit == ProgramExit::Code(OOM_EXIT_CODE) {
            true => OomEvidence::Reported,
            false if self.detail.contains(REFUSED_DETAIL) => OomEvidence::Refused,
            false => OomEvidence::Text,
        })
    }
}

/// Why an attempt is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCause {
    /// Its user requested it.
    Cancel,
    /// Its placement is needed for another job.
    Preempt,
    /// It is to run again with another share: it gets its checkpoint signal first.
    Reshare,
    /// It is to go on elsewhere: it gets its checkpoint signal first.
    Move,
    /// It is predicted to run out of GPU memory, and is to go on with more. It gets its checkpoint signal first,
    /// if it has one.
    Grow,
}
