//! Memory estimates for jobs that name no memory: the most that earlier runs of their task used.
//!
//! MIGM §2.2 names the ways to know a need: declared; learned from earlier runs; unknown, which
//! starts on the smallest slice. A user's own request goes first, then the task's estimate. A job
//! with neither gets the smallest slice from the policy. No estimate exceeds the cluster's largest
//! slice. A run's memory is reported in a frame of its own, mostly after its end, so that the
//! tasks of ended attempts are kept for a while.

use crate::predictions::TaskFacts;
use crate::predictions::trained::RunEstimator;
use std::collections::{HashMap, VecDeque};
use tessera_model::{AttemptId, Bytes};
use tessera_predict::memory::MemoryEstimate;

/// Most ended attempts whose memory is awaited: some seconds of a large cluster's ends. Later
/// reports are learned by the next leader, from the store.
const ENDED_MAX: usize = 4_096;

/// The memory that a job requests whose user names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryRequest {
    /// The estimate for its task.
    pub(crate) estimate: MemoryEstimate,
    /// The estimate, or the memory of the largest slice if that is less.
    pub(crate) bytes: Bytes,
}

/// Attempts that succeeded and whose peak memory is not known yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct AwaitedMemory {
    tasks: HashMap<AttemptId, (String, Option<MemoryEstimate>)>,
    order: VecDeque<AttemptId>,
}

/// Returns why a job that names no memory requests so much, as text.
pub(crate) fn estimate_text(request: &MemoryRequest) -> String {
    let MemoryRequest { estimate, bytes } = request;
    let mut text = match (estimate.cautious, estimate.ran_out_of) {
        (true, _) => format!(
            "; it names no memory itself: its task's runs exceeded earlier ones, so that it \
             requests half as much again, {}",
            estimate.value
        ),
        (false, Some(slice)) => {
            format!("; it names no memory itself: an earlier run of its task ran out of {slice}")
        }
        (false, None) => format!(
            "; it names no memory itself: earlier runs of its task used at most {}",
            estimate.value
        ),
    };
    if *bytes < estimate.value {
        text.push_str(&format!(
            "; no slice of this cluster is so large, so that it requests the largest, with {bytes}"
        ));
    }
    text
}

pub(crate) fn memory_request_of(
    estimator: &RunEstimator,
    largest: Bytes,
    facts: &TaskFacts,
) -> Option<MemoryRequest> {
    if facts.task.is_empty() {
        return None;
    }
    let estimate = estimator.memory_estimate(&facts.task)?;
    // Where no GPU was ever seen, the first may have it.
    let bytes = if largest > Bytes::ZERO { estimate.value.min(largest) } else { estimate.value };
    Some(MemoryRequest { estimate, bytes })
}

impl AwaitedMemory {
    /// Notes an attempt whose memory is awaited.
    pub(crate) fn wait_for(
        &mut self,
        attempt: AttemptId,
        task: &str,
        prediction: Option<MemoryEstimate>,
    ) {
        if self.tasks.insert(attempt, (task.to_owned(), prediction)).is_some() {
            return;
        }
        self.order.push_back(attempt);
        if self.order.len() > ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.tasks.remove(&oldest);
        }
    }

    /// Returns the task of an attempt, once: nodes repeat their reports.
    pub(crate) fn take_task(
        &mut self,
        attempt: AttemptId,
    ) -> Option<(String, Option<MemoryEstimate>)> {
        self.tasks.remove(&attempt)
    }
}
