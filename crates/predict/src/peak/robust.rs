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

/// Exponents of the curves; 1 is the line.
const EXPONENTS: [f64; 9] = [0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0];
const LINE: usize = 4;

/// The prior of the exponents: mostly lines (MIGM §3.2).
const PRIORS: [f64; 9] = [0.005, 0.02, 0.06, 0.12, 0.59, 0.12, 0.06, 0.02, 0.005];

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
    curves: [FittedLine; EXPONENTS.len()],
    /// The position before the first one of the curves.
    origin: f64,
    taken: u64,
    /// Samples outside of the interval, of which it is open whether they are spikes.
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
            curves: [FittedLine::default(); EXPONENTS.len()],
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
        let weights = self.weights();
        let curved = 1.0 - weights[LINE];
        let mut value = 0.0;
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for ((curve, exponent), weight) in self.curves.iter().zip(EXPONENTS).zip(weights) {
            let x = (position - self.origin).max(0.0).powf(exponent);
            let of_curve = curve.predict(x, Confidence::P99, least).unwrap_or(line);
            value += weight * of_curve.value;
            if weight >= CURVE_CONSIDERED {
                low = low.min(of_curve.value - of_curve.margin);
                high = high.max(of_curve.value + of_curve.margin);
            }
        }
        if curved < LINE_TRUSTED {
            (low, high) = (line.value - line.margin, line.value + line.margin);
            // The curves shift the value in proportion to their probability, but not out of the
            // interval.
            value = value.clamp(low, high);
        }
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

    /// Returns whether a job without a checkpoint should be restarted on a larger slice now. Then it loses what it has
    /// done. Otherwise it loses all until the crossing, with the probability of a crossing.
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
            self.curves = [FittedLine::default(); EXPONENTS.len()];
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
        let weights = self.weights();
        let best = (0..EXPONENTS.len())
            .fold(LINE, |best, at| if weights[at] > weights[best] { at } else { best });
        let least = self.least();
        samples.iter().all(|(x, y)| {
            let x = (x - self.origin).max(0.0).powf(EXPONENTS[best]);
            let forecast = self.curves[best].predict(x, Confidence::P999, least);
            forecast.is_some_and(|forecast| (y - forecast.value).abs() <= forecast.margin)
        })
    }

    /// Returns the posterior probability of each curve: its likelihood under normal noise, times
    /// the prior.
    fn weights(&self) -> [f64; EXPONENTS.len()] {
        let n = self.curves[LINE].points();
        let mut weights = PRIORS;
        if n > 3 {
            let noise = float(n) * self.least() * self.least();
            let least = self.curves.iter().map(FittedLine::residual).fold(f64::INFINITY, f64::min);
            for (weight, curve) in weights.iter_mut().zip(&self.curves) {
                let ratio = (least + noise) / (curve.residual() + noise);
                *weight *= ratio.powf(0.5 * float(n - 2));
            }
        }
        let sum: f64 = weights.iter().sum();
        weights.map(|weight| if sum > 0.0 { weight / sum } else { 1.0 / count(EXPONENTS.len()) })
    }
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
