//! What jobs ask for that name no memory: as much as earlier runs of their task had.
//!
//! MIGM §2.2 names the ways to know a need: declared; learned from earlier runs; unknown, which starts on
//! the smallest slice. A user's word goes first, then what is known of the task, here; who has neither
//! gets the smallest slice from the policy. What a run had is told in a frame of its own after its end,
//! so that the tasks of ended attempts are kept for a while.

use std::collections::{HashMap, VecDeque};

use tessera_model::spec::GpuAsk;
use tessera_model::{AttemptId, Bytes, JobId};
use tessera_placement::Explanation;

use super::Cluster;
use super::foresight::Facts;

/// Ended attempts of which it is awaited what they had: some seconds of a large cluster's ends. Whose
/// word comes later is learned by the next leader, from the store.
const ENDED_MAX: usize = 4_096;

/// The tasks of attempts that ended well and whose peak isn't known yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    tasks: HashMap<AttemptId, String>,
    order: VecDeque<AttemptId>,
}

impl Ended {
    /// Awaits what an attempt had.
    pub(super) fn wait_for(&mut self, attempt: AttemptId, task: &str) {
        if task.is_empty() || self.tasks.insert(attempt, task.to_owned()).is_some() {
            return;
        }
        self.order.push_back(attempt);
        if self.order.len() > ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.tasks.remove(&oldest);
        }
    }

    /// Returns the task of an attempt, once: nodes repeat themselves.
    fn told(&mut self, attempt: AttemptId) -> Option<String> {
        self.tasks.remove(&attempt)
    }
}

impl Cluster {
    /// Returns the most memory that earlier runs of a job's task had, if the job names no size itself.
    pub(super) fn floor(&self, asked: &GpuAsk, facts: &Facts) -> Option<Bytes> {
        match asked {
            GpuAsk::Unknown if !facts.task.is_empty() => self.estimator.memory(&facts.task),
            GpuAsk::Unknown
            | GpuAsk::Memory(_)
            | GpuAsk::Profile(_)
            | GpuAsk::Whole
            | GpuAsk::Compute(_) => None,
        }
    }

    /// Learns what an attempt had at most; of its task's first, those who wait and name no size ask
    /// for as much from now on.
    pub(super) fn learn_peak(&mut self, attempt: AttemptId, peak: Option<Bytes>) {
        let Some(peak) = peak.filter(|peak| *peak > Bytes::ZERO) else { return };
        let Some(task) = self.ended.told(attempt) else { return };
        let first = self.estimator.memory(&task).is_none();
        self.estimator.learn_memory(&task, peak);
        if !first {
            return;
        }
        for waiting in self.queue.values_mut() {
            if waiting.asked.gpu == GpuAsk::Unknown && waiting.facts.task == task {
                waiting.asked.gpu = GpuAsk::Memory(peak);
                waiting.floor = Some(peak);
            }
        }
    }

    /// Adds to what a job is told that it doesn't ask for so much itself.
    pub(super) fn with_floor(&self, job: JobId, mut why: Explanation) -> Explanation {
        if let Some(floor) = self.queued(job).and_then(|waiting| waiting.floor) {
            why.summary.push_str(&format!(
                "; it names no memory itself: {floor} is the most that earlier runs of its task had"
            ));
        }
        why
    }
}
