//! Linear regression, by the normal equations, with a small ridge term so that they can be solved.

use serde::{Deserialize, Serialize};
use tessera_predict::learn::{TrainingTable, scaled};
use tessera_predict::number::count;

/// The ridge term for each row: it prevents equal columns from cancelling out.
const RIDGE: f64 = 1e-6;

/// A plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearRegression {
    base: f64,
    scales: Vec<(f64, f64)>,
    slopes: Vec<f64>,
}

impl LinearRegression {
    /// Learns from a table.
    pub fn learn(table: &TrainingTable) -> Self {
        let (base, scales, width) = (table.mean(), table.scales(), table.width());
        let mut square = vec![vec![0.0; width]; width];
        let mut right = vec![0.0; width];
        for (row, target) in table.rows() {
            let row = scaled(&scales, row);
            for (at, cell) in row.iter().enumerate() {
                right[at] += cell * (target - base);
                for (sum, other) in square[at].iter_mut().zip(&row) {
                    *sum += cell * other;
                }
            }
        }
        for (at, row) in square.iter_mut().enumerate() {
            row[at] += RIDGE * count(table.len()) + 1e-9;
        }
        Self { base, scales, slopes: solved(square, right) }
    }

    /// Predicts the target of a row of features.
    pub fn predict(&self, row: &[f64]) -> f64 {
        let row = scaled(&self.scales, row);
        self.base + row.iter().zip(&self.slopes).map(|(cell, slope)| cell * slope).sum::<f64>()
    }
}

/// Solves a symmetric positive system by elimination with row exchange.
fn solved(mut square: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let size = right.len();
    for step in 0..size {
        let largest =
            (step..size).max_by(|a, b| square[*a][step].abs().total_cmp(&square[*b][step].abs()));
        let Some(pivot) = largest.filter(|at| square[*at][step].abs() > 1e-300) else { continue };
        square.swap(step, pivot);
        right.swap(step, pivot);
        let (above, below) = square.split_at_mut(step + 1);
        let top = &above[step];
        for (offset, row) in below.iter_mut().enumerate() {
            let factor = row[step] / top[step];
            for (cell, upper) in row.iter_mut().zip(top).skip(step) {
                *cell -= factor * upper;
            }
            right[step + 1 + offset] -= factor * right[step];
        }
    }
    let mut found = vec![0.0; size];
    for step in (0..size).rev() {
        let known: f64 = (step + 1..size).map(|at| square[step][at] * found[at]).sum();
        if square[step][step].abs() > 1e-300 {
            found[step] = (right[step] - known) / square[step][step];
        }
    }
    found
}
