//! What an agent and a shepherd say to each other: frames of the wire's codec with the wire's
//! length prefix, over a unix socket.

use serde::{Deserialize, Serialize};
use tessera_model::mig::Slot;
use tessera_model::share::CheckpointSignal;
use tessera_model::{AttemptId, GpuId, JobId, Millis};
use tessera_wire::frames::{AttemptStatus, ExitRecord, StopCause};
use uuid::Uuid;

use crate::sys::identity::ProcessIdentity;

/// Raised with each change. Frames are only added at the end; a hello and how attempts are ended stay
/// as they are, so that an agent can be replaced while attempts run: a shepherd of an earlier version
/// keeps its attempt, gets no other, and is sent nothing that it doesn't know
/// ([`ToShepherd::is_known_to`]). A new shepherd that is of another version than its agent gets no
/// attempt: half of an upgrade.
pub const VERSION: u16 = 3;

/// Argument with which a shepherd's program only prints [`VERSION`].
pub const PROTOCOL_FLAG: &str = "--protocol";

/// From an agent to a shepherd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToShepherd {
    /// The text of the script of the order that follows; apart from it, since together they
    /// may be longer than a frame.
    Script(String),
    /// Start an attempt.
    Spawn(Box<SpawnOrder>),
    /// Ask the attempt to end: `SIGTERM`, grace, `SIGKILL`.
    Stop {
        /// Which attempt.
        attempt: AttemptId,
        /// How its end is recorded.
        cause: StopCause,
    },
    /// End the attempt now.
    Kill {
        /// Which attempt.
        attempt: AttemptId,
        /// How its end is recorded.
        reason: KillReason,
    },
    /// The ends of these attempts are in the agent's journal: the shepherd need not keep them.
    Forget {
        /// Which attempts; at most as many as a shepherd holds.
        attempts: Vec<AttemptId>,
    },
    /// The attempt has another time limit, counted from its start.
    SetTimeLimit {
        /// Which attempt.
        attempt: AttemptId,
        /// Longest run time; `None` for no limit.
        limit: Option<Millis>,
    },
}

impl ToShepherd {
    /// Tells whether a shepherd of that version takes the frame: one that doesn't know a frame ends,
    /// and its attempt with it.
    pub const fn is_known_to(&self, version: u16) -> bool {
        match self {
            Self::Script(_) | Self::Spawn(_) => version == VERSION,
            Self::SetTimeLimit { .. } => version >= 3,
            Self::Stop { .. } | Self::Kill { .. } | Self::Forget { .. } => true,
        }
    }
}

/// From a shepherd to its agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromShepherd {
    /// Always first.
    Hello(ShepherdHello),
    /// The program runs.
    Started {
        /// Which attempt.
        attempt: AttemptId,
        /// Its program's pid.
        pid: u32,
        /// When, on the wall clock.
        started_unix: Millis,
    },
    /// The attempt is over and nothing of it runs. The shepherd holds the record until it is
    /// told to forget it, or until it has put it on disk.
    Ended {
        /// Which attempt.
        attempt: AttemptId,
        /// How.
        record: ExitRecord,
    },
}

/// Who a shepherd is and what it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShepherdHello {
    /// [`VERSION`] of its build.
    pub version: u16,
    /// Its name, drawn by the agent that started it: nobody else knows it (A5).
    pub id: Uuid,
    /// Its process.
    pub process: ProcessIdentity,
    /// The attempt that runs, and those whose ends it holds.
    pub held: Vec<Held>,
}

/// The attempt of a shepherd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Which attempt.
    pub attempt: AttemptId,
    /// Of which job.
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

/// Everything that a shepherd needs to run one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpawnOrder {
    /// Which attempt.
    pub attempt: AttemptId,
    /// Of which job.
    pub job: JobId,
    /// Its number, for people.
    pub number: u32,
    /// The generation that its lease must have.
    pub generation: u64,
    /// The GPU that it uses.
    pub gpu: GpuId,
    /// The instance that it uses; `None` for a whole GPU.
    pub slot: Option<Slot>,
    /// Program and arguments; `None` runs the script that came before.
    pub command: Option<Vec<String>>,
    /// Where it runs; the attempt's own folder, if not given.
    pub work_dir: Option<String>,
    /// All of its environment.
    pub environment: Vec<(String, String)>,
    /// Absolute path of standard output, if the user gave one.
    pub stdout: Option<String>,
    /// Absolute path of standard error, if the user gave one.
    pub stderr: Option<String>,
    /// Whether output files that exist are added to rather than emptied.
    pub append: bool,
    /// Longest run time.
    pub time_limit: Option<Millis>,
    /// From `SIGTERM` to `SIGKILL`.
    pub grace: Millis,
    /// Program and arguments that are run before the attempt is killed after its grace; empty if
    /// nothing has to be.
    pub before_kill: Vec<String>,
    /// The signal on which the program saves its state and ends.
    pub checkpoint_signal: Option<CheckpointSignal>,
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
