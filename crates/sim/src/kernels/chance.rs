//! Chance that repeats: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), integers only.

/// A seeded source of numbers.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Begins at a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Begins at a seed made of a number and a name.
    pub fn named(seed: u64, name: &str) -> Self {
        let mut chance = Self(seed);
        for byte in name.bytes() {
            chance.0 = chance.next() ^ u64::from(byte);
        }
        chance
    }

    /// Returns the next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which is not zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns `value` times a normal factor of mean 1 and the given spread in thousandths, at
    /// least a tenth of it.
    ///
    /// The sum of twelve even numbers stands in for the normal distribution (Irwin–Hall).
    pub fn spread(&mut self, value: u64, thousandths: u64) -> u64 {
        let sum: u64 = (0..12).map(|_| self.below(1_000)).sum();
        // `sum` has mean 5,994 and a standard deviation of 1,000.
        let up = u128::from(value) * u128::from(thousandths) * u128::from(sum);
        let down = u128::from(value) * u128::from(thousandths) * 5_994;
        let middle = u128::from(value) * 1_000_000;
        let spread = (middle + up).saturating_sub(down) / 1_000_000;
        u64::try_from(spread).unwrap_or(u64::MAX).max(value / 10)
    }
}
