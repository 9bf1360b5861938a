//! When to repeat a request. Pure, so that every rule can be tested without a clock.

use std::time::Duration;

use tessera_model::backoff::Backoff;

/// How long a caller repeats a request while the controller can't respond.
///
/// Every call of the client may be repeated. Reads change nothing, and a submit has its
/// idempotency key. A second cancel, hold or release finds nothing left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPatience {
    /// Pause after the first failure; each further pause is twice as long.
    pub first_pause: Duration,
    /// The pause between two tries doubles up to this.
    pub longest_pause: Duration,
    /// All pauses of one call together never exceed this.
    pub total: Duration,
}

impl RetryPatience {
    /// For a person at a terminal, who should see a wrong address within seconds.
    pub const BRIEF: Self = Self {
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_secs(1),
        total: Duration::from_secs(3),
    };

    /// For long-running work, which should survive the restart of a controller.
    pub const LONG: Self = Self {
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_secs(5),
        total: Duration::from_secs(180),
    };

    /// Returns how long to pause after failure number `failures` (1 for the first), if
    /// `paused` was spent on pauses so far; `None` once patience has run out.
    ///
    /// A time that the controller names (`Retry-After`) is used, within the total.
    pub fn pause(
        &self,
        failures: u32,
        paused: Duration,
        retry_after: Option<Duration>,
    ) -> Option<Duration> {
        let backed_off = Backoff::new(self.first_pause, self.longest_pause).pause_after(failures);
        let pause = retry_after.unwrap_or(backed_off).max(self.first_pause);
        (paused.saturating_add(pause) <= self.total).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: RetryPatience = RetryPatience {
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_millis(400),
        total: Duration::from_secs(2),
    };

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses =
            [1, 2, 3, 4, 40].map(|failures| PATIENCE.pause(failures, Duration::ZERO, None));

        assert_eq!(pauses, [100, 200, 400, 400, 400].map(|ms| Some(Duration::from_millis(ms))));
    }

    #[test]
    fn a_time_that_the_controller_names_is_honoured_within_the_total() {
        let named = |secs| PATIENCE.pause(1, Duration::ZERO, Some(Duration::from_secs(secs)));

        assert_eq!(named(1), Some(Duration::from_secs(1)));
        assert_eq!(named(3), None);
    }

    proptest! {
        #[test]
        fn all_pauses_together_never_exceed_the_total(named in proptest::option::of(0_u64..3_000)) {
            let (mut paused, mut failures) = (Duration::ZERO, 1);

            while let Some(pause) = PATIENCE.pause(failures, paused, named.map(Duration::from_millis)) {
                prop_assert!(pause >= PATIENCE.first_pause);
                paused += pause;
                failures += 1;
                prop_assert!(failures < 100, "it never ends");
            }

            prop_assert!(paused <= PATIENCE.total);
        }
    }
}
