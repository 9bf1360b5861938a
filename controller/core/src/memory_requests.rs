//! The memory that waiting jobs request when their users name none, or when they ran out of it.

use crate::memory::{
    AwaitedEnd, AwaitedRun, MemoryRequest, evidence_text, learned_size, memory_request_of,
};
use crate::predictions::{MemorySample, TaskFacts};
use crate::rows::submitted::OwnMemory;
use crate::state::attempts::LiveAttempt;
use crate::state::inventory::{NodeInventory, largest_of};
use crate::state::predictions::Predictions;
use crate::state::queue::{JobQueue, WaitingJob};
use tessera_frames::cluster::{ExitRecord, OomEvidence};
use tessera_model::life::Outcome;
use tessera_model::spec::GpuRequest;
use tessera_model::{AttemptId, Bytes, GangMember, JobId};
use tessera_placement::{Explanation, SharingRequest};
use tessera_predict::memory::MemoryEvidence;

/// Returns the memory that a job requests for another reason than its user's request.
pub(crate) fn memory_request(
    predictions: &Predictions,
    inventory: &NodeInventory,
    declared: &GpuRequest,
    facts: &TaskFacts,
    own: OwnMemory,
    gang: Option<GangMember>,
) -> Option<MemoryRequest> {
    // A gang needs the size on several GPUs at once.
    let largest = match gang {
        Some(member) => inventory.largest_size(Some(member.shape), |_| true),
        None => inventory.largest_slice,
    };
    let estimator = &predictions.estimator;
    memory_request_of(estimator, largest, declared, facts, own)
}

/// Returns the memory that runs of a task are known to need, at most that of the largest slice.
pub(crate) fn memory_needed(
    predictions: &Predictions,
    inventory: &NodeInventory,
    facts: &TaskFacts,
) -> Option<Bytes> {
    let learned = learned_size(&predictions.estimator, facts)?;
    let largest = inventory.largest_slice;
    Some(if largest > Bytes::ZERO { learned.at_least.min(largest) } else { learned.at_least })
}

/// Returns the input of placement: the request, and the share of a slice if it may be shared.
pub(crate) fn sized(
    declared: &GpuRequest,
    share: Option<SharingRequest>,
    memory: Option<&MemoryRequest>,
) -> (GpuRequest, Option<SharingRequest>) {
    let Some(request) = memory else { return (declared.clone(), share) };
    let share = share
        .map(|sharer| SharingRequest { share: sharer.share.with_memory(request.bytes), ..sharer });
    (GpuRequest::Memory(request.bytes), share)
}

/// Measures the largest slices of the cluster's GPUs. If they changed, the requests of waiting jobs
/// are updated: requests of gangs change even if the cluster's largest slice didn't, since they
/// need several GPUs.
pub(crate) fn measure_largest_slice(
    inventory: &mut NodeInventory,
    queue: &mut JobQueue,
    predictions: &Predictions,
) {
    let largest = inventory.gpus.values().filter_map(largest_of).max().unwrap_or(Bytes::ZERO);
    let sizes = inventory.sizes_of_gpus();
    let is_other_largest = largest != inventory.largest_slice;
    if is_other_largest || sizes != inventory.known_sizes {
        (inventory.largest_slice, inventory.known_sizes) = (largest, sizes);
        let concerns = |waiting: &WaitingJob| is_other_largest || waiting.job.gang.is_some();
        update_memory_requests(queue, predictions, inventory, concerns);
    }
}

/// Learns the peak memory of an ended attempt, if it is awaited. Zero means that no sample was
/// taken.
pub(crate) fn learn_late_peak(
    predictions: &mut Predictions,
    queue: &mut JobQueue,
    inventory: &NodeInventory,
    attempt: AttemptId,
    peak: Bytes,
) {
    let Some(run) = predictions.awaiting_memory.take(attempt) else { return };
    let evidence = match run.end {
        AwaitedEnd::Succeeded => MemoryEvidence::Peak(peak),
        AwaitedEnd::RanOut if is_near(peak, run.slice) => MemoryEvidence::OutOf(run.slice),
        // Only its output states it: the job runs again with more memory, but its task's size
        // doesn't change.
        AwaitedEnd::RanOut => return,
    };
    let AwaitedRun { task, gpu_model, slice, prediction, .. } = run;
    let sample = MemorySample { attempt, task, gpu_model, slice, evidence, prediction };
    learn_memory(predictions, queue, inventory, &sample);
}

