//! Predictions about jobs in this cluster, and the models that they come from.

use crate::colocation::ColocationPrediction;
use crate::colocation::{ColocationModel, PredictedSpeed, TrustedColocation, known};
use crate::commands::ModelStatus;
use crate::kernel_sharing::{STEP, TASKS_MAX, set_mps_client, set_service_order, turn};
use crate::predictions::AttemptPrediction;
use crate::predictions::TaskFacts;
use crate::predictions::trained::RunTimeModel;
use crate::state::ClusterState;
use crate::state::inventory::kind;
use crate::state::queue::WaitingJob;
use std::sync::Arc;
use tessera_model::mig::{Profile, Slot};
use tessera_model::{GpuId, JobId};
use tessera_placement::{Basis, Prediction, SharingRequest, SliceKind, could_hold};
use tessera_predict::colocation::{CoRunners, Colocation, ColocationPredictor};
use tessera_predict::drift::DriftWatch;

impl ClusterState {
    /// Uses a new model of how slices compare, unless the outcomes of its newest predictions say
    /// that it is not accurate.
    pub fn teach(&mut self, taught: Arc<RunTimeModel>, came: &[bool]) {
        self.predictions.estimator.teach(taught, came);
    }

    /// Returns the models that predictions come from, and whether each is trusted.
    pub fn learned(&self) -> ModelStatus {
        let taught = self.predictions.estimator.taught();
        ModelStatus {
            slices: taught.map(|(taught, believed)| (taught.fingerprint(), believed)),
            doubted_tasks: self.predictions.estimator.doubted(),
            company: self.predictions.colocation.told(),
        }
    }

    /// Predicts an attempt that has its slice to itself.
    pub(crate) fn predict_attempt(
        &self,
        job: JobId,
        facts: &TaskFacts,
        done: u32,
        gpu: &GpuId,
        slot: Option<Slot>,
    ) -> Option<AttemptPrediction> {
        let on = self.inventory.slice_kind(gpu, slot)?;
        let prediction = self.predictions.predict_rest(job, facts, done, &on);
        let whole = done == 0 && !self.predictions.checkpoints.contains_key(&job);
        let learned = prediction.is_some_and(|known| known.basis == Basis::Learned);
        let model = self.predictions.estimator.taught().filter(|_| learned);
        let model = model.map(|(taught, _)| taught.fingerprint());
        Some(AttemptPrediction { task: facts.task.clone(), on, whole, prediction, model })
    }

    /// Predicts what is left of a waiting job, on the tightest slice that suits it.
    pub(crate) fn predict_waiting(&self, waiting: &WaitingJob) -> Option<Prediction> {
        if waiting.asked.share.is_some() {
            return None;
        }
        let tightest = self.inventory.gpus.values().filter_map(|gpu| {
            let Some(mig) = gpu.mig.as_deref() else {
                return Some((gpu.report.memory, SliceKind::whole(&gpu.report.model)));
            };
            let suits = |profile: &&Profile| could_hold(&waiting.asked.gpu, mig, profile);
            let profile = mig.plain().find(suits)?;
            Some((profile.memory, kind(&gpu.report.model, mig, profile)?))
        });
        let (_, on) = tightest.min()?;
        self.predictions.predict_rest(waiting.asked.id, &waiting.facts, waiting.done, &on)
    }

    /// Uses a new model of co-located jobs, unless the outcomes of its newest predictions say that
    /// it is not accurate.
    pub fn use_colocation_model(&mut self, model: Arc<ColocationModel>, came: &[bool]) {
        let mut watch = DriftWatch::new();
        for covered in came {
            watch.take(*covered);
        }
        self.predictions.colocation = TrustedColocation { model: Some(model), watch };
    }

    /// Predicts an attempt that is about to share a slice under MPS.
    pub(crate) fn predict_colocation(
        &self,
        facts: &TaskFacts,
        sharer: &SharingRequest,
        gpu: &GpuId,
        slot: Option<Slot>,
    ) -> Option<ColocationPrediction> {
        let client = sharer.client?;
        let on = self.inventory.slice_kind(gpu, slot)?;
        let there =
            self.attempts.live.values().filter(|live| live.gpu == *gpu && live.slot == slot);
        let mut others = CoRunners::default();
        let mut count = 0;
        for other in there.filter_map(|live| live.share.as_ref()?.client) {
            others.add(&known(&other), 1_000);
            count += 1;
        }
        let said = |crowd: &ColocationPredictor| {
            let told = crowd.predict(&Colocation { slice: on.part, own: known(&client), others });
            let [low, value, high] =
                [told.low, told.value, told.high].map(|end| u32::try_from(end).unwrap_or(1_000));
            let (low, high) = (low.min(value), high.max(value));
            (PredictedSpeed { low, value, high }, told.model)
        };
        let speed = self.predictions.colocation.asked().map(said);
        Some(ColocationPrediction { task: facts.task.clone(), on, client, others: count, speed })
    }

    /// Records how busy tasks are, and updates all jobs that share slices.
    pub fn record_task_load(&mut self, tasks: Vec<(String, u16)>) {
        let known = Arc::make_mut(&mut self.predictions.busy);
        for (task, busy) in tasks {
            if known.len() < TASKS_MAX || known.contains_key(&task) {
                known.insert(task, busy.min(1_000).div_ceil(STEP) * STEP);
            }
        }
        let busy = &*self.predictions.busy;
        for ((rank, _), waiting) in &mut self.queue.waiting {
            let share = waiting.asked.share.as_mut();
            set_service_order(share, turn(busy, &waiting.facts, rank.priority));
            set_mps_client(waiting.asked.share.as_mut(), busy, &waiting.facts);
        }
        for live in self.attempts.live.values_mut() {
            set_mps_client(live.share.as_mut(), busy, &live.facts);
            let launched = live.share.as_ref().and_then(|sharer| sharer.kernel_sharer);
            let Some(priority) = launched.map(|turn| turn.priority) else { continue };
            let turn = turn(busy, &live.facts, priority);
            set_service_order(live.share.as_mut(), turn);
        }
    }
}
