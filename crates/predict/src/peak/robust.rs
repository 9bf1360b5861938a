//! The peak of a job whose memory may grow. A line that change points restart predicts crossings, and a bank of curves the
//! value at the end. Reporting and acting are two decisions.
//!
//! A sample costs a fixed number of operations, and no series is kept.

use super::line::{FittedLine, LineForecast};
use super::regime::Regime;
use super::student::Confidence;
use crate::number::{count, float};

/// The fewest samples before a growth is reported.
pub const REPORT_SAMPLES_MIN: u64 = 5;

/// Samples of one regime before a job is moved: three more than the shortest line with a spread, so that
/// the slope's t value is below 5.
pub const ACT_SAMPLES_MIN: u64 = 6;

/// Samples of a run before a job is moved: the first iterations allocate what the others use again.
pub const WARM_UP_SAMPLES: u64 = 16;

/// The number of samples up to which a confidence of 99 % is enough for a slope.
const SHORT: u64 = 8;

/// This many samples in a row on one side of the interval are a change point; fewer are spikes.
const RUN_OF_CHANGE: usize = 3;

/// The smallest deviation that is assumed, as a part of the level. Memory is counted in blocks, so a series may have no
/// noise at all. Then any first change would be infinitely unlikely.
const LEAST_DEVIATION: f64 = 0.000_5;

/// By how many deviations samples may exceed the trend when it is compared with the capacity. Even noise
/// ends at 1.73 deviations, normal noise exceeds 2 in one of forty samples.
const NOISE_DEVIATIONS: f64 = 2.4;

/// The number of curves.
const CURVES: usize = 11;

/// Exponents of the curves; 1 is the line.
const EXPONENTS: [f64; CURVES] = [0.4, 0.6, 0.8, 0.87, 0.94, 1.0, 1.07, 1.14, 1.2, 1.5, 2.0];
const LINE: usize = 5;

/// The prior of the exponents for intervals: mostly lines (MIGM §3.2), so that the interval of a line stays that of a
/// line until its samples bend.
const INTERVAL_PRIORS: [f64; CURVES] =
    [0.005, 0.02, 0.06, 0.06, 0.06, 0.59, 0.06, 0.06, 0.06, 0.02, 0.005];

/// The prior of the exponents for the expected value: near the line, and smooth. A strong curve is far off at
/// the end, so even a small weight of it shifts a mean of few samples.
const VALUE_PRIORS: [f64; CURVES] =
    [0.000_5, 0.002, 0.04, 0.12, 0.2, 0.275, 0.2, 0.12, 0.04, 0.002, 0.000_5];

/// A curve with a smaller posterior probability than this is left out of an interval.
const CURVE_CONSIDERED: f64 = 0.02;

/// The posterior probability of the line below which its own interval is no longer reliable.
const LINE_TRUSTED: f64 = 0.5;

/// A predicted value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakForecast {
    /// The expected value.
    pub value: f64,
    /// The lower end of the two-sided 99 % interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The number of samples since the last change point, on which it is based.
    pub samples: u64,
}

/// When a series is predicted to exceed a capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The expected position of the crossing, in the unit of the samples' positions.
    pub expected: f64,
    /// The earliest position: noise and spikes are taken off the capacity.
    pub earliest: f64,
}

/// The decision about a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeakAdvice {
    /// Nothing is known, or no growth.
    Wait,
    /// The series is predicted to exceed the capacity: report it.
    Report,
    /// The crossing is near: move the job now.
    Act,
}

/// Predicts a series of memory values. Positions must rise; they are iterations or seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct PeakPredictor {
    regime: Regime,
    curves: [FittedLine; CURVES],
    /// The position before the first one of the curves.
    origin: f64,
    taken: u64,
    /// Samples outside of the interval that may or may not be spikes.
    outside: [(f64, f64); RUN_OF_CHANGE],
    outside_count: usize,
    outside_above: bool,
    /// The most by which a lone sample exceeded the line.
    spike: f64,
    /// The highest value of the regime.
    regime_peak: f64,
    /// The highest value that a regime had before the series fell.
    ceiling: f64,
    peak: f64,
    last: (f64, f64),
    changes: u64,
}

