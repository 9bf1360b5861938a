//! How long a kernel takes: rules of module images, and seeded random numbers.

use std::time::Duration;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// A distribution of running times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DurationLaw {
    /// Always the same, in nanoseconds.
    Always(u64),
    /// Evenly between two times, in nanoseconds.
    Between(u64, u64),
    /// Log-normal: the median in nanoseconds, and the deviation of the logarithm.
    LogNormal(u64, f64),
}

/// A text that is not a running time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a running time: use 2ms, uniform(1ms,3ms) or lognormal(2ms,0.2)")]
pub struct DurationError(String);

/// Random numbers of one process: a seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct SeededRng(SplitMix64);

impl DurationLaw {
    /// Reads `2ms`, `uniform(1ms,3ms)` or `lognormal(2ms,0.2)`.
    ///
    /// # Errors
    ///
    /// [`DurationError`].
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let bad = || DurationError(text.to_owned());
        let inside = |name: &str| text.strip_prefix(name)?.strip_suffix(')')?.split_once(',');
        if let Some((low, high)) = inside("uniform(") {
            let (low, high) = (parse_time(low).ok_or_else(bad)?, parse_time(high).ok_or_else(bad)?);
            return (low <= high).then_some(Self::Between(low, high)).ok_or_else(bad);
        }
        if let Some((median, deviation)) = inside("lognormal(") {
            let deviation = deviation.parse::<f64>().map_err(|_| bad())?;
            let good = (0.0..=3.0).contains(&deviation);
            return good
                .then_some(Self::LogNormal(parse_time(median).ok_or_else(bad)?, deviation))
                .ok_or_else(bad);
        }
        parse_time(text).map(Self::Always).ok_or_else(bad)
    }

    /// Draws a time in nanoseconds.
    pub fn draw(self, rng: &mut SeededRng) -> u64 {
        match self {
            Self::Always(time) => time,
            Self::Between(low, high) => low + rng.below((high - low).saturating_add(1)),
            Self::LogNormal(median, deviation) => {
                let factor = (rng.normal() * deviation).exp();
                let time = Duration::from_nanos(median).as_secs_f64() * factor;
                // Beyond five centuries there is nothing to simulate.
                Duration::try_from_secs_f64(time).map_or(median, super::board::nanos)
            }
        }
    }
}

/// Reads a time with its unit, such as `1.5ms`, into nanoseconds.
pub fn parse_time(text: &str) -> Option<u64> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, seconds) = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.trim().strip_suffix(unit)?, *seconds)))?;
    let number = number.trim().parse::<f64>().ok().filter(|number| *number >= 0.0)?;
    let time = Duration::try_from_secs_f64(number * seconds).ok()?;
    u64::try_from(time.as_nanos()).ok()
}

impl SeededRng {
    /// Begins the numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// Draws a number below `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The widening product is as even as 64 bits allow.
        let (_, high) = self.next().carrying_mul(limit, 0);
        high
    }

    #[expect(clippy::cast_possible_truncation, reason = "a number below a million has 20 bits")]
    fn below_million(&mut self) -> u32 {
        self.below(1_000_000) as u32
    }

    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws from the standard normal distribution: the sum of twelve even numbers less six is one
    /// except for tails that no kernel has.
    fn normal(&mut self) -> f64 {
        let sum: u32 = (0..12).map(|_| self.below_million()).sum();
        f64::from(sum) / 1e6 - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("1.5ms"), Some(1_500_000));
        assert_eq!(parse_time("2s"), Some(2_000_000_000));
        assert_eq!(parse_time("7"), None);
        assert!(DurationLaw::parse("uniform(3ms,1ms)").is_err());
    }

    #[test]
    fn chance_repeats_and_stays_in_its_bounds() {
        let law = DurationLaw::parse("uniform(1ms,3ms)").unwrap();
        let draw = |seed| {
            let mut rng = SeededRng::new(seed);
            (0..100).map(|_| law.draw(&mut rng)).collect::<Vec<_>>()
        };

        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|time| (1_000_000..=3_000_000).contains(time)));
    }
}
