//! Whether a kernel still takes what was measured: inputs change, clocks throttle, code is
//! rebuilt under the same name.

use crate::stats::Mean;
use crate::time::Nanos;

/// How many of the last samples are looked at.
const LOOKED_AT: u32 = 8;
/// How many of them may lie outside before the kernel is measured again: one may be a page
/// fault, two a neighbour.
const OUTSIDE_MAX: u32 = 2;
/// After so many samples a lasting small change counts.
const SETTLED_AFTER: u32 = 32;
/// A lasting change of more than this many thousandths counts.
const SETTLED_THOUSANDTHS: u64 = 250;

/// What a new sample says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As measured.
    Same,
    /// Measure again.
    Drifted,
}

/// The last samples of one kernel in the sharing stage, against its mean.
///
/// It drifts when three of the last eight samples lie outside half to twice the mean, or when
/// the smoothed time of at least 32 samples is off by more than a quarter. The papers measure
/// once and for all; this is ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// One bit a sample, newest lowest: whether it lay outside.
    outside: u8,
    seen: u32,
    /// Smoothed over about sixteen samples.
    smoothed: Nanos,
    /// The samples that lay outside, and those since the first of them.
    fresh: Mean,
}

impl Drift {
    /// Looks at one sample of a kernel whose mean is `expected`.
    pub fn look(&mut self, expected: Nanos, sample: Nanos) -> Verdict {
        let off = sample.times(2) < expected || sample > expected.times(2);
        self.outside = (self.outside << 1) | u8::from(off);
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
        } else if self.outside == 0 {
            self.fresh = Mean::EMPTY;
        }
        let settled = expected.thousandths(SETTLED_THOUSANDTHS);
        let small_but_lasting = self.seen >= SETTLED_AFTER
            && (self.smoothed.minus(expected) > settled || expected.minus(self.smoothed) > settled);
        debug_assert_eq!(u8::BITS, LOOKED_AT, "the history is as long as is looked at");
        if self.outside.count_ones() > OUTSIDE_MAX || small_but_lasting {
            Verdict::Drifted
        } else {
            Verdict::Same
        }
    }

    /// Returns what to begin the new measuring with: the samples that lay outside, or the
    /// smoothed time if the change was small but lasting.
    pub fn fresh(&self) -> Mean {
        let mut fresh = self.fresh;
        while fresh.samples() < crate::stats::KNOWN_SAMPLES_MIN && self.seen > 0 {
            fresh.add(self.smoothed);
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Nanos = Nanos::from_micros(100);

    fn verdicts(samples: impl IntoIterator<Item = u64>) -> Vec<Verdict> {
        let mut drift = Drift::default();
        samples.into_iter().map(|micros| drift.look(EXPECTED, Nanos::from_micros(micros))).collect()
    }

    #[test]
    fn two_outliers_in_eight_are_chance_and_three_are_not() {
        assert_eq!(verdicts([100, 300, 100, 10, 100, 100]), [Verdict::Same; 6]);
        assert_eq!(verdicts([100, 300, 100, 10, 301]).last(), Some(&Verdict::Drifted));
    }

    #[test]
    fn outliers_that_are_far_apart_are_forgiven() {
        let rare = (0..200).map(|i| if i % 5 == 0 { 210 } else { 75 });

        assert!(verdicts(rare).iter().all(|verdict| *verdict == Verdict::Same));
    }

    #[test]
    fn a_small_change_that_lasts_is_told_after_32_samples() {
        let told = verdicts([140; 40]);

        assert!(told[..31].iter().all(|verdict| *verdict == Verdict::Same));
        assert_eq!(told[31], Verdict::Drifted);
    }

    #[test]
    fn a_kernel_that_drifted_is_known_by_what_gave_it_away() {
        let mut drift = Drift::default();
        for micros in [300, 300, 300] {
            drift.look(EXPECTED, Nanos::from_micros(micros));
        }

        assert_eq!(drift.fresh().known(), Some(Nanos::from_micros(300)));
    }
}
