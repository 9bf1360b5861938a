//! Learners that only experiments use: those that MMK's Table IV compares with the controller's, and the
//! speeds of jobs whose demands are measured.
//!
//! The controller's learners are in [`tessera_predict`].

#![forbid(unsafe_code)]

mod linear;
mod perceptron;
pub mod sharing;
mod svr;

use tessera_predict::learn::{LearnedModel, LearnerKind, TrainingTable};
use tessera_predict::{HeldOutError, TooFewRows, learn_with_error};

pub use linear::LinearRegression;
pub use perceptron::PerceptronNetwork;
pub use svr::SupportVectors;

/// The learners that an experiment compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedLearner {
    /// A learner of the controller.
    Production(LearnerKind),
    /// Multi-layer perceptron.
    Perceptron,
    /// Linear regression.
    Linear,
    /// Support vector regression.
    Svr,
}

impl ComparedLearner {
    /// All learners, the controller's first.
    pub const ALL: [Self; 5] = [
        Self::Production(LearnerKind::Boosted),
        Self::Production(LearnerKind::Forest),
        Self::Perceptron,
        Self::Linear,
        Self::Svr,
    ];

    /// Returns its name in requests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Production(kind) => kind.name(),
            Self::Perceptron => "multi-layer perceptron",
            Self::Linear => "linear regression",
            Self::Svr => "support vector regression",
        }
    }

    /// Learns from a part of a table and tests on the rest: see [`learn_with_error`].
    ///
    /// # Errors
    ///
    /// [`TooFewRows`] rows.
    pub fn held_out_error(
        self,
        table: &TrainingTable,
        seed: u64,
    ) -> Result<HeldOutError, TooFewRows> {
        let learn = |train: &TrainingTable| ComparedModel::learn(self, train, seed);
        learn_with_error(table, learn, ComparedModel::predict).map(|(_, _, held_out)| held_out)
    }
}

/// A function that was learned by one of the compared learners.
#[derive(Clone, Debug, PartialEq)]
pub enum ComparedModel {
    /// By a learner of the controller.
    Production(LearnedModel),
    /// By a multi-layer perceptron.
    Perceptron(PerceptronNetwork),
    /// By linear regression.
    Linear(LinearRegression),
    /// By support vector regression.
    Svr(SupportVectors),
}

impl ComparedModel {
    /// Learns from a table; all random numbers come from `seed`.
    pub fn learn(learner: ComparedLearner, table: &TrainingTable, seed: u64) -> Self {
        match learner {
            ComparedLearner::Production(kind) => {
                Self::Production(LearnedModel::learn(kind, table, seed))
            }
            ComparedLearner::Perceptron => Self::Perceptron(PerceptronNetwork::learn(table, seed)),
            ComparedLearner::Linear => Self::Linear(LinearRegression::learn(table)),
            ComparedLearner::Svr => Self::Svr(SupportVectors::learn(table)),
        }
    }

    /// Predicts the target of a row that has the columns of the table it learned from.
    pub fn predict(&self, row: &[f64]) -> f64 {
        match self {
            Self::Production(model) => model.predict(row),
            Self::Perceptron(model) => model.predict(row),
            Self::Linear(model) => model.predict(row),
            Self::Svr(model) => model.predict(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use tessera_predict::number::count;
    use tessera_predict::random::SeededRng;

    use super::*;

    /// A curve with a kink and a product, which trees and networks can follow and lines can't.
    fn curve(rows: u64) -> TrainingTable {
        let mut rng = SeededRng::new(7);
        let mut table = TrainingTable::new(3);
        for row in 0..rows {
            let x: Vec<f64> = (0..3).map(|_| rng.unit()).collect();
            let y = 2.0 * x[0].max(0.5) + x[1] * x[2];
            table.push(row, &x, y).unwrap();
        }
        table
    }

    fn error(learner: ComparedLearner) -> f64 {
        let table = curve(800);
        let (train, held_out) = table.split(200);
        let model = ComparedModel::learn(learner, &train, 1);
        let off = held_out.rows().map(|(x, y)| (model.predict(x) - y).abs());
        off.sum::<f64>() / count(held_out.len())
    }

    #[test]
    fn every_learner_has_less_error_than_the_mean_and_those_of_curves_less_than_the_line() {
        // The error of the mean alone is 0.27.
        let line = error(ComparedLearner::Linear);
        assert!(line < 0.15, "{line}");
        for learner in ComparedLearner::ALL.into_iter().filter(|l| *l != ComparedLearner::Linear) {
            let curved = error(learner);
            assert!(curved < line * 0.7, "{}: {curved}, the line {line}", learner.name());
        }
    }

    #[test]
    fn learning_twice_gives_the_same_model() {
        let table = curve(200);
        for learner in ComparedLearner::ALL {
            let model = ComparedModel::learn(learner, &table, 3);
            assert_eq!(model, ComparedModel::learn(learner, &table, 3), "{}", learner.name());
        }
    }

    #[test]
    fn a_model_of_an_empty_table_predicts_zero() {
        for learner in ComparedLearner::ALL {
            let model = ComparedModel::learn(learner, &TrainingTable::new(3), 1);
            assert!(model.predict(&[1.0, 2.0, 3.0]).abs() < 1e-9, "{}", learner.name());
        }
    }

    #[test]
    fn about_nine_of_ten_outcomes_lie_in_the_interval() {
        let mut rng = SeededRng::new(11);
        let mut table = TrainingTable::new(1);
        for row in 0..1_200 {
            let x = rng.unit();
            let target = 3.0 * x + (rng.unit() * 2.0 - 1.0) * 0.5;
            table.push(row, &[x], target).unwrap();
        }
        for learner in ComparedLearner::ALL {
            let covered = learner.held_out_error(&table, 1).unwrap().covered;
            assert!((0.82..=0.98).contains(&covered), "{}: {covered}", learner.name());
        }
    }
}
