//! Whole numbers to real ones and back.

/// Returns a count as a real number; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts beyond 2^53 may lose their last digits")]
pub const fn float(count: u64) -> f64 {
    count as f64
}

/// Returns a length as a real number.
pub fn count(length: usize) -> f64 {
    float(length as u64)
}

/// Rounds a number to the nearest whole one, at most 2^63 - 1; negative numbers, infinities and NaN
/// become zero.
#[expect(clippy::cast_possible_truncation, reason = "the cast saturates, and rounds down")]
#[expect(clippy::cast_sign_loss, reason = "negative numbers became zero")]
pub const fn whole(value: f64) -> u64 {
    if !value.is_finite() || value <= 0.0 {
        return 0;
    }
    let rounded = (value + 0.5) as u64;
    if rounded > u64::MAX >> 1 { u64::MAX >> 1 } else { rounded }
}

/// Hashes bytes as FNV-1a does: the same on every machine and in every version.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut sum = 0xCBF2_9CE4_8422_2325_u64;
    for byte in bytes {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_survive_the_way_there_and_back() {
        for number in [0, 1, 999, 1 << 20, (1 << 52) - 1] {
            assert_eq!(whole(float(number)), number);
        }
        assert_eq!(whole(f64::NAN), 0);
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_whole_one() {
        for (value, nearest) in [(0.49, 0), (0.5, 1), (0.51, 1), (1.49, 1), (2.5, 3), (-3.0, 0)] {
            assert_eq!(whole(value), nearest);
        }
        for power in 0..63 {
            assert_eq!(whole(float(1 << power)), 1 << power);
        }
        assert_eq!((whole(1e30), whole(f64::INFINITY)), (u64::MAX >> 1, 0));
    }
}
