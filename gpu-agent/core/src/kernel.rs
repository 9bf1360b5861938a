//! The kernel plane's decisions on the node: which processes may join a slice's queue, how records of
//! shims change it, and which frames the shims get. Pure: time is an argument.

pub mod faults;
pub mod key;
pub mod slice;

use tessera_kernel_queue::{QueueCounters, TaskKey};
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, GpuId, SliceId};

/// An attempt whose processes may join its slice's queue. Priority, class and task come from here and
/// never from a process (S8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The attempt that may join the queue.
    pub attempt: AttemptId,
    /// The GPU of its slice, whose thread serves it.
    pub gpu: GpuId,
    /// The slice on which it runs.
    pub slice: SliceId,
    /// The key of its profile.
    pub task: TaskKey,
    /// The queue in which its kernels wait.
    pub priority: Priority,
    /// Whether it needs low latency or high throughput.
    pub class: Class,
    /// Its share of the slice's multiprocessors under MPS, in thousandths; 1,000 without.
    pub share_thousandths: u32,
    /// Whether it never runs next to the slice's other attempts.
    pub exclusive: bool,
    /// The account whose processes open the slice's page; `None` for the agent's own.
    pub owner: Option<PageOwner>,
}

/// The account that owns a slice's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOwner {
    /// The user.
    pub uid: u32,
    /// The user's main group.
    pub gid: u32,
}

/// The totals of all sessions of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptTally {
    /// The counters of the queue.
    pub counters: QueueCounters,
    /// Number of sessions: zero means that no launch was intercepted.
    pub sessions: u64,
    /// Number of sessions whose thread has raised priority.
    pub raised: u64,
    /// Launches that passed without a report.
    pub passed: u64,
    /// Records that a shim dropped because its ring was full.
    pub lost: u64,
    /// Launches of fillers without a grant: they must not wait, or the queue was dead.
    pub ungranted: u64,
    /// The peak device memory that one process was observed to allocate, in bytes.
    pub memory_peak: u64,
}

impl AttemptTally {
    /// Adds the totals of another session.
    pub fn add(&mut self, other: &Self) {
        self.counters.add(&other.counters);
        self.sessions += other.sessions;
        self.raised += other.raised;
        self.passed = self.passed.saturating_add(other.passed);
        self.lost = self.lost.saturating_add(other.lost);
        self.ungranted = self.ungranted.saturating_add(other.ungranted);
        self.memory_peak = self.memory_peak.max(other.memory_peak);
    }
}
