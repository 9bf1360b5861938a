//! The prediction of the paper: the memory that a growing job needs at its end, from its first
//! iterations.
//!
//! Source: MIGM §3.2, Algorithm 1. Requested memory is a line in the iterations, and so is the
//! inverse of the ratio of memory that is used again. The physical need at the last iteration is
//! one over the other. The forecast adds `z` residual deviations of a 99 % interval. It counts once
//! successive forecasts agree; the paper doesn't state how closely ([`TOLERANCE`]).

use crate::number::count;

/// Deviations of a 99 % interval.
const Z: f64 = 2.576;

/// How far successive forecasts may be apart for them to count, as a part.
pub const TOLERANCE: f64 = 0.10;

/// Iterations before which no line is drawn.
pub const LEAST: usize = 4;

/// A straight line through points at 1, 2, 3 and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct FittedLine {
    points: usize,
    sum_t: f64,
    sum_tt: f64,
    sum_m: f64,
    sum_tm: f64,
    sum_mm: f64,
}

impl FittedLine {
    fn take(&mut self, value: f64) {
        self.points += 1;
        let t = count(self.points);
        self.sum_t += t;
        self.sum_tt += t * t;
        self.sum_m += value;
        self.sum_tm += t * value;
        self.sum_mm += value * value;
    }

    /// Returns the line's value at `t`, and the deviation of the points from it.
    fn at(&self, t: f64) -> (f64, f64) {
        let n = count(self.points.max(1));
        let spread = (self.sum_tt - self.sum_t * self.sum_t / n).max(f64::MIN_POSITIVE);
        let slope = (self.sum_tm - self.sum_t * self.sum_m / n) / spread;
        let start = (self.sum_m - slope * self.sum_t) / n;
        let residual = self.sum_mm - start * self.sum_m - slope * self.sum_tm;
        let freedom = count(self.points.saturating_sub(2).max(1));
        (start + slope * t, (residual.max(0.0) / freedom).sqrt())
    }
}

/// The observations of one run so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryGrowth {
    requested: FittedLine,
    /// Inverse ratios of memory that is used again.
    inverse: FittedLine,
    /// The constant part: context, workspaces of libraries.
    constant: f64,
    last: Option<f64>,
    settled: bool,
}

impl MemoryGrowth {
    /// Begins a run; `constant` is memory that doesn't grow and isn't part of the requests.
    pub fn new(constant: f64) -> Self {
        Self { constant, ..Self::default() }
    }

    /// Records one iteration: its requested memory, in any unit, and the ratio of it that was
    /// reused memory (1 if unknown). `iterations` is their total number.
    ///
    /// Returns the need at the last iteration, once successive forecasts agree.
    pub fn take(&mut self, requested: f64, reuse: f64, iterations: usize) -> Option<f64> {
        self.requested.take(requested);
        self.inverse.take(1.0 / reuse.max(f64::MIN_POSITIVE));
        if self.requested.points < LEAST {
            return None;
        }
        let forecast = self.forecast(iterations);
        let moved = self.last.map(|last| (forecast / last - 1.0).abs());
        self.settled = self.settled || moved.is_some_and(|moved| moved <= TOLERANCE);
        self.last = Some(forecast);
        self.settled.then_some(forecast)
    }

    /// Returns the current forecast of the need at the last iteration.
    pub fn forecast(&self, iterations: usize) -> f64 {
        let (requested, deviation) = self.requested.at(count(iterations));
        let (inverse, _) = self.inverse.at(count(iterations));
        self.constant + (requested + Z * deviation) / inverse.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_noise_is_predicted_as_soon_as_it_is_one() {
        let mut growth = MemoryGrowth::new(1.0);
        let predicted: Vec<Option<f64>> =
            (1..=10).map(|t| growth.take(2.0 + 0.5 * count(t), 1.0, 100)).collect();
        assert_eq!(predicted.iter().position(Option::is_some), Some(LEAST));
        assert!((predicted[9].unwrap() - 53.0).abs() < 1e-6);
    }

    #[test]
    fn memory_used_again_is_needed_once() {
        let mut growth = MemoryGrowth::new(0.0);
        // The requests are twice the memory in use at one time.
        let predicted = (1..=10).filter_map(|t| growth.take(2.0 * count(t), 0.5, 100)).last();
        assert!((predicted.unwrap() - 100.0).abs() < 1e-6);
    }

    #[test]
    fn constant_memory_is_not_predicted_to_grow() {
        let mut growth = MemoryGrowth::new(0.0);
        let predicted: Vec<f64> = (0..50_u64)
            .filter_map(|t| {
                growth.take(8.0 + 0.01 * count(usize::try_from(t % 3).unwrap()), 1.0, 200)
            })
            .collect();
        assert!(predicted.iter().skip(5).all(|need| (7.9..8.2).contains(need)), "{predicted:?}");
    }
}