impl Default for PeakPredictor {
    fn default() -> Self {
        Self {
            regime: Regime::default(),
            curves: [FittedLine::default(); CURVES],
            origin: 0.0,
            taken: 0,
            outside: [(0.0, 0.0); RUN_OF_CHANGE],
            outside_count: 0,
            outside_above: false,
            spike: 0.0,
            regime_peak: 0.0,
            ceiling: 0.0,
            peak: 0.0,
            last: (0.0, 0.0),
            changes: 0,
        }
    }
}

impl PeakPredictor {
    /// Records a sample. A sample that is not a number, or whose position doesn't rise, is ignored.
    pub fn take(&mut self, position: f64, value: f64) {
        let is_later = self.taken == 0 || position > self.last.0;
        if !position.is_finite() || !value.is_finite() || !is_later {
            return;
        }
        self.taken += 1;
        self.last = (position, value);
        self.peak = self.peak.max(value);
        match self.side_of(position, value) {
            None => {
                self.settle_spikes();
                self.accept(position, value);
            }
            Some(above) => self.take_outside(position, value, above),
        }
    }

    /// Returns how many samples were taken.
    pub const fn samples(&self) -> u64 {
        self.taken
    }

    /// Returns the highest value so far.
    pub const fn peak(&self) -> f64 {
        self.peak
    }

    /// Returns how many change points there were.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Predicts the value at a position; `None` before there is a spread.
    pub fn forecast(&self, position: f64) -> Option<PeakForecast> {
        let least = self.least();
        let line = self.regime.line().predict(position, Confidence::P99, least)?;
        let weights = self.weights(INTERVAL_PRIORS);
        let curved = 1.0 - weights[LINE];
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        let mut values = [0.0; CURVES];
        for (at, (curve, exponent)) in self.curves.iter().zip(EXPONENTS).enumerate() {
            let x = (position - self.origin).max(0.0).powf(exponent);
            let of_curve = curve.predict(x, Confidence::P99, least).unwrap_or(line);
            values[at] = of_curve.value;
            if weights[at] >= CURVE_CONSIDERED {
                low = low.min(of_curve.value - of_curve.margin);
                high = high.max(of_curve.value + of_curve.margin);
            }
        }
        if curved < LINE_TRUSTED {
            (low, high) = (line.value - line.margin, line.value + line.margin);
        }
        // The curves shift the value by their probability, but not out of the interval.
        let value = weighted_median(values, self.weights(VALUE_PRIORS)).max(low).min(high);
        Some(PeakForecast { value, low, high, samples: self.regime.line().points() })
    }

    /// Returns when the series is predicted to exceed the capacity; `None` if no growth is certain.
    pub fn crossing(&self, capacity: f64) -> Option<Crossing> {
        let slope = self.regime.line().slope();
        // A long series is tested many times, so a higher confidence is needed.
        let sure = self.regime.line().points() > SHORT;
        let confidence = if sure { Confidence::P999 } else { Confidence::P99 };
        if !self.regime.line().rises(confidence, self.least()) || slope <= 0.0 {
            return None;
        }
        let now = self.last.0;
        let level = self.regime.line().at(now);
        let reach = |limit: f64| now + ((limit - level) / slope).max(0.0);
        let above = self.noise().max(self.spike);
        Some(Crossing { expected: reach(capacity), earliest: reach(capacity - above) })
    }

    /// Decides about a series on a slice.
    ///
    /// `lead` is how far ahead of the crossing a move has to begin, in the unit of the positions: what a
    /// checkpoint takes, and a margin. `end` is the last position, where it is known.
    pub fn advise(&self, capacity: f64, lead: f64, end: Option<f64>) -> PeakAdvice {
        let Some(crossing) = self.crossing(capacity) else { return PeakAdvice::Wait };
        if self.regime.line().points() < REPORT_SAMPLES_MIN
            || end.is_some_and(|end| crossing.expected > end)
        {
            return PeakAdvice::Wait;
        }
        let near = crossing.earliest - self.last.0 <= lead;
        if near && self.may_act(capacity, lead) { PeakAdvice::Act } else { PeakAdvice::Report }
    }

