//! Jobs that enter the queue: submitted, released, or queued again after an attempt.

use crate::memory_requests::{memory_request, sized};
use crate::rows::submitted::SubmittedJob;
use crate::state::attempts::AttemptTable;
use crate::state::inventory::NodeInventory;
use crate::state::predictions::Predictions;
use crate::state::queue::{JobQueue, WaitingJob};
use std::sync::Arc;
use tessera_model::Millis;
use tessera_placement::QueuedJob;

/// Adds a submitted job to the queue, unless it waits or runs already.
pub(crate) fn enqueue(
    queue: &mut JobQueue,
    attempts: &AttemptTable,
    predictions: &Predictions,
    inventory: &NodeInventory,
    submitted_job: SubmittedJob,
    submitted: Millis,
) {
    let SubmittedJob {
        job,
        gang,
        array,
        gpu: declared,
        user,
        share,
        queue_rank,
        attempts: tried,
        facts,
        done,
        own,
        ..
    } = submitted_job;
    // A job may be announced after a reload has already read it.
    if attempts.by_job.contains_key(&job) || queue.ranks.contains_key(&job) {
        return;
    }
    let share = predictions.with_service_order(share, &facts, queue_rank.priority);
    let auto = facts.auto.then(|| predictions.sharer_of(&facts, queue_rank.priority));
    let memory = memory_request(predictions, inventory, &declared, &facts, own, gang);
    let (gpu, share) = sized(&declared, share, memory.as_ref());
    let place = (!facts.rules.place.is_open()).then(|| Arc::new(facts.rules.place.clone()));
    let online = facts.online;
    let job =
        QueuedJob { id: job, gpu, user, share, auto, queue_rank, submitted, online, gang, place };
    let (attempts, reason) = (tried, None);
    let reasons = Vec::from_iter(reason);
    queue.enqueue(WaitingJob {
        job,
        array,
        attempts,
        reason,
        reasons,
        facts,
        done,
        declared,
        own,
        memory,
    });
}
