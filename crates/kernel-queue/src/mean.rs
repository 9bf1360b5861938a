//! A running mean that merges without rounding and knows its confidence interval.

use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// The fewest samples of a tight mean: the paper's fewest runs (FIKIT §3.2).
pub const TIGHT_SAMPLES_MIN: u32 = 10;

/// A mean of this many samples does not change any more, whether it is tight or not: the paper's most runs
/// (FIKIT §3.2).
pub const MEASURED_SAMPLES_MAX: u32 = 1_000;

/// After this many samples a kernel is no longer measured on purpose, whether its mean is tight or not: the estimate of
/// its high times contains the spread.
pub const USEFUL_SAMPLES_MAX: u32 = 100;

/// The fewest samples with which a mean is used before it is tight.
pub const KNOWN_SAMPLES_MIN: u32 = 3;

/// Maximum number of samples of one mean. Beyond this all sums are halved. With [`SAMPLE_MAX`] this
/// keeps the integers of [`Mean::is_tight`] within 128 bits.
const HELD_SAMPLES_MAX: u32 = 65_535;

/// Longest sample, one minute: a kernel that runs longer hangs, and a longer gap is a pause of the
/// program.
const SAMPLE_MAX: Nanos = Nanos::from_millis(60_000);

/// Mean and spread of a time, kept as exact sums.
///
/// Integer sums instead of floating-point means: merging in any order gives the same bits, up to
/// 65,535 samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredMean", into = "StoredMean")]
pub struct Mean {
    samples: u32,
    sum: u64,
    squares: u128,
}

impl Mean {
    /// No samples.
    pub const EMPTY: Self = Self { samples: 0, sum: 0, squares: 0 };

    /// Adds one sample. A sample over a minute counts as a minute.
    pub fn add(&mut self, sample: Nanos) {
        self.add_times(sample, 1);
    }

    /// Adds one sample as if it had been seen so many times.
    pub fn add_times(&mut self, sample: Nanos, times: u32) {
        let nanos = sample.min(SAMPLE_MAX).get();
        let (sum, square) = (nanos * u64::from(times), u128::from(nanos) * u128::from(nanos));
        self.merge(&Self { samples: times, sum, squares: square * u128::from(times) });
    }

    /// Adds all samples of another.
    pub fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        self.sum += other.sum;
        self.squares += other.squares;
        while self.samples > HELD_SAMPLES_MAX {
            self.samples /= 2;
            self.sum /= 2;
            self.squares /= 2;
        }
    }

    /// Returns the samples that were added to `base`, exactly. `None` if this is not `base` with
    /// samples added: it was measured again, or halved.
    pub const fn since(&self, base: &Self) -> Option<Self> {
        match (
            self.samples.checked_sub(base.samples),
            self.sum.checked_sub(base.sum),
            self.squares.checked_sub(base.squares),
        ) {
            (Some(0), Some(0), Some(0)) => Some(Self::EMPTY),
            (Some(samples @ 1..), Some(sum), Some(squares)) => Some(Self { samples, sum, squares }),
            _ => None,
        }
    }

    /// Returns the number of samples.
    pub const fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns the mean, rounded down; `None` without samples.
    pub fn mean(&self) -> Option<Nanos> {
        self.sum.checked_div(u64::from(self.samples)).map(Nanos::new)
    }

    /// Returns the mean once it has enough samples to be used.
    pub fn known(&self) -> Option<Nanos> {
        if self.samples < KNOWN_SAMPLES_MIN { None } else { self.mean() }
    }

    /// Returns the samples' standard deviation, rounded down; zero with fewer than two samples.
    pub fn deviation(&self) -> Nanos {
        let n = u128::from(self.samples);
        let sum = u128::from(self.sum);
        let spread = (n * self.squares).saturating_sub(sum * sum);
        let variance = spread.checked_div(n * n.saturating_sub(1)).unwrap_or(0);
        // A sample is at most a minute, so its square and this root are in range.
        Nanos::new(tessera_model::number::clamped(variance.isqrt()))
    }

    /// Returns whether the half width of the mean's 95 % confidence interval (1.96 standard
    /// errors) is at most 5 % of the mean.
    ///
    /// The paper does not define when a mean is good enough. It repeats a task 10 to 1,000 times
    /// (FIKIT §3.2), which are the limits here.
    pub fn is_tight(&self) -> bool {
        if self.samples < TIGHT_SAMPLES_MIN {
            return false;
        }
        let n = u128::from(self.samples);
        let sum = u128::from(self.sum);
        // With s² = (n Σx² − (Σx)²) / (n (n − 1)):
        // (1.96² s²) / n ≤ (mean / 20)²  ⇔  (n Σx² − (Σx)²) · 38,416 ≤ (Σx)² · 25 · (n − 1).
        let spread = (n * self.squares).saturating_sub(sum * sum);
        spread * 38_416 <= sum * sum * 25 * (n - 1)
    }

    /// Returns whether further samples are useful.
    pub fn needs_samples(&self) -> bool {
        self.samples < USEFUL_SAMPLES_MAX && !self.is_tight()
    }

    /// Returns whether the mean is as good as it gets. From then on, samples only reveal drift.
    pub fn is_measured(&self) -> bool {
        self.samples >= MEASURED_SAMPLES_MAX || self.is_tight()
    }
}

