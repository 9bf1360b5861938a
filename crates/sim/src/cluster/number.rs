//! Whole numbers to real ones and back, where results are shown or models are evaluated.

/// Returns a count as a real number; exact below 2^53.
pub fn float(count: u64) -> f64 {
    let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(count & 0xFFFF_FFFF).unwrap_or(u32::MAX);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

/// Returns a length as a real number.
pub fn count(length: usize) -> f64 {
    float(u64::try_from(length).unwrap_or(u64::MAX))
}

/// Rounds a number that is not negative to the nearest whole one, by halves.
pub fn whole(value: f64) -> u64 {
    if !value.is_finite() || value <= 0.0 {
        return 0;
    }
    let mut left = (value + 0.5).floor();
    let mut sum = 0_u64;
    for bit in (0..63).rev() {
        let step = 1_u64 << bit;
        if left >= float(step) {
            left -= float(step);
            sum += step;
        }
    }
    sum
}

/// Returns seconds of milliseconds.
pub fn seconds(ms: u64) -> f64 {
    float(ms) / 1_000.0
}

/// Rounds to three places, as results are printed.
pub fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_survive_the_way_there_and_back() {
        for number in [0, 1, 999, 1 << 20, (1 << 52) - 1] {
            assert_eq!(whole(float(number)), number);
        }
        assert_eq!(whole(1.5), 2);
        assert_eq!(whole(-1.0), 0);
    }
}
