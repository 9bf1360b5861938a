//! Predictions from other tasks' runs on the same slices, for tasks without their own runs
//! there.
//!
//! A model of `tessera-predict` is trained outside of rounds and replaced as a whole
//! ([`RunEstimator::use_model`]). It predicts only for slices of a GPU model on which a task never
//! ran while it ran on others. Earlier runs have precedence. The rule applies if there is no model,
//! or while the model's predictions are not accurate ([`DriftWatch`]).

use crate::predictions::sizes::{LearnedSize, LearnedSizes};
use crate::predictions::{MemorySample, RunSample};
use std::sync::Arc;
use tessera_model::Millis;
use tessera_model::number::clamped;
use tessera_placement::{Basis, Empirical, Estimator, Prediction, SliceKind};
use tessera_predict::drift::{DriftWatch, PredictorTrust};
use tessera_predict::jct::{TaskRun, TimePredictor};
use tessera_predict::{PredictionSource, TrainedModel};

/// The model's unit of a slice's size, as parts of a GPU: a multiple of every known number of
/// compute slices.
const PARTS: u8 = 28;

/// The seed of training: equal samples give an equal model.
pub(crate) const SEED: u64 = 1;

/// A model of how run times compare between slices.
#[derive(Debug)]
pub struct RunTimeModel {
    jct: TimePredictor,
}

/// Returns a slice's size in [`PARTS`].
pub(crate) fn parts(on: &SliceKind) -> u8 {
    let parts = (u32::from(on.part) * u32::from(PARTS) + 500) / 1_000;
    clamped::<u8>(parts).clamp(1, PARTS)
}

/// Predicts run times: from earlier runs first, then by the trained model, then by the rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunEstimator {
    /// Shared with explain queries that are being answered at the same time.
    empirical: Arc<Empirical>,
    /// The memory that tasks used, shared in the same way.
    memory: Arc<LearnedSizes>,
    model: Option<Arc<RunTimeModel>>,
    watch: DriftWatch,
}

impl Estimator for RunEstimator {
    fn learn(&mut self, task: &str, on: &SliceKind, ran: Millis) {
        Arc::make_mut(&mut self.empirical).learn(task, on, ran);
    }

    fn predict(&self, task: &str, on: &SliceKind) -> Option<Prediction> {
        let known = self.empirical.predict(task, on)?;
        match (known.basis, self.model()) {
            (Basis::OtherSlice, Some((model, true))) => {
                Some(model.predict(task, on, known.runs).unwrap_or(known))
            }
            _ => Some(known),
        }
    }

    fn knows(&self, task: &str) -> bool {
        self.empirical.knows(task)
    }

    fn clear(&mut self) {
        // The model stays: a reload reads the same history.
        Arc::make_mut(&mut self.empirical).clear();
        self.memory = Arc::default();
    }
}

impl RunTimeModel {
    /// Trains a model from runs, the oldest first. Returns `None` if there are too few runs for
    /// training and testing.
    pub fn from(samples: &[RunSample]) -> Option<Self> {
        let run = |sample: &RunSample| TaskRun {
            task: sample.task.clone(),
            model: sample.on.model.clone(),
            whole_slices: PARTS,
            slices: parts(&sample.on),
            ms: sample.ran.get(),
            counters: None,
        };
        let runs: Vec<TaskRun> = samples.iter().map(run).collect();
        let jct = TimePredictor::learn(&runs, SEED);
        jct.ratios().is_some().then_some(Self { jct })
    }

    /// Returns the model with its version and its error.
    pub const fn trained(&self) -> Option<&TrainedModel> {
        self.jct.ratios()
    }

    /// Returns the model's fingerprint.
    pub fn fingerprint(&self) -> u64 {
        self.trained().map_or(0, |trained| trained.version.fingerprint)
    }

    pub(crate) fn predict(&self, task: &str, on: &SliceKind, runs: u32) -> Option<Prediction> {
        let predicted = self.jct.time(task, &on.model, parts(on), PredictorTrust::Trusted)?;
        let millis = Millis::new;
        (predicted.source == PredictionSource::Learned).then(|| Prediction {
            low: millis(predicted.low.min(predicted.value)),
            expected: millis(predicted.value),
            high: millis(predicted.high.max(predicted.value)),
            basis: Basis::Learned,
            runs,
        })
    }
}

impl RunEstimator {
    /// Uses a new model; `came` has the outcomes of its earlier predictions.
    pub(crate) fn use_model(&mut self, model: Arc<RunTimeModel>, outcomes: &[bool]) {
        if self.model.as_ref().is_none_or(|known| known.fingerprint() != model.fingerprint()) {
            self.watch = DriftWatch::new();
            for covered in outcomes {
                self.watch.take(*covered);
            }
        }
        self.model = Some(model);
    }

    /// Records the outcome of a prediction; only the model's predictions are watched.
    pub(crate) fn record_outcome(&mut self, known: &Prediction, ran: Millis) {
        if known.basis == Basis::Learned {
            self.watch.take(known.covers(ran));
        }
    }

