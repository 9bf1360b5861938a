//! The speed of co-located jobs under MPS: learned from attempts that shared slices, predicted for
//! attempts that will share one, and compared with the outcome.
//!
//! Source: MMK, §III-A; [`tessera_predict::colocation`] lists which of its inputs a controller can
//! know.

use crate::predictions::{RunSample, TaskFacts};
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_model::number::clamped;
use tessera_model::share::SliceShare;
use tessera_model::{AttemptId, GpuId, Millis};
use tessera_placement::{Basis, Empirical, Estimator as _, MpsClient, SliceKind};
use tessera_predict::TrainedModel;
use tessera_predict::colocation::{
    self as seen, CoRunners, ColocatedRun, Colocation, ColocationPredictor,
};
use tessera_predict::drift::{DriftWatch, PredictorTrust};

/// The seed of training: equal runs give an equal model.
pub(crate) const SEED: u64 = 1;

/// By how much the average co-runners of an attempt may differ from those at its start, in
/// thousandths of a job. Beyond that a prediction is not compared with its outcome, since it was
/// made for the co-runners at the start.
pub const STEADY: u32 = 250;

/// The prediction of an attempt's speed under MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColocationPrediction {
    /// The task's key.
    pub task: String,
    /// The kind of slice on which it runs.
    pub on: SliceKind,
    /// What predictions know about the attempt.
    pub client: MpsClient,
    /// The number of co-runners at its start.
    pub others: u32,
    /// Its predicted speed with them, and the model that predicted it; `None` without a prediction.
    pub speed: Option<(PredictedSpeed, u64)>,
}

/// A speed with its interval, in thousandths of the speed without co-runners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictedSpeed {
    /// The 5 % quantile: one in twenty runs is expected to be slower.
    pub low: u32,
    /// The expected speed.
    pub value: u32,
    /// The 95 % quantile: one in twenty runs is expected to be faster.
    pub high: u32,
}

/// An attempt that shared a slice under MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRun {
    /// The attempt that had co-runners.
    pub attempt: AttemptId,
    /// Its GPU and the first memory slice of its instance.
    pub place: (GpuId, i16),
    /// The task's key.
    pub task: String,
    /// The kind of slice on which it ran.
    pub on: SliceKind,
    /// What predictions know about it.
    pub client: seen::SharingClient,
    /// When its program began.
    pub began: Millis,
    /// When it ended; the current time if it still runs.
    pub ended: Millis,
    /// Whether it ran its whole job without interruption.
    pub whole: bool,
}

/// The outcome of a co-located attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColocationOutcome {
    /// The attempt whose speed was predicted.
    pub attempt: AttemptId,
    /// Its speed over its whole run, in thousandths of the speed without co-runners.
    pub speed: u32,
    /// Its average number of co-runners, in thousandths of a job.
    pub co_runners: u32,
}

/// Returns the outcomes of runs whose tasks' run times without co-runners are known, and the
/// training samples from these runs.
pub fn measure_outcomes(
    runs: &[SharedRun],
    alone: &[RunSample],
) -> Vec<(ColocationOutcome, ColocatedRun)> {
    let mut known = Empirical::default();
    alone.iter().for_each(|sample| known.learn(&sample.task, &sample.on, sample.ran));
    let mut places: BTreeMap<&(GpuId, i16), Vec<&SharedRun>> = BTreeMap::new();
    for run in runs {
        places.entry(&run.place).or_default().push(run);
    }
    let of = |run: &SharedRun| {
        let whole = known.predict(&run.task, &run.on).filter(|_| run.whole)?;
        let alone = (whole.basis == Basis::SameSlice).then_some(whole.expected.get())?;
        let ran = run.ended.minus(run.began).get();
        if ran == 0 {
            return None;
        }
        let mut others = CoRunners::default();
        let there = places.get(&run.place).into_iter().flatten();
        for other in there.filter(|other| other.attempt != run.attempt) {
            let both = run.ended.min(other.ended).minus(run.began.max(other.began)).get();
            others.add(&other.client, both.saturating_mul(1_000) / ran);
        }
        // Co-runners make no job faster; a higher speed is the variation between runs.
        let speed = clamped::<u32>(alone.saturating_mul(1_000) / ran).clamp(1, 1_000);
        let co_runners = clamped(others.count);
        let outcome = ColocationOutcome { attempt: run.attempt, speed, co_runners };
        let colocation = Colocation { slice: run.on.part, own: run.client, others };
        Some((outcome, ColocatedRun::of(&run.task, colocation, speed)))
    };
    runs.iter().filter_map(of).collect()
}

/// A model of the speed of co-located jobs.
#[derive(Debug)]
pub struct ColocationModel {
    predictor: ColocationPredictor,
}

/// The model of co-location, and whether it is trusted.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustedColocation {
    pub(crate) model: Option<Arc<ColocationModel>>,
    pub(crate) watch: DriftWatch,
}

/// Returns what predictions know about a sharing job, if it shares under MPS.
pub(crate) fn client(part: SliceShare, facts: &TaskFacts, busy: Option<u16>) -> Option<MpsClient> {
    match part {
        SliceShare::Mps(share) => Some(MpsClient { online: facts.online, sm: share.sm, busy }),
        SliceShare::Kernel(_) | SliceShare::Compute(_) => None,
    }
}

pub(crate) fn known(client: &MpsClient) -> seen::SharingClient {
    seen::SharingClient { online: client.online, sm_percent: client.sm.get(), busy: client.busy }
}

impl ColocationModel {
    /// Trains a model. Returns `None` if there are too few runs for training and testing.
    pub fn from(rows: &[ColocatedRun]) -> Option<Self> {
        Some(Self { predictor: ColocationPredictor::learn(rows, SEED).ok()? })
    }

    /// Returns the model with its version and its error.
    pub const fn trained(&self) -> &TrainedModel {
        &self.predictor.trained
    }

    /// Returns the model's fingerprint.
    pub const fn fingerprint(&self) -> u64 {
        self.predictor.trained.version.fingerprint
    }
}

impl TrustedColocation {
    /// Returns the model, if it is trusted.
    pub(crate) fn trusted_model(&self) -> Option<&ColocationPredictor> {
        let predictor = &self.model.as_deref()?.predictor;
        (predictor.is_useful() && self.watch.trust() == PredictorTrust::Trusted)
            .then_some(predictor)
    }

    /// Returns the model's fingerprint, and whether it is trusted.
    pub(crate) fn status(&self) -> Option<(u64, bool)> {
        Some((self.model.as_deref()?.fingerprint(), self.trusted_model().is_some()))
    }
}

#[cfg(test)]
mod tests;
