//! Gradient-boosted regression trees.
//!
//! Source: Friedman, *Stochastic Gradient Boosting*, 2002, with XGBoost's drawn-in leaves (Chen and
//! Guestrin, 2016, eq. 5); Dyna-P, eq. 5.

use serde::{Deserialize, Serialize};

use super::Table;
use super::tree::{Binned, Growth, Tree};
use crate::number::Chance;

const ROUNDS: usize = 300;
const RATE: f64 = 0.08;
/// Part of the rows that each tree sees, in thousandths.
const SEEN: usize = 700;

/// Trees that each correct what those before leave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boosted {
    base: f64,
    trees: Vec<Tree>,
}

impl Boosted {
    pub(super) fn learn(table: &Table, seed: u64) -> Self {
        let base = table.mean();
        let mut trees = Vec::new();
        if table.is_empty() {
            return Self { base, trees };
        }
        let binned = Binned::new(table);
        let rule = Growth { depth_max: 5, leaf_min: 3, columns: table.width(), shrink: 1.0 };
        let mut chance = Chance::new(seed);
        let mut left: Vec<f64> = table.targets().iter().map(|target| target - base).collect();
        for _ in 0..ROUNDS {
            let rows = (0..table.len()).filter(|_| chance.below(1_000) < SEEN).collect();
            let tree = Tree::grow(&binned, &left, rows, rule, &mut chance);
            for (at, left) in left.iter_mut().enumerate() {
                *left -= RATE * tree.predict(table.row(at));
            }
            trees.push(tree);
        }
        Self { base, trees }
    }

    pub(super) fn predict(&self, row: &[f64]) -> f64 {
        self.base + RATE * self.trees.iter().map(|tree| tree.predict(row)).sum::<f64>()
    }
}
