//! Random forest.
//!
//! Source: Breiman, *Random Forests*, 2001; MMK, §III-A.

use serde::{Deserialize, Serialize};

use super::Table;
use super::tree::{Binned, Growth, Tree};
use crate::number::{Chance, count};

const TREES: usize = 100;

/// Trees on draws of the rows, each split on a draw of the columns; their mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forest {
    trees: Vec<Tree>,
}

impl Forest {
    pub(super) fn learn(table: &Table, seed: u64) -> Self {
        if table.is_empty() {
            return Self { trees: Vec::new() };
        }
        let binned = Binned::new(table);
        let columns = (table.width() * 2).div_ceil(3);
        let rule = Growth { depth_max: 14, leaf_min: 1, columns, shrink: 0.0 };
        let tree = |number: u64| {
            let mut chance = Chance::new(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let rows = (0..table.len()).map(|_| chance.below(table.len())).collect();
            Tree::grow(&binned, table.targets(), rows, rule, &mut chance)
        };
        Self { trees: (1..).take(TREES).map(tree).collect() }
    }

    pub(super) fn predict(&self, row: &[f64]) -> f64 {
        let sum: f64 = self.trees.iter().map(|tree| tree.predict(row)).sum();
        sum / count(self.trees.len().max(1))
    }
}
