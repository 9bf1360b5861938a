//! A running attempt's memory: its curve so far, its predictions, and the resulting decision.
//!
//! Controllers and the simulator run this code. Positions are iterations if the program's companion
//! counts them, and seconds otherwise.

use serde::{Deserialize, Serialize};
use tessera_model::readings::{MemoryReadings, ReadingUnit};
use tessera_model::{Bytes, Millis};

use super::robust::WARM_UP_SAMPLES;
use super::{PeakAdvice, PeakForecast, PeakPredictor, lead};
use crate::number::{float, whole};

/// Points of a curve that are kept: as many as a terminal has columns. When all are used, neighbours are merged.
pub const CURVE_POINTS_MAX: usize = 64;

/// Points at which the predicted band is given.
const BAND_POINTS: u64 = 8;

/// How much a new report changes the time that an iteration is taken to last. The first iterations compile and warm
/// up, so that a mean over all would be too long forever.
const PACE_WEIGHT: f64 = 0.3;

/// The inputs of a decision other than the attempt's readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchTerms {
    /// The memory that it may use.
    pub capacity: Bytes,
    /// How long its program takes from the signal until it has saved its work; `None` without a checkpoint.
    pub checkpoint: Option<Millis>,
    /// How old the newest reading may be, and how long a command takes: added to the lead.
    pub delay: Millis,
    /// The expected remaining time of the attempt; `None` if unknown.
    pub left: Option<Millis>,
    /// The time of a restart without the lost work.
    pub restart: Millis,
}

/// The prediction about an attempt that outgrows its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthForecast {
    /// The unit of positions.
    pub unit: ReadingUnit,
    /// The position of the newest reading.
    pub position: u64,
    /// Memory in use there.
    pub used: Bytes,
    /// The memory that the attempt may use.
    pub capacity: Bytes,
    /// The position at which it is expected to exceed that.
    pub crossing: u64,
    /// The earliest such position: noise and spikes are taken off the capacity.
    pub earliest: u64,
    /// The time from the newest reading to that position.
    pub after: Millis,
    /// The predicted need at its end, if that is known.
    pub peak: Option<BandPoint>,
}

/// A predicted value with its 99 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandPoint {
    /// The iteration, or the second for programs without iterations.
    pub position: u64,
    /// At least this.
    pub low: Bytes,
    /// The expected memory.
    pub value: Bytes,
    /// At most this.
    pub high: Bytes,
}

/// One point of the curve that was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The last position that it covers.
    pub position: u64,
    /// The most memory there.
    pub used: Bytes,
}

/// The memory of an attempt over its positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCurve {
    /// The unit of positions.
    pub unit: ReadingUnit,
    /// At most [`CURVE_POINTS_MAX`], the oldest first.
    pub points: Vec<CurvePoint>,
    /// Whether a framework allocated memory in advance: then the curve does not show what the program needs.
    #[serde(default)]
    pub preallocated: bool,
    /// Readings that a point stands for.
    each: u64,
    /// Readings of the newest point.
    newest: u64,
}

/// The decision from the readings so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchAdvice {
    /// Nothing: no growth is certain, or it ends in time.
    Wait,
    /// The attempt is predicted to exceed its memory: report that.
    Report(GrowthForecast),
    /// The crossing is near: move the attempt now.
    Act(GrowthForecast),
}

/// Watches the memory of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryWatch {
    predictor: PeakPredictor,
    curve: MemoryCurve,
    left_out: Bytes,
    /// Milliseconds of a position.
    pace: Option<f64>,
    /// The first reading of the newest time, by which the pace is measured.
    mark: Option<(Millis, u64)>,
    /// The position of the newest reading.
    last: Option<u64>,
}

impl MemoryCurve {
    fn new(unit: ReadingUnit) -> Self {
        Self { unit, points: Vec::new(), preallocated: false, each: 1, newest: 0 }
    }

