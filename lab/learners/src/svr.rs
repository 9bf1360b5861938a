//! Support vector regression with a radial kernel, by coordinate descent on the dual.
//!
//! Source: Ho and Lin, *Large-scale Linear Support Vector Regression*, 2012, algorithm 4, with a
//! kernel; the offset is folded into the kernel as one more constant column.

use serde::{Deserialize, Serialize};
use tessera_predict::learn::{TrainingTable, scaled};
use tessera_predict::number::count;

/// Half the width of the tube in which errors are free, in spreads of the target.
const TUBE: f64 = 0.1;
/// The maximum weight of one row.
const WEIGHT_MAX: f64 = 1.0;
/// Rows that are learned from: the kernel's size is their square.
const ROWS_MAX: usize = 1_500;
/// Passes over the rows.
const PASSES: usize = 60;

/// The support vectors, with their weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SupportVectors {
    base: f64,
    spread: f64,
    scales: Vec<(f64, f64)>,
    rows: Vec<(Vec<f64>, f64)>,
}

impl SupportVectors {
    /// Learns from a table.
    pub fn learn(table: &TrainingTable) -> Self {
        let base = table.mean();
        let square: f64 = table.targets().iter().map(|target| (target - base).powi(2)).sum();
        let spread = (square / count(table.len().max(1))).sqrt().max(1e-12);
        let scales = table.scales();
        let skip = table.len().saturating_sub(ROWS_MAX);
        let (rows, targets): (Vec<Vec<f64>>, Vec<f64>) = table
            .rows()
            .skip(skip)
            .map(|(row, target)| (scaled(&scales, row), (target - base) / spread))
            .unzip();
        let kernels: Vec<Vec<f64>> =
            rows.iter().map(|a| rows.iter().map(|b| kernel(a, b)).collect()).collect();
        let mut weights = vec![0.0; rows.len()];
        let mut found = vec![0.0; rows.len()];
        for _ in 0..PASSES {
            for at in 0..rows.len() {
                let steep = kernels[at][at];
                let off = found[at] - targets[at];
                // The minimum of a parabola and a corner at zero.
                let free = weights[at] - off / steep;
                let corner = TUBE / steep;
                let next = free.signum() * (free.abs() - corner).max(0.0);
                let next = next.clamp(-WEIGHT_MAX, WEIGHT_MAX);
                let change = next - weights[at];
                if change != 0.0 {
                    weights[at] = next;
                    found.iter_mut().zip(&kernels[at]).for_each(|(f, k)| *f += change * k);
                }
            }
        }
        let rows = rows.into_iter().zip(weights).filter(|(_, weight)| *weight != 0.0).collect();
        Self { base, spread, scales, rows }
    }

    /// Predicts the target of a row of features.
    pub fn predict(&self, row: &[f64]) -> f64 {
        let row = scaled(&self.scales, row);
        let sum: f64 = self.rows.iter().map(|(known, weight)| weight * kernel(known, &row)).sum();
        self.base + self.spread * sum
    }
}

/// A bell of the distance over the number of columns, plus the offset's constant.
fn kernel(a: &[f64], b: &[f64]) -> f64 {
    let distance: f64 = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum();
    (-distance / count(a.len().max(1))).exp() + 1.0
}
