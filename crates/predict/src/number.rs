//! Whole numbers to real ones and back.

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

/// Rounds a number that is not negative to the nearest whole one, at most to 2^63 - 1; what is none
/// becomes zero.
pub fn whole(value: f64) -> u64 {
    /// Bits of a number's fraction, and what its exponent counts from.
    const FRACTION: u32 = 52;
    const BIAS: u64 = 1_023;
    let rounded = value + 0.5;
    if !value.is_finite() || value <= 0.0 || rounded < 1.0 {
        return 0;
    }
    let digits = (rounded.to_bits() & ((1 << FRACTION) - 1)) | (1 << FRACTION);
    let exponent = (rounded.to_bits() >> FRACTION).saturating_sub(BIAS);
    match exponent.checked_sub(FRACTION.into()) {
        None => digits >> (u64::from(FRACTION) - exponent),
        Some(beyond) if exponent < 63 => digits << beyond,
        Some(_) => u64::MAX >> 1,
    }
}

/// Chance that repeats: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns an index below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % bound).unwrap_or(0)
    }

    /// Returns a number from 0 to 1.
    pub(crate) fn part(&mut self) -> f64 {
        float(self.next() >> 11) / 9_007_199_254_740_992.0
    }
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
