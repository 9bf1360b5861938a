//! Predicts the time of a kernel with few samples from its relatives: kernels of the same name with
//! other grids or blocks.
//!
//! The time of a function grows with its work by a power law. So a straight line through the
//! logarithms of work (threads of the whole grid) and time predicts others. For one function the
//! error of such models is below a tenth (PM2Lat, WaveTune); for all functions together it is up to
//! a half.

use crate::ids::KernelId;
use crate::time::Nanos;

/// Maximum number of relatives that one prediction uses.
pub const RELATIVES_MAX: usize = 64;

/// Times grow at most a little faster than the work, and never fall.
const SLOPE_MAX: f64 = 1.25;
/// The least spread around the line, in logarithms.
const SPREAD_MIN: f64 = 0.1;
/// How much each factor *e* beyond all relatives adds to the spread.
const SPREAD_BEYOND: f64 = 0.1;
/// The distance of the high estimate from the line, in spreads.
const HIGH: f64 = 2.0;
/// Below this many threads, most of the time is spent on starting them.
const WORK_MIN: u64 = 256;

/// A predicted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeEstimate {
    /// The expected time.
    pub mean: Nanos,
    /// A time that few launches exceed: about 1 in 40 if the spread is known.
    pub high: Nanos,
}

/// Returns the work of a kernel: the number of its threads.
pub fn work(id: &KernelId) -> u64 {
    id.grid.count().saturating_mul(id.block.count()).max(WORK_MIN)
}

/// Predicts the time of a kernel with this work. `relatives` are works and mean times. `None` without any.
pub fn predict(work: u64, relatives: impl Iterator<Item = (u64, Nanos)>) -> Option<TimeEstimate> {
    let at = log(work);
    let mut line = FittedLine::default();
    for (work, took) in relatives.take(RELATIVES_MAX) {
        line.add(log(work), log(took.get().max(1)));
    }
    let (mean, spread) = line.at(at)?;
    Some(TimeEstimate { mean: nanos(mean.exp()), high: nanos((mean + HIGH * spread).exp()) })
}

/// A least-squares line.
#[derive(Clone, Copy, Debug, Default)]
struct FittedLine {
    count: f64,
    sum: (f64, f64),
    squares: (f64, f64),
    products: f64,
    ends: Option<(f64, f64)>,
}

impl FittedLine {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        self.sum = (self.sum.0 + x, self.sum.1 + y);
        self.squares = (x.mul_add(x, self.squares.0), y.mul_add(y, self.squares.1));
        self.products = x.mul_add(y, self.products);
        let (first, last) = self.ends.unwrap_or((x, x));
        self.ends = Some((first.min(x), last.max(x)));
    }

    /// Returns the line's value at `x`, and the spread around it.
    fn at(&self, x: f64) -> Option<(f64, f64)> {
        let (first, last) = self.ends?;
        let (x_mean, y_mean) = (self.sum.0 / self.count, self.sum.1 / self.count);
        let x_spread = x_mean.mul_add(-self.sum.0, self.squares.0).max(0.0);
        let slope = if last - first > 0.1 {
            let both = x_mean.mul_add(-self.sum.1, self.products);
            (both / x_spread).clamp(0.0, SLOPE_MAX)
        } else if x > x_mean {
            // One point has no slope: the time is assumed to grow in proportion to more work, and
            // not to fall for less work.
            1.0
        } else {
            0.0
        };
        let y_spread = y_mean.mul_add(-self.sum.1, self.squares.1).max(0.0);
        let rest = (slope * slope).mul_add(-x_spread, y_spread).max(0.0);
        let around = (rest / (self.count - 2.0).max(1.0)).sqrt().max(SPREAD_MIN);
        let beyond = (first - x).max(x - last).max(0.0);
        let few = 1.0 + 2.0 / self.count;
        Some((slope.mul_add(x - x_mean, y_mean), SPREAD_BEYOND.mul_add(beyond, around * few)))
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate: 52 bits are enough")]
fn log(value: u64) -> f64 {
    (value as f64).ln()
}

/// The longest estimate, a minute, as for samples.
const LONGEST: f64 = 60e9;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to between 1 and a minute"
)]
fn nanos(value: f64) -> Nanos {
    Nanos::new(value.clamp(1.0, LONGEST) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(relatives: &[(u64, u64)], work: u64) -> Option<(u64, u64)> {
        let relatives = relatives.iter().map(|(work, micros)| (*work, Nanos::from_micros(*micros)));
        predict(work, relatives).map(|e| (e.mean.get() / 1_000, e.high.get() / 1_000))
    }

    #[test]
    fn nothing_is_predicted_without_a_relative() {
        assert_eq!(of(&[], 1_000), None);
    }

    #[test]
    fn one_relative_bounds_smaller_kernels_and_scales_to_larger_ones() {
        let (same, high) = of(&[(10_000, 300)], 10_000).unwrap();
        assert!((298..=302).contains(&same) && high > 400, "{same} {high}");
        assert_eq!(of(&[(10_000, 300)], 1_000).unwrap().0, same);
        let (four, _) = of(&[(10_000, 300)], 40_000).unwrap();
        assert!((1_190..=1_210).contains(&four), "{four}");
    }

    #[test]
    fn several_relatives_show_how_time_grows_with_the_work() {
        let root = [(1_000, 100), (4_000, 200), (16_000, 400)];
        let (mean, high) = of(&root, 64_000).unwrap();
        assert!((780..=820).contains(&mean), "{mean}");
        assert!(high < 2 * mean, "{high}");
    }

    #[test]
    fn relatives_that_disagree_make_the_high_estimate_higher() {
        let calm = of(&[(1_000, 100), (1_100, 105), (1_200, 110), (1_300, 115)], 1_250).unwrap();
        let wild = of(&[(1_000, 100), (1_100, 900), (1_200, 110), (1_300, 950)], 1_250).unwrap();
        assert!(wild.1 > 4 * calm.1, "{wild:?} {calm:?}");
    }
}