    fn take(&mut self, position: u64, used: Bytes) {
        if self.newest > 0
            && self.newest < self.each
            && let Some(point) = self.points.last_mut()
        {
            *point = CurvePoint { position, used: point.used.max(used) };
            self.newest += 1;
            return;
        }
        if self.points.len() == CURVE_POINTS_MAX {
            let pairs = self.points.chunks(2);
            let merged = pairs.map(|pair| CurvePoint {
                position: pair.iter().map(|point| point.position).max().unwrap_or_default(),
                used: pair.iter().map(|point| point.used).max().unwrap_or_default(),
            });
            self.points = merged.collect();
            self.each *= 2;
        }
        self.points.push(CurvePoint { position, used });
        self.newest = 1;
    }

    /// Returns the most memory of all points.
    pub fn peak(&self) -> Bytes {
        self.points.iter().map(|point| point.used).max().unwrap_or(Bytes::ZERO)
    }
}

impl Default for MemoryWatch {
    fn default() -> Self {
        Self::new(ReadingUnit::Seconds)
    }
}

impl MemoryWatch {
    fn new(unit: ReadingUnit) -> Self {
        Self {
            predictor: PeakPredictor::default(),
            curve: MemoryCurve::new(unit),
            left_out: Bytes::ZERO,
            pace: match unit {
                ReadingUnit::Seconds => Some(1_000.0),
                ReadingUnit::Iterations => None,
            },
            mark: None,
            last: None,
        }
    }

    /// Takes a report. Readings in another unit begin a new curve: a companion counts more exactly than the
    /// driver.
    pub fn take(&mut self, report: &MemoryReadings) {
        if report.unit != self.curve.unit {
            *self = Self::new(report.unit);
        }
        self.left_out = report.left_out;
        self.curve.preallocated |= report.preallocated;
        for reading in &report.readings {
            if self.last.is_some_and(|position| reading.position <= position) {
                continue;
            }
            self.last = Some(reading.position);
            self.predictor.take(float(reading.position), float(reading.used.get()));
            let all = reading.used.get().saturating_add(report.left_out.get());
            self.curve.take(reading.position, Bytes::new(all));
            self.learn_pace(reading.at_unix, reading.position);
        }
    }

    fn learn_pace(&mut self, at: Millis, position: u64) {
        let Some((before, from)) = self.mark else {
            self.mark = Some((at, position));
            return;
        };
        // The readings of one report may have one time: the next report has another.
        if at <= before {
            return;
        }
        self.mark = Some((at, position));
        if self.curve.unit == ReadingUnit::Seconds || position <= from {
            return;
        }
        let now = float(at.minus(before).get()) / float(position - from);
        self.pace = Some(match self.pace {
            Some(pace) => pace + PACE_WEIGHT * (now - pace),
            None => now,
        });
    }

    /// Returns the curve so far.
    pub const fn curve(&self) -> &MemoryCurve {
        &self.curve
    }

    /// Returns whether a framework allocates memory in advance, so that no prediction is possible.
    pub const fn is_preallocated(&self) -> bool {
        self.curve.preallocated
    }

    /// Returns how long one position lasts, if that is known.
    fn pace(&self) -> Option<f64> {
        self.pace.filter(|pace| *pace > 0.0)
    }

    /// Returns the last position of the attempt, if it is known how long it still runs.
    fn end(&self, left: Option<Millis>) -> Option<f64> {
        Some(float(self.last?) + float(left?.get()) / self.pace()?)
    }

    /// Decides about the attempt.
    pub fn advise(&self, terms: &WatchTerms) -> WatchAdvice {
        if self.is_preallocated() {
            return WatchAdvice::Wait;
        }
        let capacity = self.capacity(terms.capacity);
        let end = self.end(terms.left);
        let takes = |time: Millis| self.pace().map_or(0.0, |pace| float(time.get()) / pace);
        let lead = lead(takes(terms.checkpoint.unwrap_or_default().plus(terms.delay)), 1.0);
        let advice = self.predictor.advise(capacity, lead, end);
        let Some(forecast) = self.forecast(terms) else { return WatchAdvice::Wait };
        match (advice, terms.checkpoint) {
            (PeakAdvice::Wait, _) => WatchAdvice::Wait,
            (PeakAdvice::Act, Some(_)) => WatchAdvice::Act(forecast),
            (PeakAdvice::Report | PeakAdvice::Act, None) if self.pays(terms, end) => {
                WatchAdvice::Act(forecast)
            }
            (PeakAdvice::Report | PeakAdvice::Act, _) => WatchAdvice::Report(forecast),
        }
    }

