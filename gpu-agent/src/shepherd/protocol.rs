//! The protocol between an agent and its shepherds: frames of the wire's codec with the wire's
//! length prefix, over a unix socket.

use serde::{Deserialize, Serialize};
use tessera_agent_core::shepherd::{HeldAttempt, KillReason};
use tessera_frames::cluster::{ExitRecord, StopCause};
use tessera_model::mig::Slot;
use tessera_model::needs::LaunchNeeds;
use tessera_model::readings::MemoryReading;
use tessera_model::spec::RunSpec;
use tessera_model::{AttemptId, Bytes, GpuId, JobId, Millis};
use uuid::Uuid;

use crate::sys::identity::ProcessIdentity;
use tessera_agent_core::container::ContainerPlan;

/// Raised with each change. Frames are only added at the end. A hello and how attempts are ended
/// stay as they are, so that an agent can be replaced while attempts run. A shepherd of an earlier
/// version keeps its attempt, gets no other, and is sent no frame that it doesn't know
/// ([`ToShepherd::is_known_to`]). A new shepherd that is of another version than its agent gets no
/// attempt: half of an upgrade.
pub const VERSION: u16 = 10;

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
    /// End the attempt: `SIGTERM`, grace, `SIGKILL`.
    Stop {
        /// The attempt's id.
        attempt: AttemptId,
        /// How its end is recorded.
        cause: StopCause,
    },
    /// End the attempt now.
    Kill {
        /// The attempt's id.
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
        /// The attempt's id.
        attempt: AttemptId,
        /// Longest run time; `None` for no limit.
        limit: Option<Millis>,
    },
}

impl ToShepherd {
    /// Returns whether a shepherd of that version accepts the frame: one that doesn't know a frame
    /// exits, and its attempt ends with it.
    pub const fn is_known_to(&self, version: u16) -> bool {
        match self {
            Self::Script(_) | Self::Spawn(_) => version == VERSION,
            Self::SetTimeLimit { .. } => version >= 3,
            Self::Stop { cause: StopCause::Grow, .. } => version >= 7,
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
        /// The attempt's id.
        attempt: AttemptId,
        /// Its program's pid.
        pid: u32,
        /// When, on the wall clock.
        started_unix: Millis,
    },
    /// The attempt has ended and nothing of it runs. The shepherd holds the record until it is
    /// notified to forget it, or until it has put it on disk.
    Ended {
        /// The attempt's id.
        attempt: AttemptId,
        /// How it ended.
        record: ExitRecord,
    },
    /// The attempt was killed, and has not ended yet: it is killed again. Sent every second, so
    /// that the agent sees that the shepherd itself is healthy.
    Ending {
        /// The attempt's id.
        attempt: AttemptId,
    },
    /// What the companions of the attempt's processes reported, if it changed; at most each time that the shepherd
    /// wakes.
    Memory {
        /// The attempt's id.
        attempt: AttemptId,
        /// The sum of its processes' peak reserved memory.
        reserved_peak: Bytes,
        /// In use by its programs now.
        allocated: Bytes,
        /// Iterations so far.
        iteration: u64,
    },
    /// The iterations that companions of the attempt's processes reported since the last time.
    Trail {
        /// The attempt's id.
        attempt: AttemptId,
        /// In use by its programs, or reserved for them now.
        reserved: Bytes,
        /// Whether a framework reserves memory in advance.
        preallocated: bool,
        /// The iterations; at most [`READINGS_MAX`](tessera_model::readings::READINGS_MAX).
        readings: Vec<MemoryReading>,
    },
    /// The minimum that the attempt needs, by its calls of the driver, whenever that changes.
    Needs {
        /// The attempt's id.
        attempt: AttemptId,
        /// What it needs.
        needs: LaunchNeeds,
    },
}

/// Who a shepherd is and what it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShepherdHello {
    /// [`VERSION`] of its build.
    pub version: u16,
    /// Its name, drawn by the agent that started it: nothing else knows it (A5).
    pub id: Uuid,
    /// The shepherd's process, as distinct from a later one with the same number.
    pub process: ProcessIdentity,
    /// The attempt that runs, and those whose ends it holds.
    pub held: Vec<HeldAttempt>,
}

/// Everything that a shepherd needs to run one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpawnOrder {
    /// The attempt's id.
    pub attempt: AttemptId,
    /// The job that it belongs to.
    pub job: JobId,
    /// Its number, as shown to people.
    pub number: u32,
    /// The generation that its lease must have.
    pub generation: u64,
    /// The GPU that it uses.
    pub gpu: GpuId,
    /// The instance that it uses; `None` for a whole GPU.
    pub slot: Option<Slot>,
    /// How to run it. The environment is complete, the output paths are absolute, and a script is
    /// empty: its text comes in a frame before this one.
    pub run: RunSpec,
    /// Whether output files that exist are added to rather than emptied.
    pub append: bool,
    /// Program and arguments that are run before the attempt is killed after its grace; empty if
    /// nothing has to be.
    pub before_kill: Vec<String>,
    /// Its account, and what it may see and open.
    pub confinement: Confinement,
    /// The folder of the Python companion; `None` if it has none.
    pub companion: Option<String>,
    /// How its container is run; `None` if it runs on the node itself.
    pub container: Option<ContainerPlan>,
    /// The shim that watches its calls of the driver; `None` if it is not watched.
    pub watch: Option<String>,
}

/// The account of an attempt, and what it may see and open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Its account; `None` for the agent's own, which changes nothing.
    pub account: Option<AccountNumbers>,
    /// The smallest uid of a person.
    pub uid_min: u32,
    /// Whether it may run as root.
    pub root_allowed: bool,
    /// Whether it has its own `/tmp`.
    pub private_tmp: bool,
    /// Whether processes of others are hidden from it.
    pub hide_processes: bool,
    /// Whether nothing that it runs gets more rights than it has.
    pub no_new_privileges: bool,
    /// Maximum number of processes and threads that it may have; `None` for no limit.
    pub tasks_max: Option<u64>,
    /// Which device nodes it may open; `None` for no rules.
    pub devices: Option<DeviceNumbers>,
}

/// Device nodes that are guarded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNumbers {
    /// The major numbers of drivers whose nodes are closed.
    pub guarded: Vec<u32>,
    /// The attempt's own nodes, which are open, by major and minor number.
    pub open: Vec<(u32, u32)>,
}

/// An account, by numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountNumbers {
    /// The user.
    pub uid: u32,
    /// The user's main group.
    pub gid: u32,
    /// All groups of the user.
    pub groups: Vec<u32>,
}

impl AccountNumbers {
    /// Returns the account in the launcher's form.
    pub fn to_launch(&self) -> tessera_launch::order::Account {
        let Self { uid, gid, groups } = self.clone();
        tessera_launch::order::Account { uid, gid, groups }
    }
}
