//! Seeded random numbers: the same seed gives the same run.

/// A random number generator (xorshift64*; Vigna 2016).
#[derive(Debug)]
pub(super) struct RandomNumbers(u64);

impl RandomNumbers {
    pub(super) fn new(seed: u64) -> Self {
        // Zero would stay zero, and similar seeds must not give similar numbers.
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Returns a number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// Returns an index of a list of `length`, which must not be empty.
    pub(super) fn index(&mut self, length: usize) -> usize {
        assert!(length > 0, "an empty list has no elements to choose");
        usize::try_from(self.below(u64::try_from(length).unwrap())).unwrap()
    }

    /// Returns `true` in `percent` of 100 cases.
    pub(super) fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a random element of a list.
    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.index(from.len())].clone()) }
    }
}
