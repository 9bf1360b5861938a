//! The peak of memory that grows while a job runs.
//!
//! There are two predictors. [`paper`] is MIGM's: two regressions and a band of residual
//! deviations. [`robust`] is the one that controllers use. Change points restart its line, a growth
//! counts only if its slope differs from 0, and intervals are Student's with leverage.
//!
//! *Reporting* and *acting* are two events ([`PeakAdvice`]). A growth is reported as soon as its
//! interval is reliable. A job is moved when the predicted crossing is nearer than its checkpoint
//! takes, plus a margin ([`lead`]). A job without a checkpoint loses its work by a move, so there
//! [`PeakPredictor::restart_pays`] compares the expected losses.
//!
//! `tessera experiment memory` measures both predictors on thirteen families of series.

pub mod line;
pub mod paper;
mod regime;
pub mod robust;
pub mod student;
pub mod watch;

pub use robust::{Crossing, PeakAdvice, PeakForecast, PeakPredictor};
pub use watch::{GrowthForecast, MemoryCurve, MemoryWatch, WatchAdvice, WatchTerms};

/// How many iterations earlier than its checkpoint requires a move begins. One iteration may be
/// longer than the others, one is under way, and the error of a predicted crossing is one or two
/// iterations (measured).
pub const MARGIN_ITERATIONS: f64 = 3.0;

