//! A straight line through points, with Student's prediction interval. Each point costs a fixed number of
//! operations, and no point is kept.

use super::student;
use crate::number::float;

/// Points before which a line has no spread: two determine it.
pub const POINTS_MIN: u64 = 3;

/// A least-squares line, kept as means and centred sums, so that large numbers lose no digits.
///
/// # Source
///
/// Welford, Technometrics 4 (1962), extended to two variables.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FittedLine {
    points: u64,
    mean_x: f64,
    mean_y: f64,
    spread_x: f64,
    product: f64,
    spread_y: f64,
}

/// A value that a line predicts, with the half-width of its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineForecast {
    /// The line's value.
    pub value: f64,
    /// How far a new point may be from it, at the chosen confidence.
    pub margin: f64,
}

impl FittedLine {
    /// Takes a point.
    pub fn take(&mut self, x: f64, y: f64) {
        self.points += 1;
        let n = float(self.points);
        let (from_x, from_y) = (x - self.mean_x, y - self.mean_y);
        self.mean_x += from_x / n;
        self.mean_y += from_y / n;
        self.spread_x += from_x * (x - self.mean_x);
        self.product += from_x * (y - self.mean_y);
        self.spread_y += from_y * (y - self.mean_y);
    }

    /// Adds all points of another line.
    ///
    /// # Source
    ///
    /// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    /// 1979.
    pub fn merge(&mut self, other: &Self) {
        let (n, m) = (float(self.points), float(other.points));
        if other.points == 0 {
            return;
        }
        let (from_x, from_y) = (other.mean_x - self.mean_x, other.mean_y - self.mean_y);
        let (all, between) = (n + m, n * m / (n + m));
        self.points += other.points;
        self.mean_x += from_x * m / all;
        self.mean_y += from_y * m / all;
        self.spread_x += other.spread_x + from_x * from_x * between;
        self.product += other.product + from_x * from_y * between;
        self.spread_y += other.spread_y + from_y * from_y * between;
    }

    /// Returns how many points it has.
    pub const fn points(&self) -> u64 {
        self.points
    }

    /// Returns the mean of the values.
    pub const fn mean(&self) -> f64 {
        self.mean_y
    }

    /// Returns the slope; 0 with fewer than two different positions.
    pub fn slope(&self) -> f64 {
        if self.spread_x > 0.0 { self.product / self.spread_x } else { 0.0 }
    }

    /// Returns the line's value at `x`.
    pub fn at(&self, x: f64) -> f64 {
        self.mean_y + self.slope() * (x - self.mean_x)
    }

    /// Returns the sum of the squared distances of the points from the line.
    pub fn residual(&self) -> f64 {
        (self.spread_y - self.slope() * self.product).max(0.0)
    }

    /// Returns the standard deviation of the points from the line, at least `least`.
    pub fn deviation(&self, least: f64) -> f64 {
        let freedom = float(self.points.saturating_sub(2).max(1));
        (self.residual() / freedom).sqrt().max(least)
    }

    /// Returns the standard error of the slope.
    pub fn slope_error(&self, least: f64) -> f64 {
        if self.spread_x > 0.0 {
            self.deviation(least) / self.spread_x.sqrt()
        } else {
            f64::INFINITY
        }
    }

    /// Returns the slope over its standard error, which has Student's distribution with two degrees of
    /// freedom fewer than points if the true slope is 0.
    pub fn slope_score(&self, least: f64) -> f64 {
        if self.points < POINTS_MIN { 0.0 } else { self.slope() / self.slope_error(least) }
    }

    /// Returns whether the slope is above 0 at the two-sided confidence.
    pub fn rises(&self, confidence: student::Confidence, least: f64) -> bool {
        let freedom = self.points.saturating_sub(2);
        freedom > 0 && self.slope_score(least) > student::quantile(confidence, freedom)
    }

    /// Predicts a new point at `x`: the interval contains it with the two-sided confidence while the points
    /// lie on a line with even noise. `None` with fewer than [`POINTS_MIN`] points.
    ///
    /// The leverage term `(x - mean)^2 / Sxx` is what a band of residual deviations leaves out: far from
    /// the points, the slope's error is most of the width.
    pub fn predict(
        &self,
        x: f64,
        confidence: student::Confidence,
        least: f64,
    ) -> Option<LineForecast> {
        if self.points < POINTS_MIN || self.spread_x <= 0.0 {
            return None;
        }
        let from = x - self.mean_x;
        let value = self.at(x);
        // Noise is a part of the level: a higher value has more of it than the points had.
        let rise = (value / self.mean_y).abs();
        let noise = if rise.is_finite() { rise.max(1.0) } else { 1.0 };
        let leverage = noise * noise + 1.0 / float(self.points) + from * from / self.spread_x;
        // One degree of freedom fewer than the textbook has: whether the line goes on was chosen by the points.
        let t = student::quantile(confidence, self.points.saturating_sub(3));
        Some(LineForecast { value, margin: t * self.deviation(least) * leverage.sqrt() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::count;

    fn line(points: &[(f64, f64)]) -> FittedLine {
        points.iter().fold(FittedLine::default(), |mut line, (x, y)| {
            line.take(*x, *y);
            line
        })
    }

    #[test]
    fn points_on_a_line_give_that_line() {
        let points: Vec<(f64, f64)> = (0..20).map(|x| (count(x), 3.0 + 0.25 * count(x))).collect();
        let fitted = line(&points);
        assert!((fitted.slope() - 0.25).abs() < 1e-12 && (fitted.at(100.0) - 28.0).abs() < 1e-9);
        assert!(fitted.residual() < 1e-18 && fitted.rises(student::Confidence::P999, 1e-9));
    }

    #[test]
    fn the_interval_is_the_one_of_the_textbook() {
        // Montgomery, Peck and Vining, Introduction to Linear Regression Analysis, example 2.1 has the same
        // formula; the numbers here were worked out by hand.
        let fitted = line(&[(1.0, 2.0), (2.0, 4.1), (3.0, 5.9), (4.0, 8.2), (5.0, 9.8)]);
        let forecast = fitted.predict(6.0, student::Confidence::P99, 0.0).unwrap();
        // slope 1.97, mean 6.0 at 3: 11.91. s^2 = 0.091 / 3; leverage 1 + 0.2 + 0.9; t(2) = 9.9248: one degree
        // fewer. The first 1 is (11.91 / 6)^2 here, for noise that rises with the level.
        assert!((forecast.value - 11.91).abs() < 1e-9, "{forecast:?}");
        let leverage = (11.91_f64 / 6.0).powi(2) + 0.2 + 0.9;
        let expected = 9.924_843 * (0.091_f64 / 3.0).sqrt() * leverage.sqrt();
        assert!((forecast.margin - expected).abs() < 1e-4, "{forecast:?} {expected}");
    }

    #[test]
    fn two_points_have_no_interval_and_no_slope_that_is_known() {
        let fitted = line(&[(1.0, 1.0), (2.0, 5.0)]);
        assert!(fitted.predict(3.0, student::Confidence::P99, 0.0).is_none());
        assert!(!fitted.rises(student::Confidence::P99, 0.0));
    }
}