    /// Returns whether a restart is expected to lose less than an end without memory would.
    fn pays(&self, terms: &WatchTerms, end: Option<f64>) -> bool {
        // A run of unknown length ends before it is twice as old with a probability of one half.
        // Then the finished work is more valuable than the possible loss by a later end.
        let (Some(pace), Some(_)) = (self.pace(), end) else { return false };
        let restart = float(terms.restart.get()) / pace;
        // Allocations of the first iterations are not growth.
        self.predictor.samples() >= WARM_UP_SAMPLES
            && self.predictor.restart_pays(self.capacity(terms.capacity), end, restart)
    }

    /// Returns the memory that is available for the part that readings measure.
    fn capacity(&self, of_slice: Bytes) -> f64 {
        float(of_slice.get().saturating_sub(self.left_out.get()).max(1))
    }

    /// Returns the prediction, if the attempt grows.
    fn forecast(&self, terms: &WatchTerms) -> Option<GrowthForecast> {
        let position = self.last?;
        let crossing = self.predictor.crossing(self.capacity(terms.capacity))?;
        let used = self.curve.points.last()?.used;
        let left = (crossing.expected - float(position)).max(0.0);
        Some(GrowthForecast {
            unit: self.curve.unit,
            position,
            used,
            capacity: terms.capacity,
            crossing: whole(crossing.expected),
            earliest: whole(crossing.earliest),
            after: Millis::new(whole(left * self.pace().unwrap_or(0.0))),
            peak: self.end(terms.left).and_then(|end| self.at(end)),
        })
    }

    fn at(&self, position: f64) -> Option<BandPoint> {
        let PeakForecast { value, low, high, .. } = self.predictor.forecast(position)?;
        let all = |used: f64| Bytes::new(whole(used).saturating_add(self.left_out.get()));
        let position = whole(position);
        Some(BandPoint { position, low: all(low), value: all(value), high: all(high) })
    }

