//! The kernel plane's decisions on the node: who may join a slice's queue, what each shim's
//! records mean to it, and what each shim is told. Pure: time is an argument.

pub mod key;
pub mod slice;

use tessera_kernel_queue::{Counters, TaskKey};
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, SliceId};

/// An attempt whose processes may join its slice's queue. What ranks them stands here, never in
/// what a process says (S8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Which attempt.
    pub attempt: AttemptId,
    /// Where it runs.
    pub slice: SliceId,
    /// Whose kernels it launches.
    pub task: TaskKey,
    /// Its queue.
    pub priority: Priority,
    /// Latency or throughput.
    pub class: Class,
    /// Its share of the slice's multiprocessors under MPS, in thousandths; 1,000 without.
    pub share_thousandths: u32,
}

/// What an attempt's processes did so far, all sessions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// What the queue counted.
    pub counters: Counters,
    /// Sessions that there ever were: none means that nothing was intercepted.
    pub sessions: u64,
    /// Launches that passed without being told.
    pub passed: u64,
    /// Records that found no room in a shim.
    pub lost: u64,
    /// Launches that went without a grant although their session asks: they waited for too long.
    pub unasked: u64,
    /// Most device memory that one process was seen to allocate, in bytes.
    pub memory_peak: u64,
}

impl Tally {
    /// Adds another session's.
    pub fn add(&mut self, other: &Self) {
        self.counters.add(&other.counters);
        self.sessions += other.sessions;
        self.passed = self.passed.saturating_add(other.passed);
        self.lost = self.lost.saturating_add(other.lost);
        self.unasked = self.unasked.saturating_add(other.unasked);
        self.memory_peak = self.memory_peak.max(other.memory_peak);
    }
}
