//! The endpoint of the kernel plane: it accepts the shims in the jobs' processes and runs the queue of
//! each slice.
//!
//! It has one thread with a current-thread runtime, apart from the agent's slower work. A switch
//! between threads would cost more than all other work for a launch. On this thread each connection
//! is a task, and each slice is a value that these tasks change one after the other. They are not
//! actix actors: a mailbox would add a pass through the scheduler to each wait for a grant.

mod endpoint;
mod files;
mod gate;
mod handle;
pub mod metrics;
mod outbox;
mod priority;
mod process;
mod registry;
mod session;
mod shim_store;
mod timer;
mod torn_page;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tessera_kernel_queue::{ProfileDelta, QueueCounters, QueueRules, TaskKey, TaskProfile};
use tessera_model::{AttemptId, SliceId};
use tokio::sync::mpsc;

use tessera_agent_core::kernel::{Admission, AttemptTally};

pub use endpoint::{Endpoint, StartError, start};
pub use files::{find_shim, gates_of};
pub use gate::MappedGate;
pub use handle::{AdmitError, EndpointHandle};
pub use shim_store::store_shim;

/// Most waiting orders: one for each attempt.
pub const ORDERS_MAX: usize = 4_096;
/// Most events that wait for the node. At this number no more are sent.
pub const EVENTS_MAX: usize = 1_024;

/// The endpoint's settings.
#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// The shim's library, `libcuda.so.1` in a folder of its own.
    pub shim: PathBuf,
    /// How slices are shared.
    pub rules: QueueRules,
    /// The agent's data folder.
    pub data: PathBuf,
    /// The folder of the gate pages, on a file system in memory.
    pub gates: PathBuf,
}

/// The secret by which processes of an attempt authenticate.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub(crate) [u8; 32]);

impl std::fmt::Debug for Token {
    /// Hides the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Returns whether this is the presented token. The comparison takes constant time.
    pub fn is(&self, presented: &[u8; 32]) -> bool {
        let differs = self.0.iter().zip(presented).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differs) == 0
    }
}

/// An order from the node to the endpoint.
#[derive(Debug)]
pub enum KernelOrder {
    /// The processes of an attempt may join from now on.
    Admit {
        /// Their slice, task and priority.
        admission: Admission,
        /// The token by which they authenticate.
        token: Token,
    },
    /// An attempt is over. The answer is [`KernelEvent::Over`].
    Ended(AttemptId),
    /// The controller's profile of a task.
    Learn {
        /// The key of the task.
        task: TaskKey,
        /// Its profile.
        profile: Box<TaskProfile>,
    },
}

/// An event from the endpoint to the node.
#[derive(Debug)]
pub enum KernelEvent {
    /// A slice's profile of a task changed.
    Learned {
        /// The key of the task.
        task: TaskKey,
        /// The change of its profile.
        learned: Box<ProfileDelta>,
    },
    /// The totals of an attempt that is over.
    Over {
        /// The attempt.
        attempt: AttemptId,
        /// Its totals.
        tally: Box<AttemptTally>,
    },
}

/// The numbers of one slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceNumbers {
    /// The counters of its queue.
    pub counters: QueueCounters,
    /// Sessions by role: measure, free, hold, fill.
    pub roles: [u64; 4],
    /// Launches that are waiting now.
    pub waiting: u64,
    /// The least progress of the fillers, in thousandths.
    pub least_progress: Option<u64>,
}

/// All numbers of the endpoint. They are at most a second old.
#[derive(Clone, Debug, Default)]
pub struct EndpointNumbers {
    /// By slice.
    pub slices: BTreeMap<SliceId, SliceNumbers>,
    /// By attempt.
    pub attempts: BTreeMap<AttemptId, AttemptTally>,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that ended because of invalid frames.
    pub nonsense: u64,
    /// Queues that were started again after a bug ended them.
    pub restarts: u64,
}

/// The numbers of the endpoint, shared with other threads.
#[derive(Clone, Debug, Default)]
pub struct SharedNumbers(Arc<Mutex<EndpointNumbers>>);

impl SharedNumbers {
    /// Returns the numbers.
    pub fn read(&self) -> EndpointNumbers {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns one attempt's numbers.
    pub fn attempt(&self, attempt: AttemptId) -> Option<AttemptTally> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).attempts.get(&attempt).copied()
    }

    fn write(&self, numbers: EndpointNumbers) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
    }
}

/// The ends of the channels that the endpoint's thread holds.
#[derive(Debug)]
struct EndpointChannels {
    orders: mpsc::Receiver<KernelOrder>,
    events: mpsc::Sender<KernelEvent>,
    numbers: SharedNumbers,
}