/// The stored form of a [`Mean`].
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMean {
    samples: u32,
    sum_ns: u64,
    squares_ns2: u128,
}

/// The stored sums are impossible for any samples.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{samples} samples of at most a minute cannot have these sums: the profile is damaged, measure again"
)]
pub struct BadSums {
    samples: u32,
}

impl From<Mean> for StoredMean {
    fn from(mean: Mean) -> Self {
        Self { samples: mean.samples, sum_ns: mean.sum, squares_ns2: mean.squares }
    }
}

impl TryFrom<StoredMean> for Mean {
    type Error = BadSums;

    fn try_from(sums: StoredMean) -> Result<Self, BadSums> {
        let bad = BadSums { samples: sums.samples };
        let n = u64::from(sums.samples);
        let longest = u128::from(SAMPLE_MAX.get());
        let fits = sums.samples <= HELD_SAMPLES_MAX
            && sums.sum_ns <= n.saturating_mul(SAMPLE_MAX.get())
            && sums.squares_ns2 <= u128::from(n) * longest * longest;
        if fits {
            Ok(Self { samples: sums.samples, sum: sums.sum_ns, squares: sums.squares_ns2 })
        } else {
            Err(bad)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(samples: &[u64]) -> Mean {
        let mut mean = Mean::EMPTY;
        samples.iter().for_each(|sample| mean.add(Nanos::new(*sample)));
        mean
    }

    #[test]
    fn equal_samples_are_tight_as_soon_as_there_are_enough() {
        assert!(!of(&[7_000; 9]).is_tight());
        assert!(of(&[7_000; 10]).is_tight());
    }

    #[test]
    fn the_deviation_is_that_of_the_samples() {
        assert_eq!(of(&[100, 100, 100]).deviation(), Nanos::ZERO);
        assert_eq!(of(&[90, 110]).deviation(), Nanos::new(14));
        assert_eq!(of(&[5]).deviation(), Nanos::ZERO);
    }

    #[test]
    fn scattered_samples_are_measured_only_after_a_thousand() {
        let scattered: Vec<u64> = (0..999).map(|i| if i % 50 == 0 { 900_000 } else { 1 }).collect();

        assert!(!of(&scattered).is_measured());
        assert!(of(&[&scattered[..], &[1]].concat()).is_measured());
    }

    proptest! {
        #[test]
        fn merging_is_the_same_in_any_order(
            a in prop::collection::vec(0_u64..1 << 40, 0..40),
            b in prop::collection::vec(0_u64..1 << 40, 0..40),
        ) {
            let mut ab = of(&a);
            ab.merge(&of(&b));
            let mut ba = of(&b);
            ba.merge(&of(&a));

            prop_assert_eq!(ab, ba);
            prop_assert_eq!(ab, of(&[a, b].concat()));
        }

        #[test]
        fn a_base_and_the_samples_after_it_add_up_to_the_whole(
            a in prop::collection::vec(0_u64..1 << 40, 0..40),
            b in prop::collection::vec(0_u64..1 << 40, 0..40),
        ) {
            let base = of(&a);
            let whole = of(&[a, b.clone()].concat());

            let after = whole.since(&base).unwrap();

            prop_assert_eq!(after, of(&b));
            prop_assert!(base.samples() == whole.samples() || base.since(&whole).is_none());
        }

        #[expect(clippy::cast_precision_loss, reason = "test samples are far below 2^52")]
        #[test]
        fn tightness_equals_the_floating_point_result(
            base in 1_000_u64..1_000_000,
            noise in prop::collection::vec(0_u64..2_000, 10..200),
        ) {
            let samples: Vec<u64> = noise.iter().map(|n| base * (1_000 + n) / 1_000).collect();
            let n = f64::from(u32::try_from(samples.len()).unwrap());
            let mean = samples.iter().map(|x| *x as f64).sum::<f64>() / n;
            let variance =
                samples.iter().map(|x| (*x as f64 - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let ratio = 1.96 * (variance / n).sqrt() / (mean * 0.05);

            prop_assume!((ratio - 1.0).abs() > 1e-6);
            prop_assert_eq!(of(&samples).is_tight(), ratio < 1.0);
        }

        #[test]
        fn a_stored_mean_reads_back(samples in prop::collection::vec(0_u64..1 << 50, 0..50)) {
            let mean = of(&samples);
            let text = serde_json::to_string(&mean).unwrap();
            prop_assert_eq!(serde_json::from_str::<Mean>(&text).unwrap(), mean);
        }
    }

    #[test]
    fn the_largest_sums_do_not_overflow() {
        let mut mean = Mean::EMPTY;
        for _ in 0..17 {
            mean.add(Nanos::MAX);
            let same = mean;
            mean.merge(&same);
        }
        let mut full = mean;
        full.merge(&mean);

        assert!(full.is_tight());
        assert!(full.samples() <= HELD_SAMPLES_MAX);
    }

    #[test]
    fn impossible_sums_are_refused() {
        let text = r#"{"samples":1,"sum_ns":60000000001,"squares_ns2":0}"#;

        assert!(serde_json::from_str::<Mean>(text).is_err());
    }
}