    /// Returns whether a job without a checkpoint should be restarted on a larger slice now. A restart loses
    /// the finished work. Without one, all work until the crossing is lost, with the probability of a
    /// crossing.
    ///
    /// `restart` is what a restart takes in addition to the lost work. Positions count from the attempt's start.
    pub fn restart_pays(&self, capacity: f64, end: Option<f64>, restart: f64) -> bool {
        let Some(crossing) = self.crossing(capacity) else { return false };
        let line = self.regime.line();
        if line.points() < ACT_SAMPLES_MIN || end.is_some_and(|end| crossing.expected > end) {
            return false;
        }
        let at = end.unwrap_or(crossing.expected + self.last.0);
        let Some(forecast) = self.forecast(at) else { return false };
        let probable = exceeds(&forecast, capacity);
        let lost_now = self.last.0 + restart;
        lost_now < probable * (crossing.expected + restart)
    }

    /// Returns whether the growth is certain enough for a move.
    fn may_act(&self, capacity: f64, lead: f64) -> bool {
        let line = self.regime.line();
        let above = self.noise();
        let newer = self.regime.newer_half();
        // The newer half alone has to come near, too: a series that bends down does not.
        let is_near = newer.points() < ACT_SAMPLES_MIN || {
            let reserve = above.max(self.spike);
            newer.slope() > 0.0 && newer.at(self.last.0 + 2.0 * lead) + reserve >= capacity
        };
        is_near
            && line.points() >= ACT_SAMPLES_MIN
            && self.taken >= WARM_UP_SAMPLES
            && self.outside_count == 0
            // A series that fell from there before may do so again.
            && (self.ceiling <= 0.0 || line.at(self.last.0) > self.ceiling + above)
    }

    /// Returns by how much samples may exceed the trend: the newer ones may have more noise.
    fn noise(&self) -> f64 {
        let (least, newer) = (self.least(), self.regime.newer_half());
        let of_newer = if newer.points() < ACT_SAMPLES_MIN { 0.0 } else { newer.deviation(least) };
        NOISE_DEVIATIONS * self.regime.line().deviation(least).max(of_newer)
    }

    fn least(&self) -> f64 {
        (self.regime.line().mean().abs() * LEAST_DEVIATION).max(f64::MIN_POSITIVE)
    }

    /// Returns on which side of the interval a sample is; `None` inside, or before there is one.
    fn side_of(&self, position: f64, value: f64) -> Option<bool> {
        if self.regime.line().points() <= super::line::POINTS_MIN {
            return None;
        }
        let least = self.least();
        let forecast: LineForecast =
            self.regime.line().predict(position, Confidence::P999, least)?;
        let off = value - forecast.value;
        (off.abs() > forecast.margin).then_some(off > 0.0)
    }

    fn accept(&mut self, position: f64, value: f64) {
        if self.curves[LINE].points() == 0 {
            self.origin = position - 1.0;
        }
        let least = self.least();
        self.changes += u64::from(self.regime.take(position, value, least));
        for (curve, exponent) in self.curves.iter_mut().zip(EXPONENTS) {
            curve.take((position - self.origin).powf(exponent), value);
        }
        self.regime_peak = self.regime_peak.max(value);
    }

    /// Samples that stayed alone outside were spikes.
    fn settle_spikes(&mut self) {
        if self.outside_above {
            for (x, y) in &self.outside[..self.outside_count] {
                self.spike = self.spike.max(y - self.regime.line().at(*x));
            }
        }
        self.outside_count = 0;
    }

    fn take_outside(&mut self, position: f64, value: f64, above: bool) {
        if self.outside_count > 0 && self.outside_above != above {
            self.settle_spikes();
        }
        self.outside_above = above;
        self.outside[self.outside_count] = (position, value);
        self.outside_count += 1;
        if self.outside_count == RUN_OF_CHANGE {
            self.restart(above);
        }
    }

    /// Begins a regime with the samples that are outside of the old one.
    fn restart(&mut self, above: bool) {
        self.changes += 1;
        if !above {
            self.ceiling = self.ceiling.max(self.regime_peak);
        }
        let begins = self.outside;
        let is_curve = self.is_on_a_curve(&begins);
        self.regime = Regime::default();
        if !is_curve {
            self.curves = [FittedLine::default(); CURVES];
        }
        self.regime_peak = 0.0;
        self.outside_count = 0;
        for (x, y) in begins {
            self.accept(x, y);
        }
    }

