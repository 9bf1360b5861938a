//! Gradient-boosted regression trees.
//!
//! Source: Friedman, *Stochastic Gradient Boosting*, 2002, with XGBoost's regularised leaves (Chen
//! and Guestrin, 2016, eq. 5); Dyna-P, eq. 5.

use serde::{Deserialize, Serialize};

use super::TrainingTable;
use super::tree::{BinnedColumns, GrowthRule, RegressionTree};
use crate::random::SeededRng;

const ROUNDS: usize = 300;
const RATE: f64 = 0.08;
/// The part of the rows from which each tree learns, in thousandths.
const SEEN: usize = 700;

/// Trees that each correct the error of those before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoostedTrees {
    base: f64,
    trees: Vec<RegressionTree>,
}

impl BoostedTrees {
    /// Learns from a table; equal seeds give an equal model.
    pub fn learn(table: &TrainingTable, seed: u64) -> Self {
        let base = table.mean();
        let mut trees = Vec::new();
        if table.is_empty() {
            return Self { base, trees };
        }
        let binned = BinnedColumns::new(table);
        let rule = GrowthRule { depth_max: 5, leaf_min: 3, columns: table.width(), shrink: 1.0 };
        let mut rng = SeededRng::new(seed);
        let mut left: Vec<f64> = table.targets().iter().map(|target| target - base).collect();
        for _ in 0..ROUNDS {
            let rows = (0..table.len()).filter(|_| rng.index_below(1_000) < SEEN).collect();
            let tree = RegressionTree::grow(&binned, &left, rows, rule, &mut rng);
            for (at, left) in left.iter_mut().enumerate() {
                *left -= RATE * tree.predict(table.row(at));
            }
            trees.push(tree);
        }
        Self { base, trees }
    }

    /// Predicts the target of a row of features.
    pub fn predict(&self, row: &[f64]) -> f64 {
        self.base + RATE * self.trees.iter().map(|tree| tree.predict(row)).sum::<f64>()
    }
}
