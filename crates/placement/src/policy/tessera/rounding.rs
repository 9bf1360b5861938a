//! Scores and times as floating-point numbers, and back.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "scores are rounded down, within limits that are checked first"
)]

use tessera_model::Millis;

/// The largest score or time in use. Sums of some thousand of them stay far below the largest
/// number of the type.
const LARGEST: f64 = 4_000_000_000_000.0;

pub(super) const fn float(time: Millis) -> f64 {
    time.get() as f64
}

/// Returns a sum of milliseconds.
pub(super) const fn float_sum(sum: u128) -> f64 {
    let limited = if sum > u64::MAX as u128 { u64::MAX } else { sum as u64 };
    limited as f64
}

/// Returns a time in whole milliseconds.
pub(super) const fn float_ms(ms: u64) -> f64 {
    ms as f64
}

/// Converts a count, which is exact below 2^53.
pub(super) const fn float_count(count: usize) -> f64 {
    count as f64
}

pub(super) const fn float_of(score: i64) -> f64 {
    score as f64
}

/// Rounds a time down to whole milliseconds.
pub(super) const fn whole_ms(ms: f64) -> u64 {
    ms.clamp(0.0, LARGEST) as u64
}

/// Rounds a score down to a whole number: at least one, so that any progress counts.
pub(super) const fn whole_score(score: f64) -> i64 {
    score.clamp(1.0, LARGEST) as i64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_rounded_down(millionths in 1_000_000_u64..8_388_608_000_000) {
            let value = float(Millis::new(millionths)) / 1_000_000.0;

            prop_assert_eq!(float_of(whole_score(value)), value.floor());
            prop_assert_eq!(float(Millis::new(whole_ms(value))), value.floor());
        }
    }

    #[test]
    fn whole_numbers_are_unchanged_and_fractions_are_rounded_down() {
        for number in [2_u32, 3, 1_000, 4_194_304, 8_388_607] {
            let (whole, value) = (i64::from(number), f64::from(number));
            assert_eq!(whole_score(value), whole);
            assert_eq!(whole_score(value.next_down()), whole - 1);
        }
        assert_eq!((whole_score(0.999), whole_score(-7.0)), (1, 1));
        assert_eq!((whole_ms(0.999), whole_ms(-7.0), whole_ms(f64::NAN)), (0, 0, 0));
    }
}
