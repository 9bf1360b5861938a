//! A model with its version, its error on unseen rows, and its interval.

use serde::{Deserialize, Serialize};
use tessera_model::number::index;

use crate::learn::{LearnedModel, LearnerKind, TrainingTable};
use crate::number::{count, hash, whole};
use crate::outcome::{PredictedQuantity, Prediction, PredictionSource};

/// The fewest rows on which each model without a fifth of the groups is tested.
pub const CALIBRATION_MIN: usize = 10;

/// How many parts of the groups are left out, one after another. Chosen: more of them hardly change the interval, and
/// each costs a training.
const FOLDS: u64 = 5;

/// How intervals are determined: part of a model's fingerprint, since another way gives other intervals.
const METHOD: &[u8] = b"CV+";

/// The part of outcomes that an interval should contain.
const COVERAGE: f64 = 0.9;

/// There are too few rows to learn from: work without a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{rows} rows are too few to learn from and to test with: each fifth of the tasks must have \
     {CALIBRATION_MIN}"
)]
pub struct TooFewRows {
    /// The number of rows.
    pub rows: usize,
}

/// Identifies a trained model, with the samples that it was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelVersion {
    /// A hash of the rows, the learner and the seed: equal if and only if the models are equal.
    pub fingerprint: u64,
    /// The number of rows that it learned from.
    pub rows: u64,
}

/// The error on rows of unseen tasks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutError {
    /// The number of tested rows.
    pub rows: u64,
    /// Mean absolute error, in the target's unit.
    pub absolute: f64,
    /// Mean absolute error, relative to the mean absolute target.
    pub relative: f64,
    /// The part of the rows that were in their interval.
    pub covered: f64,
}

/// A trained and tested model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainedModel {
    /// Identifies the model in predictions that it made.
    pub version: ModelVersion,
    /// Its learner.
    pub kind: LearnerKind,
    /// Its error.
    pub held_out: HeldOutError,
    /// Half of its interval, in the target's unit.
    margin: f64,
    model: LearnedModel,
}

impl TrainedModel {
    /// Learns from a table, and measures the error and the interval: see [`learn_with_error`].
    ///
    /// # Errors
    ///
    /// [`TooFewRows`] rows, or too few of them held back.
    pub fn learn(kind: LearnerKind, table: &TrainingTable, seed: u64) -> Result<Self, TooFewRows> {
        let learn = |train: &TrainingTable| LearnedModel::learn(kind, train, seed);
        let (model, margin, held_out) = learn_with_error(table, learn, LearnedModel::predict)?;
        let version = version(kind, table, seed);
        Ok(Self { version, kind, held_out, margin, model })
    }

    /// Predicts a speed in thousandths from a model of fractions of one: co-runners neither stop a
    /// job nor make it faster.
    pub fn predict_speed(&self, row: &[f64]) -> Prediction {
        let ends = self.predict(row).map(|end| whole(end.clamp(0.001, 1.0) * 1_000.0));
        let [low, value, high] = ends;
        let (quantity, source) = (PredictedQuantity::SpeedPerMille, PredictionSource::Learned);
        Prediction { quantity, value, low, high, source, model: self.version.fingerprint }
    }

    /// Returns lower end, value and upper end.
    pub fn predict(&self, row: &[f64]) -> [f64; 3] {
        let value = self.model.predict(row);
        [value - self.margin, value, value + self.margin]
    }
}

