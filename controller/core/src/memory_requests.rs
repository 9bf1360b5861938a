//! The memory that waiting jobs request when their users name none.

use crate::memory::{MemoryRequest, estimate_text, memory_request_of};
use crate::predictions::{MemorySample, TaskFacts};
use crate::state::attempts::LiveAttempt;
use crate::state::inventory::{NodeInventory, capacity, largest_of};
use crate::state::predictions::Predictions;
use crate::state::queue::{JobQueue, WaitingJob};
use tessera_frames::cluster::ExitRecord;
use tessera_model::life::Outcome;
use tessera_model::spec::GpuRequest;
use tessera_model::{AttemptId, Bytes, JobId};
use tessera_placement::Explanation;
use tessera_predict::memory::MemoryEvidence;

/// Returns what a job requests by the memory of its task's earlier runs, if it names no size
/// itself.
pub(crate) fn memory_request(
    predictions: &Predictions,
    inventory: &NodeInventory,
    request: &GpuRequest,
    facts: &TaskFacts,
) -> Option<MemoryRequest> {
    match request {
        GpuRequest::Unknown => {
            memory_request_of(&predictions.estimator, inventory.largest_slice, facts)
        }
        GpuRequest::Memory(_)
        | GpuRequest::Profile(_)
        | GpuRequest::Whole
        | GpuRequest::Compute(_) => None,
    }
}

/// Returns the memory that a task needs, at most that of the largest slice.
pub(crate) fn memory_needed(
    predictions: &Predictions,
    inventory: &NodeInventory,
    facts: &TaskFacts,
) -> Option<Bytes> {
    let request = memory_request_of(&predictions.estimator, inventory.largest_slice, facts);
    request.map(|request| request.bytes)
}

/// Measures the cluster's largest slice. If it changed, the requests of waiting jobs are updated.
pub(crate) fn measure_largest_slice(
    inventory: &mut NodeInventory,
    queue: &mut JobQueue,
    predictions: &Predictions,
) {
    let largest = inventory.gpus.values().filter_map(largest_of).max().unwrap_or(Bytes::ZERO);
    if largest != inventory.largest_slice {
        inventory.largest_slice = largest;
        update_memory_requests(queue, predictions, inventory, |_| true);
    }
}

/// Learns the peak memory of an attempt that is over, if it is awaited.
pub(crate) fn learn_late_peak(
    predictions: &mut Predictions,
    queue: &mut JobQueue,
    inventory: &NodeInventory,
    attempt: AttemptId,
    peak: Bytes,
) {
    if let Some((task, prediction)) = predictions.awaiting_memory.take_task(attempt) {
        let sample = MemorySample { task, evidence: MemoryEvidence::Peak(peak), prediction };
        learn_memory(predictions, queue, inventory, &sample);
    }
}

/// Learns from the end of an attempt that had a slice to itself, or awaits its report. Returns the
/// memory of its slice if it ran out of that.
pub(crate) fn learn_end_memory(
    predictions: &mut Predictions,
    queue: &mut JobQueue,
    inventory: &NodeInventory,
    attempt: AttemptId,
    live: &LiveAttempt,
    record: &ExitRecord,
) -> Option<Bytes> {
    let task = live.run_prediction.as_ref().map(|predicted| predicted.task.clone())?;
    let out_of = record.ran_out_of_gpu_memory().then(|| inventory.gpus.get(&live.gpu));
    let out_of = out_of.flatten().map(|gpu| capacity(gpu, live.slot));
    let succeeded = record.outcome == Outcome::Succeeded;
    let evidence = out_of.map(MemoryEvidence::OutOf);
    let evidence = evidence.or(live.peak.filter(|_| succeeded).map(MemoryEvidence::Peak));
    match evidence {
        _ if task.is_empty() => {}
        Some(evidence) => {
            let sample = MemorySample { task, evidence, prediction: live.memory };
            learn_memory(predictions, queue, inventory, &sample);
        }
        None if succeeded => predictions.awaiting_memory.wait_for(attempt, &task, live.memory),
        None => {}
    }
    out_of
}

/// Learns the memory of a run. If that changes its task's estimate, waiting jobs request the new
/// amount.
fn learn_memory(
    predictions: &mut Predictions,
    queue: &mut JobQueue,
    inventory: &NodeInventory,
    sample: &MemorySample,
) {
    if let Some(prediction) = &sample.prediction {
        predictions.memory_outcomes.take(prediction.covers(sample.evidence));
    }
    let value = |predictions: &Predictions| {
        predictions.estimator.memory_estimate(&sample.task).map(|estimate| estimate.value)
    };
    let before = value(predictions);
    predictions.estimator.learn_memory(sample);
    if value(predictions) != before {
        let is_of_task = |waiting: &WaitingJob| waiting.facts.task == sample.task;
        update_memory_requests(queue, predictions, inventory, is_of_task);
    }
}

/// Updates the requests of waiting jobs that name no size.
fn update_memory_requests(
    queue: &mut JobQueue,
    predictions: &Predictions,
    inventory: &NodeInventory,
    of: impl Fn(&WaitingJob) -> bool,
) {
    for waiting in queue.waiting.values_mut() {
        let names_none = waiting.memory.is_some() || waiting.job.gpu == GpuRequest::Unknown;
        if names_none && of(waiting) {
            waiting.memory =
                memory_request_of(&predictions.estimator, inventory.largest_slice, &waiting.facts);
            let bytes = waiting.memory.map(|request| request.bytes);
            waiting.job.gpu = bytes.map_or(GpuRequest::Unknown, GpuRequest::Memory);
        }
    }
}

/// Adds to an explanation that the requested memory is an estimate.
pub(crate) fn with_memory_estimate(
    queue: &JobQueue,
    job: JobId,
    mut why: Explanation,
) -> Explanation {
    if let Some(request) = queue.queued(job).and_then(|waiting| waiting.memory) {
        why.summary.push_str(&estimate_text(&request));
    }
    why
}
