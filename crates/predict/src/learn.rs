//! Learners of one number from a row of numbers.

mod boost;
mod forest;
mod table;
mod tree;

use serde::{Deserialize, Serialize};

pub use boost::BoostedTrees;
pub use forest::RandomForest;
pub use table::{ROWS_MAX, RowError, TrainingTable, scaled};

/// The learners of a controller. Those that are only compared with them are in the laboratory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearnerKind {
    /// Gradient-boosted regression trees (Dyna-P, eq. 5).
    Boosted,
    /// Random forest (MMK, §III-A).
    Forest,
}

impl LearnerKind {
    /// All learners of a controller.
    pub const ALL: [Self; 2] = [Self::Boosted, Self::Forest];

    /// Returns its name in requests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boosted => "gradient-boosted trees",
            Self::Forest => "random forest",
        }
    }
}

/// A learned function from a row of numbers to one number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearnedModel {
    /// Gradient-boosted regression trees.
    Boosted(BoostedTrees),
    /// Random forest.
    Forest(RandomForest),
}

impl LearnedModel {
    /// Learns from a table; all random numbers come from `seed`.
    pub fn learn(kind: LearnerKind, table: &TrainingTable, seed: u64) -> Self {
        match kind {
            LearnerKind::Boosted => Self::Boosted(BoostedTrees::learn(table, seed)),
            LearnerKind::Forest => Self::Forest(RandomForest::learn(table, seed)),
        }
    }

    /// Predicts the target of a row that has the columns of the table it learned from.
    pub fn predict(&self, row: &[f64]) -> f64 {
        match self {
            Self::Boosted(model) => model.predict(row),
            Self::Forest(model) => model.predict(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::count;
    use crate::random::SeededRng;

    /// A curve with a kink and a product.
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

    #[test]
    fn every_learner_follows_a_curve_closer_than_a_line_could() {
        let (train, held_out) = curve(800).split(200);
        for kind in LearnerKind::ALL {
            let model = LearnedModel::learn(kind, &train, 1);
            let off = held_out.rows().map(|(x, y)| (model.predict(x) - y).abs());
            let error = off.sum::<f64>() / count(held_out.len());
            // The error of the mean alone is 0.27, and that of the best line 0.09.
            assert!(error < 0.06, "{}: {error}", kind.name());
        }
    }

    #[test]
    fn learning_twice_gives_the_same_model_and_it_can_be_stored() {
        let table = curve(200);
        for kind in LearnerKind::ALL {
            let model = LearnedModel::learn(kind, &table, 3);
            assert_eq!(model, LearnedModel::learn(kind, &table, 3), "{}", kind.name());
            let text = serde_json::to_string(&model).unwrap();
            let back: LearnedModel = serde_json::from_str(&text).unwrap();
            let row = [0.3, 0.6, 0.9];
            let off = (back.predict(&row) - model.predict(&row)).abs();
            assert!(off < 1e-9, "{}: {off}", kind.name());
        }
    }

    #[test]
    fn a_model_of_an_empty_table_predicts_zero() {
        for kind in LearnerKind::ALL {
            let model = LearnedModel::learn(kind, &TrainingTable::new(3), 1);
            assert!(model.predict(&[1.0, 2.0, 3.0]).abs() < 1e-9, "{}", kind.name());
        }
    }
}
