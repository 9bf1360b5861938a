//! Seeded random numbers: a seed gives the same numbers on every machine and in every version.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use tessera_model::number::clamped;

use crate::number::float;

/// A generator of random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of the crate
/// `rand_xoshiro`.
///
/// Numbers in a range are remainders. `rand`'s distributions draw differently from version to version,
/// and trained models and published figures depend on the draws of their seeds.
#[derive(Clone, Debug)]
pub struct SeededRng(SplitMix64);

impl SeededRng {
    /// Begins at a seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// Begins at a seed made of a number and a name.
    pub fn named(seed: u64, name: &str) -> Self {
        name.bytes()
            .fold(Self::new(seed), |mut rng, byte| Self::new(rng.next_u64() ^ u64::from(byte)))
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns an index into a list of `length` entries, which is not empty.
    pub fn index_below(&mut self, length: usize) -> usize {
        let drawn = self.below((length as u64).max(1));
        #[expect(clippy::cast_possible_truncation, reason = "it is below `length`, a usize")]
        let index = drawn as usize;
        index
    }

    /// Returns a number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        float(self.next_u64() >> 11) / 9_007_199_254_740_992.0
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
        clamped::<u64>(spread).max(value / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_numbers_of_the_paper() {
        let mut rng = SeededRng::new(0);

        assert_eq!(rng.next_u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(rng.next_u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn a_name_and_a_number_give_the_same_numbers_again() {
        let draw = |seed, name| SeededRng::named(seed, name).next_u64();

        assert_eq!(draw(1, "poisson"), draw(1, "poisson"));
        assert_ne!(draw(1, "poisson"), draw(1, "bursts"));
        assert_ne!(draw(1, "poisson"), draw(2, "poisson"));
    }
}
