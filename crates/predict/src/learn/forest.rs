//! Random forest.
//!
//! Source: Breiman, *Random Forests*, 2001; MMK, §III-A.

use serde::{Deserialize, Serialize};

use super::TrainingTable;
use super::tree::{BinnedColumns, GrowthRule, RegressionTree};
use crate::number::count;
use crate::random::SeededRng;

const TREES: usize = 100;

/// Trees on random samples of the rows, each split on a random sample of the columns; the
/// prediction is their mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomForest {
    trees: Vec<RegressionTree>,
}

impl RandomForest {
    /// Learns from a table; equal seeds give an equal model.
    pub fn learn(table: &TrainingTable, seed: u64) -> Self {
        if table.is_empty() {
            return Self { trees: Vec::new() };
        }
        let binned = BinnedColumns::new(table);
        let columns = (table.width() * 2).div_ceil(3);
        let rule = GrowthRule { depth_max: 14, leaf_min: 1, columns, shrink: 0.0 };
        let tree = |number: u64| {
            let mut rng = SeededRng::new(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let rows = (0..table.len()).map(|_| rng.index_below(table.len())).collect();
            RegressionTree::grow(&binned, table.targets(), rows, rule, &mut rng)
        };
        Self { trees: (1..).take(TREES).map(tree).collect() }
    }

    /// Predicts the target of a row of features.
    pub fn predict(&self, row: &[f64]) -> f64 {
        let sum: f64 = self.trees.iter().map(|tree| tree.predict(row)).sum();
        sum / count(self.trees.len().max(1))
    }
}