/// Learns from all rows. Returns the model, half of its interval in the target's unit, and its error.
///
/// Interval and error come from [`FOLDS`] models, each of which learned without a fifth of the groups and was tested
/// on it. So every group counts, and the interval does not depend on which few groups a single split held back. Nine of
/// ten errors on groups that a model has not seen are within the margin. The part that is covered was counted with the
/// margin of the other fifths' errors.
///
/// Source: Barber et al., *Predictive Inference with the Jackknife+*, 2021 (CV+, here with one width for all rows); Lei
/// et al., *Distribution-Free Predictive Inference for Regression*, 2018, alg. 2.
///
/// # Errors
///
/// [`TooFewRows`] rows, or too few of them in one of the fifths.
pub fn learn_with_error<M>(
    table: &TrainingTable,
    learn: impl Fn(&TrainingTable) -> M,
    predict: impl Fn(&M, &[f64]) -> f64,
) -> Result<(M, f64, HeldOutError), TooFewRows> {
    let mut folds: Vec<Vec<f64>> = Vec::new();
    for (rest, fold) in table.folds(FOLDS) {
        if fold.len() < CALIBRATION_MIN || rest.is_empty() {
            return Err(TooFewRows { rows: table.len() });
        }
        let model = learn(&rest);
        let off = fold.rows().map(|(row, target)| (predict(&model, row) - target).abs());
        folds.push(off.collect());
    }
    let covered = folds.iter().enumerate().map(|(at, fold)| {
        let others = folds.iter().enumerate().filter(|(other, _)| *other != at);
        let margin = conformal_quantile(others.flat_map(|(_, fold)| fold).copied(), COVERAGE);
        fold.iter().filter(|error| **error <= margin).count()
    });
    let covered: usize = covered.sum();
    let errors: Vec<f64> = folds.concat();
    let rows = count(errors.len());
    let absolute = errors.iter().sum::<f64>() / rows;
    let size = table.targets().iter().map(|target| target.abs()).sum::<f64>() / rows;
    let held_out = HeldOutError {
        rows: errors.len() as u64,
        absolute,
        relative: absolute / size.max(1e-12),
        covered: count(covered) / rows,
    };
    let margin = conformal_quantile(errors.into_iter(), COVERAGE);
    Ok((learn(table), margin, held_out))
}

/// Returns the value that this part of similar figures does not exceed; zero without figures.
///
/// Source: Lei et al., *Distribution-Free Predictive Inference for Regression*, 2018, alg. 2.
pub(crate) fn conformal_quantile(figures: impl Iterator<Item = f64>, covered: f64) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let rank = whole((count(figures.len() + 1) * covered).ceil());
    let at = index(rank).clamp(1, figures.len().max(1)) - 1;
    figures.get(at).copied().unwrap_or(0.0)
}

fn version(kind: LearnerKind, table: &TrainingTable, seed: u64) -> ModelVersion {
    let mut bytes = [kind.name().as_bytes(), METHOD].concat();
    bytes.extend(seed.to_le_bytes());
    for (row, target) in table.rows() {
        row.iter().chain([&target]).for_each(|cell| bytes.extend(cell.to_bits().to_le_bytes()));
    }
    ModelVersion { fingerprint: hash(&bytes), rows: table.len() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SeededRng;

    /// A line with uniform noise of half width `noise`.
    fn noisy(rows: u64, noise: f64) -> TrainingTable {
        let mut rng = SeededRng::new(11);
        let mut table = TrainingTable::new(1);
        for row in 0..rows {
            let x = rng.unit();
            let target = 3.0 * x + (rng.unit() * 2.0 - 1.0) * noise;
            table.push(row, &[x], target).unwrap();
        }
        table
    }

    #[test]
    fn about_nine_of_ten_outcomes_lie_in_the_interval() {
        for kind in LearnerKind::ALL {
            let trained = TrainedModel::learn(kind, &noisy(1_200, 0.5), 1).unwrap();
            let covered = trained.held_out.covered;
            assert!((0.82..=0.98).contains(&covered), "{}: {covered}", kind.name());
        }
    }

    #[test]
    fn an_interval_is_as_wide_as_the_noise() {
        let narrow = TrainedModel::learn(LearnerKind::Boosted, &noisy(600, 0.1), 1).unwrap();
        let wide = TrainedModel::learn(LearnerKind::Boosted, &noisy(600, 1.0), 1).unwrap();
        assert!(narrow.margin * 5.0 < wide.margin, "{} {}", narrow.margin, wide.margin);
        let [low, value, high] = narrow.predict(&[0.5]);
        assert!(low < value && value < high);
    }

    #[test]
    fn a_version_names_rows_learner_and_seed() {
        let table = noisy(200, 0.1);
        let version = |kind, table: &TrainingTable, seed| {
            TrainedModel::learn(kind, table, seed).unwrap().version
        };
        let first = version(LearnerKind::Boosted, &table, 1);
        assert_eq!(first, version(LearnerKind::Boosted, &table, 1));
        assert_ne!(first, version(LearnerKind::Boosted, &table, 2));
        assert_ne!(first, version(LearnerKind::Forest, &table, 1));
        assert_ne!(first, version(LearnerKind::Boosted, &noisy(201, 0.1), 1));
    }

    #[test]
    fn a_handful_of_rows_is_refused_for_training() {
        let refused = TrainedModel::learn(LearnerKind::Forest, &noisy(12, 0.1), 1).unwrap_err();
        assert_eq!(refused.rows, 12);
    }
}
