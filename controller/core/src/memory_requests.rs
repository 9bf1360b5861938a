//! The memory that waiting jobs request when their users name none.

use crate::memory::MemoryRequest;
use crate::memory::{MemorySample, estimate_text, memory_request_of};
use crate::predictions::{OutcomeCounts, TaskFacts};
use crate::state::ClusterState;
use crate::state::attempts::LiveAttempt;
use crate::state::inventory::{capacity, largest_of};
use crate::state::queue::WaitingJob;
use tessera_model::spec::GpuRequest;
use tessera_model::{AttemptId, Bytes, JobId};
use tessera_placement::Explanation;
use tessera_predict::memory::MemoryEvidence;

impl ClusterState {
    /// Returns what a job requests by the memory of its task's earlier runs, if it names no size
    /// itself.
    pub(crate) fn memory_request(
        &self,
        asked: &GpuRequest,
        facts: &TaskFacts,
    ) -> Option<MemoryRequest> {
        match asked {
            GpuRequest::Unknown => {
                memory_request_of(&self.predictions.estimator, self.inventory.largest_slice, facts)
            }
            GpuRequest::Memory(_)
            | GpuRequest::Profile(_)
            | GpuRequest::Whole
            | GpuRequest::Compute(_) => None,
        }
    }

    /// Returns the memory that a task needs, at most that of the largest slice.
    pub(crate) fn memory_needed(&self, facts: &TaskFacts) -> Option<Bytes> {
        memory_request_of(&self.predictions.estimator, self.inventory.largest_slice, facts)
            .map(|asked| asked.bytes)
    }

    /// Measures the cluster's largest slice. If it changed, the requests of waiting jobs are
    /// updated.
    pub(crate) fn measure_largest_slice(&mut self) {
        let largest =
            self.inventory.gpus.values().filter_map(largest_of).max().unwrap_or(Bytes::ZERO);
        if largest != self.inventory.largest_slice {
            self.inventory.largest_slice = largest;
            self.update_memory_requests(|_| true);
        }
    }

    /// Learns the peak memory of an attempt; for a live one it is kept until its end.
    pub(crate) fn learn_peak(&mut self, attempt: AttemptId, peak: Option<Bytes>) {
        let Some(peak) = peak.filter(|peak| *peak > Bytes::ZERO) else { return };
        if let Some(live) = self.attempts.live.get_mut(&attempt) {
            live.peak = live.peak.max(Some(peak));
        } else if let Some((task, told)) = self.predictions.awaiting_memory.take_task(attempt) {
            self.learn_memory(&MemorySample { task, shown: MemoryEvidence::Peak(peak), told });
        }
    }

    /// Learns from the end of an attempt that had a slice to itself, or awaits its report. Returns
    /// the memory of its slice if it ran out of that.
    pub(crate) fn learn_end_memory(
        &mut self,
        attempt: AttemptId,
        live: &LiveAttempt,
        record: &tessera_frames::cluster::ExitRecord,
    ) -> Option<Bytes> {
        let task = live.foretold.as_ref().map(|foretold| foretold.task.clone())?;
        let out_of = record.ran_out_of_gpu_memory().then(|| {
            let gpu = self.inventory.gpus.get(&live.gpu)?;
            Some(capacity(gpu, live.slot))
        });
        let out_of = out_of.flatten();
        let succeeded = record.outcome == tessera_model::life::Outcome::Succeeded;
        let shown = out_of.map(MemoryEvidence::OutOf);
        let shown = shown.or(live.peak.filter(|_| succeeded).map(MemoryEvidence::Peak));
        match shown {
            _ if task.is_empty() => {}
            Some(shown) => self.learn_memory(&MemorySample { task, shown, told: live.memory }),
            None if succeeded => {
                self.predictions.awaiting_memory.wait_for(attempt, &task, live.memory);
            }
            None => {}
        }
        out_of
    }

    /// Returns the outcomes of predicted memory since the last call. They outlast a reload.
    pub fn take_memory_outcomes(&mut self) -> OutcomeCounts {
        std::mem::take(&mut self.predictions.memory_outcomes)
    }

    /// Learns the memory of a run. If that changes its task's estimate, waiting jobs request the
    /// new amount.
    pub(crate) fn learn_memory(&mut self, lesson: &MemorySample) {
        if let Some(told) = &lesson.told {
            self.predictions.memory_outcomes.take(told.covers(lesson.shown));
        }
        let value = |cluster: &Self| {
            cluster.predictions.estimator.floor(&lesson.task).map(|floor| floor.value)
        };
        let before = value(self);
        self.predictions.estimator.learn_memory(lesson);
        if value(self) != before {
            self.update_memory_requests(|waiting| waiting.facts.task == lesson.task);
        }
    }

    /// Updates the requests of waiting jobs that name no size.
    fn update_memory_requests(&mut self, of: impl Fn(&WaitingJob) -> bool) {
        let (estimator, largest) = (&self.predictions.estimator, self.inventory.largest_slice);
        for waiting in self.queue.waiting.values_mut() {
            let names_none = waiting.floor.is_some() || waiting.asked.gpu == GpuRequest::Unknown;
            if names_none && of(waiting) {
                waiting.floor = memory_request_of(estimator, largest, &waiting.facts);
                let bytes = waiting.floor.map(|asked| asked.bytes);
                waiting.asked.gpu = bytes.map_or(GpuRequest::Unknown, GpuRequest::Memory);
            }
        }
    }

    /// Adds to an explanation that the requested memory is an estimate.
    pub(crate) fn with_memory_estimate(&self, job: JobId, mut why: Explanation) -> Explanation {
        if let Some(asked) = self.queue.queued(job).and_then(|waiting| waiting.floor) {
            why.summary.push_str(&estimate_text(&asked));
        }
        why
    }
}