    /// Returns the predicted band from the newest reading to a position.
    pub fn band(&self, until: u64) -> Vec<BandPoint> {
        let Some(from) = self.last.filter(|from| until > *from) else { return Vec::new() };
        let step = float(until - from) / float(BAND_POINTS);
        (1..=BAND_POINTS).filter_map(|at| self.at(float(from) + step * float(at))).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tessera_model::readings::MemoryReading;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A report with the readings of some positions, an iteration each half second.
    fn report(
        positions: std::ops::RangeInclusive<u64>,
        used: impl Fn(u64) -> u64,
    ) -> MemoryReadings {
        MemoryReadings {
            unit: ReadingUnit::Iterations,
            left_out: Bytes::new(500 * MIB),
            preallocated: false,
            readings: positions
                .map(|position| MemoryReading {
                    at_unix: Millis::new(1_000_000 + position * 500),
                    position,
                    used: Bytes::new(used(position)),
                })
                .collect(),
        }
    }

    fn terms(checkpoint: Option<u64>) -> WatchTerms {
        WatchTerms {
            capacity: Bytes::new(5_000 * MIB),
            checkpoint: checkpoint.map(Millis::from_secs),
            delay: Millis::from_secs(2),
            left: None,
            restart: Millis::from_secs(5),
        }
    }

    /// 1,000 MiB, and 35 more with each iteration: full at iteration 100.
    fn grows(at: u64) -> u64 {
        (1_000 + 35 * at + at % 3) * MIB
    }

    /// Returns at which iterations a growth is first reported and acted on.
    fn watched(terms: &WatchTerms, used: impl Fn(u64) -> u64) -> [Option<u64>; 2] {
        let mut watch = MemoryWatch::default();
        let [mut reported, mut acted] = [None; 2];
        for at in 1..=98 {
            watch.take(&report(at..=at, &used));
            match watch.advise(terms) {
                WatchAdvice::Wait => {}
                WatchAdvice::Report(_) => reported = reported.or(Some(at)),
                WatchAdvice::Act(_) => {
                    (reported, acted) = (reported.or(Some(at)), acted.or(Some(at)));
                }
            }
        }
        [reported, acted]
    }

    #[test]
    fn a_growth_is_reported_at_once_and_the_job_moved_when_its_checkpoint_needs_the_time() {
        let [reported, acted] = watched(&terms(Some(3)), grows);
        assert!(reported.unwrap() <= 6, "{reported:?}");
        // Five seconds are ten iterations, and the margin has three.
        assert!((84..=88).contains(&acted.unwrap()), "{acted:?}");

        let [_, earlier] = watched(&terms(Some(20)), grows);
        assert!((50..=55).contains(&earlier.unwrap()), "{earlier:?}");
    }

    #[test]
    fn without_a_checkpoint_a_restart_happens_where_little_is_lost() {
        let ends = WatchTerms { left: Some(Millis::from_secs(600)), ..terms(None) };

        let [_, acted] = watched(&ends, grows);

        assert!(acted.unwrap() <= WARM_UP_SAMPLES + 1, "{acted:?}");
        let [reported, never] = watched(&terms(None), grows);
        assert!(reported.is_some() && never.is_none(), "its end is unknown: {never:?}");
    }

    #[test]
    fn a_job_that_ends_before_its_slice_is_full_is_not_moved() {
        let short = WatchTerms { left: Some(Millis::ZERO), ..terms(Some(3)) };

        assert_eq!(watched(&short, grows), [None, None]);
    }

    #[test]
    fn memory_that_is_allocated_in_advance_is_not_predicted() {
        let mut watch = MemoryWatch::default();
        watch.take(&MemoryReadings { preallocated: true, ..report(1..=90, grows) });

        assert_eq!(watch.advise(&terms(Some(3))), WatchAdvice::Wait);
        assert!(watch.is_preallocated());
    }

    #[test]
    fn a_prediction_states_the_memory_of_the_whole_slice() {
        let mut watch = MemoryWatch::default();
        for at in 1..=20 {
            watch.take(&report(at..=at, grows));
        }
        let left = WatchTerms { left: Some(Millis::from_secs(50)), ..terms(Some(3)) };

        let WatchAdvice::Report(forecast) = watch.advise(&left) else { panic!("{watch:?}") };

        assert_eq!(
            (forecast.position, forecast.used),
            (20, Bytes::new((1_000 + 700 + 2 + 500) * MIB))
        );
        assert!((98..=102).contains(&forecast.crossing), "{forecast:?}");
        assert!((39_000..=41_000).contains(&forecast.after.get()), "{forecast:?}");
        let peak = forecast.peak.unwrap();
        assert!((119..=121).contains(&peak.position), "{peak:?}");
        let expected = (1_500 + 35 * 120) * MIB;
        assert!(peak.low.get() <= expected && expected <= peak.high.get(), "{peak:?}");
        assert_eq!(watch.band(100).len(), 8);
    }

    #[test]
    fn a_companion_takes_over_from_the_driver_with_a_new_curve() {
        let mut watch = MemoryWatch::default();
        watch.take(&MemoryReadings { unit: ReadingUnit::Seconds, ..report(1..=9, grows) });
        watch.take(&report(1..=2, grows));

        assert_eq!((watch.curve().unit, watch.curve().points.len()), (ReadingUnit::Iterations, 2));
    }

    proptest! {
        #[test]
        fn a_curve_of_any_length_keeps_its_peak_and_its_limit(
            used in prop::collection::vec(0..1_000_000_u64, 1..600),
        ) {
            let mut curve = MemoryCurve::new(ReadingUnit::Seconds);
            for (position, used) in (1..).zip(&used) {
                curve.take(position, Bytes::new(*used));
            }

            prop_assert!(curve.points.len() <= CURVE_POINTS_MAX);
            prop_assert_eq!(curve.peak().get(), *used.iter().max().unwrap());
            let rise = curve.points.windows(2).all(|pair| pair[0].position < pair[1].position);
            prop_assert!(rise);
        }
    }
}
