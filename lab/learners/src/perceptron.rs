//! A multi-layer perceptron: one hidden layer, learned by Adam (Kingma and Ba, 2015).

use serde::{Deserialize, Serialize};
use tessera_predict::learn::{TrainingTable, scaled};
use tessera_predict::number::count;
use tessera_predict::random::SeededRng;

const HIDDEN: usize = 32;
/// Rows per step.
const BATCH: usize = 32;
/// Total number of steps, whatever the number of rows; this bounds the time to learn.
const STEPS: usize = 6_000;
const RATE: f64 = 0.01;

/// Numbers from one layer to the next, one row an output; the last of a row is its offset.
type Weights = Vec<Vec<f64>>;

/// A feed-forward network with one hidden layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerceptronNetwork {
    base: f64,
    spread: f64,
    scales: Vec<(f64, f64)>,
    hidden: Weights,
    out: Vec<f64>,
}

impl PerceptronNetwork {
    /// Learns from a table; equal seeds give an equal model.
    pub fn learn(table: &TrainingTable, seed: u64) -> Self {
        let base = table.mean();
        let square: f64 = table.targets().iter().map(|target| (target - base).powi(2)).sum();
        let spread = (square / count(table.len().max(1))).sqrt().max(1e-12);
        let mut rng = SeededRng::new(seed);
        let mut draw = |inputs: usize| {
            let most = (3.0 / count(inputs.max(1))).sqrt();
            (rng.unit() * 2.0 - 1.0) * most
        };
        let width = table.width();
        let hidden = (0..HIDDEN).map(|_| (0..=width).map(|_| draw(width)).collect()).collect();
        let out = match table.is_empty() {
            true => vec![0.0; HIDDEN + 1],
            false => (0..=HIDDEN).map(|_| draw(HIDDEN)).collect(),
        };
        let mut network = Self { base, spread, scales: table.scales(), hidden, out };
        if !table.is_empty() {
            network.descend(table, &mut SeededRng::new(seed ^ 0xADA));
        }
        network
    }

    fn descend(&mut self, table: &TrainingTable, rng: &mut SeededRng) {
        let rows: Vec<(Vec<f64>, f64)> = table
            .rows()
            .map(|(row, target)| (scaled(&self.scales, row), (target - self.base) / self.spread))
            .collect();
        let width = table.width() + 1;
        let size = HIDDEN * width + HIDDEN + 1;
        let (mut first, mut second) = (vec![0.0; size], vec![0.0; size]);
        let (mut decay_first, mut decay_second) = (1.0, 1.0);
        for step in 0..STEPS {
            let mut slopes = vec![0.0; size];
            for _ in 0..BATCH {
                let (row, target) = &rows[rng.index_below(rows.len())];
                self.add_slopes(row, *target, &mut slopes);
            }
            decay_first *= 0.9;
            decay_second *= 0.999;
            // The learning rate falls to a hundredth, so that the last steps converge.
            let rate = RATE * 0.01_f64.powf(count(step) / count(STEPS));
            let weights = self.hidden.iter_mut().flatten().chain(&mut self.out);
            for (at, weight) in weights.enumerate() {
                let slope = slopes[at] / count(BATCH);
                first[at] = 0.9 * first[at] + 0.1 * slope;
                second[at] = 0.999 * second[at] + 0.001 * slope * slope;
                let mean = first[at] / (1.0 - decay_first);
                let square = second[at] / (1.0 - decay_second);
                *weight -= rate * mean / (square.sqrt() + 1e-8);
            }
        }
    }

    fn add_slopes(&self, row: &[f64], target: f64, slopes: &mut [f64]) {
        let fired: Vec<f64> = self.hidden.iter().map(|unit| weighed(unit, row).tanh()).collect();
        let off = weighed(&self.out, &fired) - target;
        let width = row.len() + 1;
        for (at, (fire, out)) in fired.iter().zip(&self.out).enumerate() {
            let back = off * out * (1.0 - fire * fire);
            for (cell, slope) in row.iter().zip(&mut slopes[at * width..]) {
                *slope += back * cell;
            }
            slopes[at * width + row.len()] += back;
            slopes[HIDDEN * width + at] += off * fire;
        }
        slopes[HIDDEN * width + HIDDEN] += off;
    }

    /// Predicts the target of a row of features.
    pub fn predict(&self, row: &[f64]) -> f64 {
        let row = scaled(&self.scales, row);
        let fired: Vec<f64> = self.hidden.iter().map(|unit| weighed(unit, &row).tanh()).collect();
        self.base + self.spread * weighed(&self.out, &fired)
    }
}

fn weighed(weights: &[f64], row: &[f64]) -> f64 {
    let sum: f64 = row.iter().zip(weights).map(|(cell, weight)| cell * weight).sum();
    sum + weights.get(row.len()).copied().unwrap_or(0.0)
}