/// Returns how many iterations ahead of a crossing a move has to begin.
///
/// `checkpoint` is the measured time of the task's checkpoints, and `iteration` the time of an
/// iteration, both in the same unit.
pub fn lead(checkpoint: f64, iteration: f64) -> f64 {
    let takes = if iteration > 0.0 { (checkpoint / iteration).max(0.0).ceil() } else { 0.0 };
    takes + MARGIN_ITERATIONS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::number::float;
    use crate::random::SeededRng;

    const CAPACITY: f64 = 10.0;

    fn noisy(rng: &mut SeededRng, value: f64, noise: f64) -> f64 {
        value * (1.0 + noise * (2.0 * rng.unit() - 1.0))
    }

    /// Returns at which sample a series is reported and acted on, and at which it is full.
    fn watched(series: impl Fn(f64) -> f64, samples: u64, noise: f64) -> [Option<u64>; 3] {
        let (mut predictor, mut rng) = (PeakPredictor::default(), SeededRng::new(7));
        let [mut reported, mut acted, mut full] = [None; 3];
        for at in 1..=samples {
            let value = noisy(&mut rng, series(float(at)), noise);
            full = full.or((value > CAPACITY).then_some(at));
            predictor.take(float(at), value);
            match predictor.advise(CAPACITY, 5.0, Some(float(samples))) {
                PeakAdvice::Wait => {}
                PeakAdvice::Report => reported = reported.or(Some(at)),
                PeakAdvice::Act => {
                    (reported, acted) = (reported.or(Some(at)), acted.or(Some(at)));
                }
            }
        }
        [reported, acted, full]
    }

    #[test]
    fn growth_is_reported_early_and_acted_on_late_but_in_time() {
        let [reported, acted, full] = watched(|t| 4.0 + 6.0 / 94.0 * t, 130, 0.01);

        let (reported, acted, full) = (reported.unwrap(), acted.unwrap(), full.unwrap());
        assert!(reported <= 6, "reported at {reported}");
        assert!((80..full).contains(&acted), "acted at {acted}, full at {full}");
    }

    #[test]
    fn series_that_stay_below_the_capacity_move_no_job() {
        type Series = fn(f64) -> f64;
        let families: [(&str, Series); 6] = [
            ("flat", |_| 8.8),
            ("the optimizer's first step", |t| if t < 4.0 { 3.0 } else { 8.8 }),
            ("warm-up", |t| 3.0 + 5.7 * (t / 8.0).min(1.0)),
            ("saturation", |t| 8.8 - 5.0 * (-t / 20.0).exp()),
            ("sawtooth", |t| 5.0 + 3.5 * (t % 40.0) / 40.0),
            ("evaluation peaks", |t| if t % 10.0 < 1.0 { 8.8 } else { 6.0 }),
        ];
        for (name, series) in families {
            for noise in [0.0, 0.01, 0.03] {
                let [_, acted, full] = watched(series, 200, noise);
                assert_eq!((acted, full), (None, None), "{name} with noise {noise}");
            }
        }
    }

    #[test]
    fn a_sawtooth_that_grows_beyond_its_earlier_peak_is_acted_on() {
        let [_, acted, full] = watched(
            |t| 5.0 + 2.0 * (t % 40.0) / 40.0 + if t >= 120.0 { (t - 120.0) / 15.0 } else { 0.0 },
            240,
            0.01,
        );

        assert!(acted.unwrap() < full.unwrap(), "acted at {acted:?}, full at {full:?}");
    }

    #[test]
    fn a_spike_is_no_change_point_and_reduces_the_remaining_capacity() {
        let mut predictor = PeakPredictor::default();
        let mut rng = SeededRng::new(1);
        for at in 1..=60 {
            let level = noisy(&mut rng, 4.0 + 0.05 * float(at), 0.005);
            predictor.take(float(at), if at % 20 == 10 { level + 1.5 } else { level });
        }
        let crossing = predictor.crossing(CAPACITY).unwrap();

        assert_eq!(predictor.changes(), 0);
        assert!((crossing.expected - 120.0).abs() < 6.0, "{crossing:?}");
        assert!((crossing.earliest - 90.0).abs() < 6.0, "{crossing:?}");
    }

    #[test]
    fn no_interval_is_reported_before_there_is_a_spread() {
        let mut predictor = PeakPredictor::default();
        predictor.take(1.0, 4.0);
        predictor.take(2.0, 9.9);
        assert_eq!(predictor.forecast(10.0), None);
        assert_eq!(predictor.advise(CAPACITY, 5.0, None), PeakAdvice::Wait);
    }

    #[test]
    fn a_restart_without_a_checkpoint_pays_early_and_no_longer_late() {
        let mut predictor = PeakPredictor::default();
        let mut rng = SeededRng::new(3);
        let mut pays = Vec::new();
        for at in 1..=90 {
            predictor.take(float(at), noisy(&mut rng, 4.0 + 6.0 / 94.0 * float(at), 0.01));
            if predictor.restart_pays(CAPACITY, Some(130.0), 1.0) {
                pays.push(at);
            }
        }
        assert!(pays.first().is_some_and(|first| *first <= 10), "{pays:?}");
        let mut flat = PeakPredictor::default();
        for at in 1..=90 {
            flat.take(float(at), noisy(&mut rng, 8.8, 0.01));
            assert!(!flat.restart_pays(CAPACITY, Some(130.0), 1.0), "flat at {at}");
        }
    }

    #[test]
    fn a_move_begins_earlier_the_longer_the_checkpoint_takes() {
        assert!((lead(0.0, 2.0) - MARGIN_ITERATIONS).abs() < 1e-9);
        assert!((lead(9.0, 2.0) - 5.0 - MARGIN_ITERATIONS).abs() < 1e-9);
        assert!(
            (lead(9.0, 0.0) - MARGIN_ITERATIONS).abs() < 1e-9,
            "nothing is known of iterations"
        );
    }

    proptest! {
        #[test]
        fn any_series_gives_finite_intervals_that_contain_their_value(
            values in prop::collection::vec(0.0..1e12_f64, 0..300), capacity in 1.0..1e12_f64,
        ) {
            let mut predictor = PeakPredictor::default();
            for (at, value) in values.iter().enumerate() {
                predictor.take(crate::number::count(at), *value);
                predictor.advise(capacity, 5.0, None);
                if let Some(forecast) = predictor.forecast(1_000.0) {
                    prop_assert!(forecast.low <= forecast.value + 1e-3 && forecast.value <= forecast.high + 1e-3);
                    prop_assert!(forecast.high.is_finite() && forecast.low.is_finite());
                }
            }
            prop_assert_eq!(predictor.samples(), values.len() as u64);
        }

        #[test]
        fn the_unit_of_memory_changes_no_decision(seed in 0..500_u64, slope in -0.05..0.15_f64) {
            let (mut small, mut large) = (PeakPredictor::default(), PeakPredictor::default());
            let mut rng = SeededRng::new(seed);
            let unit = 1_073_741_824.0;
            for at in 1..=80 {
                let value = noisy(&mut rng, 4.0 + slope * float(at), 0.01);
                small.take(float(at), value);
                large.take(float(at), value * unit);
                prop_assert_eq!(
                    small.advise(CAPACITY, 5.0, None),
                    large.advise(CAPACITY * unit, 5.0, None)
                );
            }
        }
    }
}
