//! Pauses between the tries of something that fails.
//!
//! Pure: callers wait, and spread the pauses at random if they need to.

use crate::number::clamped;
use std::time::Duration;

use crate::Millis;

/// Pauses of which each is twice as long as the one before, up to a longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first_pause: Duration,
    longest_pause: Duration,
}

impl Backoff {
    /// Makes a back-off from its first and its longest pause.
    pub const fn new(first_pause: Duration, longest_pause: Duration) -> Self {
        Self { first_pause, longest_pause }
    }

    /// Returns the pause after this many failures in a row: 1 for the first.
    pub fn pause_after(self, failures: u32) -> Duration {
        // More doublings than a factor has bits reach any longest pause.
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first_pause.saturating_mul(factor).min(self.longest_pause)
    }

    /// Returns the pause after this many failures in a row, in whole milliseconds.
    pub fn millis_after(self, failures: u32) -> Millis {
        let millis = self.pause_after(failures).as_millis();
        // A pause that `Millis` can't hold would last for 584 million years.
        Millis::new(clamped(millis))
    }
}

/// A back-off that counts the failures in a row itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureCount {
    backoff: Backoff,
    failures: u32,
}

impl FailureCount {
    /// Begins without a failure.
    pub const fn new(backoff: Backoff) -> Self {
        Self { backoff, failures: 0 }
    }

    /// Counts a failure, and returns the pause before the next try.
    pub fn count_failure(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.pause_after(self.failures)
    }

    /// Begins again after a success: the next pause is the first one again.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

    #[test]
    fn each_pause_is_twice_as_long_up_to_the_longest() {
        let pauses = [1, 2, 3, 4, 5, u32::MAX].map(|failures| BACKOFF.millis_after(failures).get());

        assert_eq!(pauses, [200, 400, 800, 1_000, 1_000, 1_000]);
    }

    #[test]
    fn the_first_pause_comes_again_after_a_success() {
        let mut count = FailureCount::new(BACKOFF);
        let before = [count.count_failure(), count.count_failure()];
        count.reset();

        assert_eq!(before, [200, 400].map(Duration::from_millis));
        assert_eq!(count.count_failure(), Duration::from_millis(200));
    }

    proptest! {
        #[test]
        fn a_pause_is_between_the_first_and_the_longest(
            first in 1_u64..100_000, more in 0_u64..10_000_000, failures in 1_u32..100,
        ) {
            let (first, longest) =
                (Duration::from_millis(first), Duration::from_millis(first + more));
            let backoff = Backoff::new(first, longest);

            prop_assert!((first..=longest).contains(&backoff.pause_after(failures)));
            prop_assert!(backoff.pause_after(failures) <= backoff.pause_after(failures + 1));
        }
    }
}
