//! Predictions about jobs in this cluster, and the models that make them.

use crate::answers::ModelStatus;
use crate::colocation::ColocationPrediction;
use crate::colocation::{ColocationModel, PredictedSpeed, TrustedColocation, known};
use crate::kernel_sharing::{STEP, TASKS_MAX, service_order, set_mps_client, set_service_order};
use crate::predictions::TaskFacts;
use crate::state::attempts::AttemptTable;
use crate::state::inventory::{NodeInventory, kind};
use crate::state::predictions::Predictions;
use crate::state::queue::{JobQueue, WaitingJob};
use std::sync::Arc;
use tessera_model::GpuId;
use tessera_model::mig::{Profile, Slot};
use tessera_model::number::clamped;
use tessera_placement::{Prediction, SharingRequest, SliceKind, TaskLoad, could_hold};
use tessera_predict::colocation::{CoRunners, Colocation, ColocationPredictor};
use tessera_predict::drift::DriftWatch;

/// Predicts an attempt that is about to share a slice under MPS, `at` a slot of a GPU.
pub(crate) fn predict_colocation(
    predictions: &Predictions,
    inventory: &NodeInventory,
    attempts: &AttemptTable,
    facts: &TaskFacts,
    sharer: &SharingRequest,
    (gpu, slot): (&GpuId, Option<Slot>),
) -> Option<ColocationPrediction> {
    let client = sharer.client?;
    let on = inventory.slice_kind(gpu, slot)?;
    let there = attempts.on_gpu(gpu).filter(|live| live.slot == slot);
    let mut others = CoRunners::default();
    let mut count = 0;
    for other in there.filter_map(|live| live.share.as_ref()?.client) {
        others.add(&known(&other), 1_000);
        count += 1;
    }
    let predict = |model: &ColocationPredictor| {
        let predicted = model.predict(&Colocation { slice: on.part, own: known(&client), others });
        let [low, value, high] =
            [predicted.low, predicted.value, predicted.high].map(clamped::<u32>);
        let (low, high) = (low.min(value), high.max(value));
        (PredictedSpeed { low, value, high }, predicted.model)
    };
    let speed = predictions.colocation.trusted_model().map(predict);
    Some(ColocationPrediction { task: facts.task.clone(), on, client, others: count, speed })
}

/// Records the load of tasks, and updates all jobs that share slices.
pub(crate) fn record_task_load(
    predictions: &mut Predictions,
    queue: &mut JobQueue,
    attempts: &mut AttemptTable,
    tasks: Vec<(String, TaskLoad)>,
) {
    let known = Arc::make_mut(&mut predictions.loads);
    for (task, load) in tasks {
        if known.len() < TASKS_MAX || known.contains_key(&task) {
            let busy = load.busy.min(1_000).div_ceil(STEP) * STEP;
            known.insert(task, TaskLoad { busy, lengths: load.lengths.rounded() });
        }
    }
    let loads = &*predictions.loads;
    for ((rank, _), waiting) in &mut queue.waiting {
        let share = waiting.job.share.as_mut();
        set_service_order(share, service_order(loads, &waiting.facts, rank.priority));
        set_mps_client(waiting.job.share.as_mut(), loads, &waiting.facts);
        let order = service_order(loads, &waiting.facts, rank.priority);
        waiting.job.auto = waiting.job.auto.map(|_| order);
    }
    for live in attempts.live.values_mut() {
        set_mps_client(live.share.as_mut(), loads, &live.facts);
        let launched = live.share.as_ref().and_then(|sharer| sharer.kernel_sharer);
        let Some(priority) = launched.map(|turn| turn.priority) else { continue };
        let order = service_order(loads, &live.facts, priority);
        set_service_order(live.share.as_mut(), order);
    }
}

/// Uses a new model of co-located jobs, unless the outcomes of its newest predictions show that
/// it is not accurate.
pub(crate) fn use_colocation_model(
    predictions: &mut Predictions,
    model: Arc<ColocationModel>,
    outcomes: &[bool],
) {
    let mut watch = DriftWatch::new();
    for covered in outcomes {
        watch.take(*covered);
    }
    predictions.colocation = TrustedColocation { model: Some(model), watch };
}

/// Returns the models that make predictions, and whether each is trusted.
pub(crate) fn model_status(predictions: &Predictions) -> ModelStatus {
    let run_times = predictions.estimator.model();
    ModelStatus {
        slices: run_times.map(|(model, is_trusted)| (model.fingerprint(), is_trusted)),
        low_confidence_tasks: predictions.estimator.count_low_confidence_tasks(),
        colocation: predictions.colocation.status(),
    }
}

/// Predicts the remaining time of a waiting job on the tightest slice that suits it.
pub(crate) fn predict_waiting(
    predictions: &Predictions,
    inventory: &NodeInventory,
    waiting: &WaitingJob,
) -> Option<Prediction> {
    if waiting.job.share.is_some() {
        return None;
    }
    let tightest = inventory.gpus.values().filter_map(|gpu| {
        let Some(mig) = gpu.mig.as_deref() else {
            return Some((gpu.report.memory, SliceKind::whole(&gpu.report.model)));
        };
        let suits = |profile: &&Profile| could_hold(&waiting.job.gpu, mig, profile);
        let profile = mig.plain().find(suits)?;
        Some((profile.memory, kind(&gpu.report.model, mig, profile)?))
    });
    let (_, on) = tightest.min()?;
    predictions.predict_rest(waiting.job.id, &waiting.facts, waiting.done, &on)
}
