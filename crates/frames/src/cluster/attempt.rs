//! The state of attempts, and how they end.

use serde::{Deserialize, Serialize};
use tessera_model::life::{Outcome, ProgramExit};
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

impl ExitRecord {
    /// Returns whether the program ran out of GPU memory. Then it ended itself; if the host's memory runs
    /// out, the kernel kills it.
    pub fn ran_out_of_gpu_memory(&self) -> bool {
        self.outcome == Outcome::OutOfMemory
            && self.exit.is_some_and(|e| e != ProgramExit::Signal(9))
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
}
