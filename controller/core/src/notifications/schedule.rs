//! Decides when a failed delivery is tried again, and when it is given up.

use std::time::Duration;

use tessera_model::Millis;
use tessera_model::backoff::Backoff;

/// How long delivery is retried: a receiver may be off for a weekend.
pub const AGE_MAX: Millis = Millis::from_secs(3 * 86_400);
/// How often delivery is tried at most. The age allows fewer tries, unless controllers crash during
/// them.
pub const TRIES_MAX: u32 = 300;
/// Maximum number of waiting notifications of a channel; beyond it, the oldest are given up. They
/// take some 100 MB.
pub const WAITING_MAX: u64 = 100_000;
/// The largest value of a jitter.
pub const JITTER_WHOLE: u16 = 1_000;

/// A restarting receiver is tried again within seconds, and one that is off a few times an hour.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1_800));

/// The decision after a failed delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// It is tried again after this time.
    RetryIn(Millis),
    /// It is given up.
    GiveUp,
}

/// Decides about a failed delivery. `tries` counts all tries, and `age` is the time since the
/// notification was written. `jitter` is a random number up to [`JITTER_WHOLE`]. The pause is
/// between half and all of its full length, so that many notifications are not retried together.
pub fn after_failure(tries: u32, age: Millis, jitter: u16) -> AfterFailure {
    let whole = BACKOFF.millis_after(tries.max(1)).get();
    let part = u64::from(jitter.min(JITTER_WHOLE)) * (whole / 2) / u64::from(JITTER_WHOLE);
    let pause = Millis::new(whole / 2 + part);
    if tries >= TRIES_MAX || age.plus(pause) > AGE_MAX {
        return AfterFailure::GiveUp;
    }
    AfterFailure::RetryIn(pause)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_receiver_that_never_answers_is_given_up_after_three_days(jitters in prop::collection::vec(0..JITTER_WHOLE, 1..20)) {
            let (mut age, mut tries) = (Millis::ZERO, 0);
            let mut pauses = Vec::new();
            loop {
                tries += 1;
                let jitter = jitters[usize::try_from(tries).unwrap() % jitters.len()];
                match after_failure(tries, age, jitter) {
                    AfterFailure::RetryIn(pause) => {
                        age = age.plus(pause);
                        pauses.push(pause.get());
                    }
                    AfterFailure::GiveUp => break,
                }
            }

            prop_assert!(age <= AGE_MAX);
            prop_assert!(age.plus(Millis::from_secs(1_800)) > AGE_MAX || tries == TRIES_MAX);
            prop_assert!(tries <= TRIES_MAX);
            prop_assert!(pauses.iter().all(|pause| (500..=1_800_000).contains(pause)));
            // Each pause is at least as long as the one two before it: they double, and jitter halves them at most.
            prop_assert!(pauses.windows(3).take(9).all(|three| three[2] >= three[0]));
        }

        #[test]
        fn jitter_spreads_a_pause_over_its_second_half(tries in 1_u32..12, jitter in any::<u16>()) {
            let AfterFailure::RetryIn(pause) = after_failure(tries, Millis::ZERO, jitter) else {
                return Err(TestCaseError::fail("it is young"));
            };
            let whole = 1_000_u64 << (tries - 1);
            let whole = whole.min(1_800_000);

            prop_assert!((whole / 2..=whole).contains(&pause.get()));
        }
    }
}