    /// Learns the GPU memory of a run, and the outcome of its prediction.
    pub(crate) fn learn_memory(&mut self, sample: &MemorySample) {
        let memory = Arc::make_mut(&mut self.memory);
        if let Some(prediction) = sample.judged() {
            memory.observe_outcome(&sample.task, prediction, sample.evidence);
        }
        memory.take(sample);
    }

    /// Returns the memory size learned from a task's newest runs.
    pub(crate) fn learned_size(&self, task: &str) -> Option<LearnedSize> {
        self.memory.size_of(task)
    }

    /// Returns how many tasks get cautious memory estimates, since their runs exceeded earlier
    /// ones.
    pub(crate) fn count_low_confidence_tasks(&self) -> usize {
        self.memory.alarmed()
    }

    /// Returns the model, and whether it is trusted.
    pub(crate) fn model(&self) -> Option<(&RunTimeModel, bool)> {
        let model = self.model.as_deref()?;
        Some((model, self.watch.trust() == PredictorTrust::Trusted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(part: u16) -> SliceKind {
        SliceKind { model: "a".to_owned(), profile: format!("p{part}"), part }
    }

    /// Runs of tasks that are slower by the square root of the slice's size.
    fn samples(tasks: u64) -> Vec<RunSample> {
        let sizes = [(1_000, 100), (571, 132), (285, 187), (142, 265)];
        let of = |task: u64| {
            sizes.into_iter().flat_map(move |(part, percent)| {
                (0..3).map(move |run| RunSample {
                    task: format!("t{task}"),
                    on: kind(part),
                    ran: Millis::new((600_000 + task * 7_000) * percent / 100 + run),
                })
            })
        };
        (0..tasks).flat_map(of).collect()
    }

    fn forecaster() -> RunEstimator {
        let mut forecaster = RunEstimator::default();
        forecaster.learn("new", &kind(1_000), Millis::from_secs(1_000));
        forecaster
    }

    #[test]
    fn a_few_runs_are_not_enough_for_training() {
        assert!(RunTimeModel::from(&samples(2)).is_none());
    }

    #[test]
    fn samples_of_other_tasks_replace_the_rule_and_never_runs() {
        let mut forecaster = forecaster();
        let rule = forecaster.predict("new", &kind(285)).unwrap();
        assert_eq!((rule.basis, rule.expected.get() / 1_000), (Basis::OtherSlice, 3_508));
        let mut samples = samples(60);
        samples.push(RunSample {
            task: "new".to_owned(),
            on: kind(1_000),
            ran: Millis::from_secs(1_000),
        });

        forecaster.use_model(Arc::new(RunTimeModel::from(&samples).unwrap()), &[]);

        let learned = forecaster.predict("new", &kind(285)).unwrap();
        assert_eq!(learned.basis, Basis::Learned);
        let secs = learned.expected.get() / 1_000;
        assert!((1_700..2_050).contains(&secs), "{secs}");
        assert!(learned.low <= learned.expected && learned.expected <= learned.high);
        let own = forecaster.predict("new", &kind(1_000)).unwrap();
        assert_eq!(own.basis, Basis::SameSlice);
        let (model, is_trusted) = forecaster.model().unwrap();
        assert!(is_trusted && model.trained().unwrap().held_out.relative < 0.2);
    }

    #[test]
    fn an_inaccurate_model_is_not_used_until_it_is_replaced() {
        let mut forecaster = forecaster();
        let mut samples = samples(60);
        samples.extend(samples_of_new());
        let learned = Arc::new(RunTimeModel::from(&samples).unwrap());
        forecaster.use_model(Arc::clone(&learned), &[]);
        let predicted = forecaster.predict("new", &kind(285)).unwrap();
        assert_eq!(predicted.basis, Basis::Learned);

        for _ in 0..32 {
            forecaster.record_outcome(&predicted, predicted.high.plus(Millis::from_secs(1)));
        }

        assert!(!forecaster.model().unwrap().1);
        assert_eq!(forecaster.predict("new", &kind(285)).unwrap().basis, Basis::OtherSlice);
        // The next controller doesn't use it either, since it reads the outcomes from the store.
        let mut next = self::forecaster();
        next.use_model(learned, &[false; 32]);
        assert!(!next.model().unwrap().1);
        samples.extend(samples_of_new());
        forecaster.use_model(Arc::new(RunTimeModel::from(&samples).unwrap()), &[]);
        // The same task runs on one more size than before, which gives another model.
        let is_trusted = forecaster.model().unwrap().1;
        assert_eq!(
            is_trusted,
            forecaster.predict("new", &kind(285)).unwrap().basis == Basis::Learned
        );
    }

    fn samples_of_new() -> Vec<RunSample> {
        let sample = |part, secs| RunSample {
            task: "new".to_owned(),
            on: kind(part),
            ran: Millis::from_secs(secs),
        };
        vec![sample(1_000, 1_000), sample(571, 1_320)]
    }
}
