//! Detects that a kernel no longer takes the measured time: inputs change, clocks throttle, or code
//! is rebuilt under the same name.

use crate::mean::Mean;
use crate::time::Nanos;

/// The number of recent samples that are examined.
const EXAMINED: u32 = 8;
/// The number of outliers among them that is tolerated: one may be a page fault, two the effect of a
/// co-runner.
const OUTLIERS_MAX: u32 = 2;
/// A lasting small change counts after this many samples.
const SETTLED_AFTER: u32 = 32;
/// A lasting change of more than this many thousandths counts.
const SETTLED_THOUSANDTHS: u64 = 250;

/// The result of a new sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriftVerdict {
    /// The kernel takes the measured time.
    Same,
    /// The kernel must be measured again.
    Drifted,
}

/// The last samples of one kernel in the sharing stage, against its mean.
///
/// A kernel drifts if three of the last eight samples lie outside half to twice the mean. It also
/// drifts if the smoothed time of at least 32 samples is off by more than a quarter. The papers
/// measure only once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// One bit for each sample, newest lowest: whether it is an outlier.
    outliers: u8,
    seen: u32,
    /// Smoothed over about sixteen samples.
    smoothed: Nanos,
    /// The recent outliers.
    fresh: Mean,
}

impl Drift {
    /// Examines one sample of a kernel whose mean is `expected`.
    pub fn observe(&mut self, expected: Nanos, sample: Nanos) -> DriftVerdict {
        let off = sample.times(2) < expected || sample > expected.times(2);
        self.outliers = (self.outliers << 1) | u8::from(off);
        self.smoothed = if self.seen == 0 {
            sample
        } else {
            self.smoothed
                .minus(Nanos::new(self.smoothed.get() / 16))
                .plus(Nanos::new(sample.get() / 16))
        };
        self.seen = (self.seen + 1).min(SETTLED_AFTER);
        if off {
            self.fresh.add(sample);
        } else if self.outliers == 0 {
            self.fresh = Mean::EMPTY;
        }
        let settled = expected.thousandths(SETTLED_THOUSANDTHS);
        let small_but_lasting = self.seen >= SETTLED_AFTER
            && (self.smoothed.minus(expected) > settled || expected.minus(self.smoothed) > settled);
        const {
            assert!(
                u8::BITS == EXAMINED,
                "the history holds exactly the samples that are examined"
            );
        }
        if self.outliers.count_ones() > OUTLIERS_MAX || small_but_lasting {
            DriftVerdict::Drifted
        } else {
            DriftVerdict::Same
        }
    }

    /// Returns the first samples of the new measurement: the outliers, or the smoothed time after a
    /// small but lasting change.
    pub fn fresh(&self) -> Mean {
        let mut fresh = self.fresh;
        while fresh.samples() < crate::mean::KNOWN_SAMPLES_MIN && self.seen > 0 {
            fresh.add(self.smoothed);
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Nanos = Nanos::from_micros(100);

    fn verdicts(samples: impl IntoIterator<Item = u64>) -> Vec<DriftVerdict> {
        let mut drift = Drift::default();
        samples
            .into_iter()
            .map(|micros| drift.observe(EXPECTED, Nanos::from_micros(micros)))
            .collect()
    }

    #[test]
    fn two_outliers_in_eight_are_tolerated_and_three_are_not() {
        assert_eq!(verdicts([100, 300, 100, 10, 100, 100]), [DriftVerdict::Same; 6]);
        assert_eq!(verdicts([100, 300, 100, 10, 301]).last(), Some(&DriftVerdict::Drifted));
    }

    #[test]
    fn outliers_that_are_far_apart_are_tolerated() {
        let rare = (0..200).map(|i| if i % 5 == 0 { 210 } else { 75 });

        assert!(verdicts(rare).iter().all(|verdict| *verdict == DriftVerdict::Same));
    }

    #[test]
    fn a_small_change_that_lasts_is_detected_after_32_samples() {
        let changed = verdicts([140; 40]);

        assert!(changed[..31].iter().all(|verdict| *verdict == DriftVerdict::Same));
        assert_eq!(changed[31], DriftVerdict::Drifted);
    }

    #[test]
    fn a_drifted_kernel_starts_with_its_outliers() {
        let mut drift = Drift::default();
        for micros in [300, 300, 300] {
            drift.observe(EXPECTED, Nanos::from_micros(micros));
        }

        assert_eq!(drift.fresh().known(), Some(Nanos::from_micros(300)));
    }
}