/// Returns whether an observed peak confirms that the slice was too small.
fn is_near(peak: Bytes, slice: Bytes) -> bool {
    peak.get().saturating_mul(2) >= slice.get()
}

/// Learns from the end of an attempt that had a slice to itself, or awaits its report. Returns the
/// memory of its slice if that was too little for its task.
///
/// Where a framework allocated memory in advance, the peak is what it took, and not a measurement of the need.
pub(crate) fn learn_end_memory(
    predictions: &mut Predictions,
    queue: &mut JobQueue,
    inventory: &NodeInventory,
    (attempt, live, is_preallocated): (AttemptId, &LiveAttempt, bool),
    record: &ExitRecord,
) -> Option<Bytes> {
    let predicted = live.run_prediction.as_ref()?;
    let (task, gpu_model) = (predicted.task.clone(), predicted.on.model.clone());
    let (slice, prediction) = (live.gpu_memory, live.memory);
    let sample = |evidence| MemorySample {
        attempt,
        task: task.clone(),
        gpu_model: gpu_model.clone(),
        slice,
        evidence,
        prediction,
    };
    let awaited = |end| AwaitedRun {
        task: task.clone(),
        gpu_model: gpu_model.clone(),
        slice,
        prediction,
        end,
    };
    let (evidence, end) = match (record.out_of_gpu_memory(), record.outcome) {
        (Some(OomEvidence::Reported | OomEvidence::Refused), _) => {
            (Some(MemoryEvidence::OutOf(slice)), None)
        }
        (Some(OomEvidence::Text), _) if is_preallocated => (None, None),
        (None, Outcome::Succeeded) if is_preallocated => {
            (Some(MemoryEvidence::Peak(Bytes::ZERO)), None)
        }
        (Some(OomEvidence::Text), _) => match live.peak {
            Some(peak) if is_near(peak, slice) => (Some(MemoryEvidence::OutOf(slice)), None),
            Some(_) => (None, None),
            None => (None, Some(AwaitedEnd::RanOut)),
        },
        (None, Outcome::Succeeded) => match live.peak {
            Some(peak) => (Some(MemoryEvidence::Peak(peak)), None),
            // That the slice was enough is known before the peak is.
            None => (Some(MemoryEvidence::Peak(Bytes::ZERO)), Some(AwaitedEnd::Succeeded)),
        },
        (None, _) => (None, None),
    };
    let learns = !task.is_empty();
    if let Some(end) = end.filter(|_| learns) {
        predictions.awaiting_memory.wait_for(attempt, awaited(end));
    }
    if let Some(evidence) = evidence.filter(|_| learns) {
        learn_memory(predictions, queue, inventory, &sample(evidence));
    }
    match evidence {
        Some(MemoryEvidence::OutOf(slice)) => Some(slice),
        Some(MemoryEvidence::Peak(_)) | None => None,
    }
}

/// Learns the memory of a run. If that changes its task's size, waiting jobs request the new amount.
fn learn_memory(
    predictions: &mut Predictions,
    queue: &mut JobQueue,
    inventory: &NodeInventory,
    sample: &MemorySample,
) {
    if let Some(prediction) = sample.judged() {
        predictions.memory_outcomes.take(prediction.covers(sample.evidence));
    }
    let value = |predictions: &Predictions| predictions.estimator.learned_size(&sample.task);
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
    let mut changed = Vec::new();
    for (key, waiting) in &mut queue.waiting {
        if waiting.declared == GpuRequest::Unknown && of(waiting) {
            let (declared, facts) = (&waiting.declared, &waiting.facts);
            let (own, gang) = (waiting.own, waiting.job.gang);
            waiting.memory = memory_request(predictions, inventory, declared, facts, own, gang);
            let request = sized(declared, None, waiting.memory.as_ref()).0;
            if request != waiting.job.gpu {
                waiting.job.gpu = request;
                changed.push(*key);
            }
        }
    }
    queue.find_runs_of(&changed);
}

/// Adds to an explanation where the requested memory comes from, if not from the user.
pub(crate) fn with_memory_estimate(
    queue: &JobQueue,
    job: JobId,
    mut why: Explanation,
) -> Explanation {
    if let Some(request) = queue.queued(job).and_then(|waiting| waiting.memory) {
        why.summary.push_str(&evidence_text(&request));
    }
    why
}
