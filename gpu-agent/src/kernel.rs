//! The endpoint of the kernel plane: it accepts the shims in the jobs' processes and runs the queue of
//! each slice.
//!
//! Each GPU has its own thread with an actix system, apart from the agent's other work and from the other
//! GPUs'. On it one actor owns the queues of the GPU's slices, and each shim's connection is an actor. The GPU has
//! its own socket and port, so that no frame changes threads between the socket and the queue. Such a change
//! would cost more than all other work for a launch. A message between actors of one thread costs a quarter of a
//! microsecond.

mod actors;
mod endpoint;
mod errors;
mod files;
mod gate;
mod handle;
pub mod metrics;
mod numbers;
mod outbox;
mod parts;
mod plane;
mod planes;
mod priority;
mod process;
mod queues;
mod shim_store;
#[cfg(test)]
mod tests;
mod timer;
mod unsent;

use std::path::PathBuf;

use tessera_kernel_queue::{ProfileDelta, QueueRules, TaskKey, TaskProfile};
use tessera_model::{AttemptId, SliceId};

use tessera_agent_core::kernel::{Admission, AttemptTally};

pub use endpoint::{Endpoint, start};
pub use errors::{AdmitError, StartError};
pub use files::{find_shim, gates_of};
pub use gate::MappedGate;
pub use handle::EndpointHandle;
pub use numbers::{EndpointNumbers, SharedNumbers, SliceNumbers};
pub use priority::may_raise;
pub use shim_store::store_shim;

/// Most waiting orders of one GPU: one for each attempt.
pub const ORDERS_MAX: usize = 4_096;
/// Most events that wait for the node. At this number no more are sent.
pub const EVENTS_MAX: usize = 1_024;

/// The endpoint's settings.
#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// The shim's library, `libcuda.so.1` in its own folder.
    pub shim: PathBuf,
    /// How slices are shared.
    pub rules: QueueRules,
    /// The agent's data folder.
    pub data: PathBuf,
    /// The folder of the sockets that serve the gate pages.
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
        /// What was measured of the task's kernels.
        profile: Box<TaskProfile>,
    },
    /// Ends the queue of a slice as a bug would. Nothing but a measurement orders this.
    Fail(SliceId),
    /// Runs code within a slice's queue, or outside of any. Only tests of this crate have it.
    #[cfg(test)]
    Inject(Option<SliceId>, queues::Injected),
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
        /// The attempt that has ended.
        attempt: AttemptId,
        /// Its totals.
        tally: Box<AttemptTally>,
    },
}
