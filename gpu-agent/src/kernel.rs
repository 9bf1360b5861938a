//! The kernel plane's endpoint: the shims in the jobs' processes connect here, each slice has its
//! queue here.
//!
//! One thread with a current-thread runtime of its own, away from the agent's slower work: a hop
//! between threads costs more than everything else that is done here for a launch. On that thread
//! each connection is a task (the kernel-shim actor) and each slice a value that these tasks step
//! in turn (the kernel-queue actor). They are no actix actors: a mailbox between the two would add
//! a pass through the scheduler to each wait for a grant, and one thread needs no mailbox for order.

mod desk;
mod endpoint;
mod files;
mod gate;
mod hub;
pub mod metrics;
mod outbox;
mod process;
mod session;
mod shelf;
mod timer;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tessera_kernel_queue::{Counters, Learned, Rules, TaskKey, TaskProfile};
use tessera_model::{AttemptId, SliceId};
use tokio::sync::mpsc;

use crate::core::kernel::{Admission, Tally};

pub use desk::{Desk, Refused};
pub use endpoint::{Endpoint, StartError, start};
pub use files::{find_shim, gates_of};
pub use gate::Gate;
pub use shelf::shelve;

/// Orders that may wait: as many as attempts.
pub const ORDERS_MAX: usize = 4_096;
/// Events that may wait for the node; while this many do, nothing more is told.
pub const EVENTS_MAX: usize = 1_024;

/// What the endpoint uses.
#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// The shim's library, `libcuda.so.1` in a folder of its own.
    pub shim: PathBuf,
    /// How slices are shared.
    pub rules: Rules,
    /// The agent's data folder.
    pub data: PathBuf,
    /// Where gate pages are: a folder on a file system in memory.
    pub gates: PathBuf,
}

/// A token that stands for an attempt.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub(crate) [u8; 32]);

impl std::fmt::Debug for Token {
    /// Keeps the token to itself.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Tells whether this is the token that was presented, in a time that says nothing about how
    /// much of it is right.
    pub fn is(&self, presented: &[u8; 32]) -> bool {
        let differs = self.0.iter().zip(presented).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differs) == 0
    }
}

/// From the node.
#[derive(Debug)]
pub enum KernelOrder {
    /// An attempt's processes may join from now on.
    Admit {
        /// What ranks them.
        admission: Admission,
        /// How they are known.
        token: Token,
    },
    /// An attempt is over; answered by [`KernelEvent::Over`].
    Ended(AttemptId),
    /// What is known of a task elsewhere.
    Learn {
        /// Which task.
        task: TaskKey,
        /// What is known.
        profile: Box<TaskProfile>,
    },
}

/// To the node.
#[derive(Debug)]
pub enum KernelEvent {
    /// Something new is known of a task.
    Learned {
        /// Which task.
        task: TaskKey,
        /// What is new.
        learned: Box<Learned>,
    },
    /// What an attempt that is over did.
    Over {
        /// Which attempt.
        attempt: AttemptId,
        /// What it did.
        tally: Box<Tally>,
    },
}

/// One slice's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceNumbers {
    /// What its queue counted.
    pub counters: Counters,
    /// Sessions that measure, are free, hold, ask.
    pub roles: [u64; 4],
    /// Launches that wait now.
    pub waiting: u64,
    /// The least progress of those that ask, in thousandths.
    pub least_progress: Option<u64>,
}

/// Everything that the endpoint counts, as of its last look: at most a second old.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// By slice.
    pub slices: BTreeMap<SliceId, SliceNumbers>,
    /// By attempt.
    pub attempts: BTreeMap<AttemptId, Tally>,
    /// Connections that were refused, for whatever reason.
    pub refused: u64,
    /// Connections that ended because what came made no sense.
    pub nonsense: u64,
}

/// Where the endpoint leaves its numbers for whoever wants them.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Numbers>>);

impl Board {
    /// Returns the numbers.
    pub fn read(&self) -> Numbers {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns one attempt's numbers.
    pub fn attempt(&self, attempt: AttemptId) -> Option<Tally> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).attempts.get(&attempt).copied()
    }

    fn write(&self, numbers: Numbers) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
    }
}

/// The ends of the endpoint's channels that its thread holds.
#[derive(Debug)]
struct Ports {
    orders: mpsc::Receiver<KernelOrder>,
    events: mpsc::Sender<KernelEvent>,
    board: Board,
}