    /// Returns whether samples that left the line are where the best curve has them: then the series bends, and
    /// the curves go on.
    fn is_on_a_curve(&self, samples: &[(f64, f64)]) -> bool {
        let weights = self.weights(INTERVAL_PRIORS);
        let best =
            (0..CURVES).fold(LINE, |best, at| if weights[at] > weights[best] { at } else { best });
        let least = self.least();
        samples.iter().all(|(x, y)| {
            let x = (x - self.origin).max(0.0).powf(EXPONENTS[best]);
            let forecast = self.curves[best].predict(x, Confidence::P999, least);
            forecast.is_some_and(|forecast| (y - forecast.value).abs() <= forecast.margin)
        })
    }

    /// Returns the posterior probability of each curve: its likelihood under normal noise, times
    /// the prior.
    fn weights(&self, priors: [f64; CURVES]) -> [f64; CURVES] {
        let n = self.curves[LINE].points();
        let mut weights = priors;
        if n > 3 {
            let noise = float(n) * self.least() * self.least();
            let least = self.curves.iter().map(FittedLine::residual).fold(f64::INFINITY, f64::min);
            for (weight, curve) in weights.iter_mut().zip(&self.curves) {
                let ratio = (least + noise) / (curve.residual() + noise);
                *weight *= ratio.powf(0.5 * float(n - 2));
            }
        }
        let sum: f64 = weights.iter().sum();
        weights.map(|weight| if sum > 0.0 { weight / sum } else { 1.0 / count(CURVES) })
    }
}

/// Returns the value that minimises the expected relative error: the median, in which each value counts by its
/// probability over itself. It is interpolated between neighbours. Unlike a mean, it is not moved by one improbable
/// value that is far off.
fn weighted_median(values: [f64; CURVES], weights: [f64; CURVES]) -> f64 {
    // Falling curves may end below 0: these count as a thousandth of the highest value.
    let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = if highest > 0.0 { highest / 1_000.0 } else { 1.0 };
    let mut points: [(f64, f64); CURVES] = [(0.0, 0.0); CURVES];
    for ((point, value), weight) in points.iter_mut().zip(values).zip(weights) {
        *point = (value, weight / value.max(least));
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = points.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut before: Option<(f64, f64)> = None;
    let mut sum = 0.0;
    for (value, weight) in points {
        let middle = sum + weight / 2.0;
        sum += weight;
        match before {
            Some((place, lower)) if half <= middle => {
                let part = if middle > place { (half - place) / (middle - place) } else { 1.0 };
                return lower + part * (value - lower);
            }
            None if half <= middle => return value,
            _ => before = Some((middle, value)),
        }
    }
    before.map_or(0.0, |(_, value)| value)
}

/// Returns how probable it is that a forecast's value is above the capacity.
///
/// # Source
///
/// The logistic function with 1.702 is within 0.01 of the normal distribution (Bowling et al., 2009).
fn exceeds(forecast: &PeakForecast, capacity: f64) -> f64 {
    // A 99 % interval has 2.576 deviations on each side.
    let deviation = ((forecast.high - forecast.low) / 2.0 / 2.576).max(f64::MIN_POSITIVE);
    let score = (forecast.value - capacity) / deviation;
    1.0 / (1.0 + (-1.702 * score).exp())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curves(value: std::ops::Range<f64>) -> impl Strategy<Value = [f64; CURVES]> {
        proptest::array::uniform11(value)
    }

    proptest! {
        #[test]
        fn a_median_is_between_the_values_also_where_curves_fall_below_zero(
            values in curves(-50.0..50.0),
            weights in curves(0.000_1..1.0),
        ) {
            let median = weighted_median(values, weights);

            let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!((lowest..=highest).contains(&median), "{median}");
        }
    }

    #[test]
    fn an_improbable_curve_moves_the_median_alike_however_far_off_it_is() {
        let mut weights = [1.0; CURVES];
        weights[CURVES - 1] = 0.01;
        let with_last = |last: f64| {
            let mut values = [9.0, 9.2, 9.4, 9.6, 9.8, 10.0, 10.2, 10.4, 10.6, 10.8, 0.0];
            values[CURVES - 1] = last;
            weighted_median(values, weights)
        };

        assert!((with_last(20.0) - with_last(2_000.0)).abs() < 0.01);
        assert!((9.5..10.0).contains(&with_last(20.0)), "{}", with_last(20.0));
    }
}
