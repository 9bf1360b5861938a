//! The endpoint's numbers for metrics and reports.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tessera_agent_core::kernel::AttemptTally;
use tessera_kernel_queue::QueueCounters;
use tessera_model::{AttemptId, GpuId, SliceId};

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

/// The numbers of one GPU or of all. They are at most a second old.
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

impl EndpointNumbers {
    /// Adds another GPU's numbers.
    fn add(&mut self, other: &Self) {
        self.slices.extend(other.slices.iter().map(|(slice, numbers)| (slice.clone(), *numbers)));
        self.attempts.extend(&other.attempts);
        self.refused += other.refused;
        self.nonsense += other.nonsense;
        self.restarts += other.restarts;
    }
}

/// The numbers of the endpoint by GPU, shared with other threads.
#[derive(Clone, Debug, Default)]
pub struct SharedNumbers(Arc<Mutex<BTreeMap<GpuId, EndpointNumbers>>>);

impl SharedNumbers {
    /// Returns the numbers of all GPUs.
    pub fn read(&self) -> EndpointNumbers {
        let mut sum = EndpointNumbers::default();
        self.lock().values().for_each(|numbers| sum.add(numbers));
        sum
    }

    /// Returns the numbers of each GPU that has queues.
    pub fn by_gpu(&self) -> BTreeMap<GpuId, EndpointNumbers> {
        self.lock().clone()
    }

    /// Returns one attempt's numbers.
    pub fn attempt(&self, attempt: AttemptId) -> Option<AttemptTally> {
        self.lock().values().find_map(|numbers| numbers.attempts.get(&attempt).copied())
    }

    pub(super) fn write(&self, gpu: &GpuId, numbers: EndpointNumbers) {
        self.lock().insert(gpu.clone(), numbers);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<GpuId, EndpointNumbers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
