//! The recent usage of a user or account.

use std::f64::consts::LN_2;
use std::time::Duration;

use tessera_model::Millis;

use crate::numbers::saturating_millis;

/// Time on compute slices, weighted by half for each half-life of age.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecayedUsage {
    /// Weighted milliseconds on one compute slice, as of `at`.
    used: f64,
    at: Millis,
    /// Compute slices that are held now.
    held: f64,
}

impl DecayedUsage {
    /// Begins with the usage until a time, and with the slices that are held then.
    pub fn new(used: Millis, held: f64, at: Millis) -> Self {
        Self { used: ms(used), at, held }
    }

    /// Counts slices that are taken, or returned if the number is negative.
    pub fn take(&mut self, slices: f64, now: Millis, half_life: Millis) {
        self.used = self.had(now, half_life);
        self.at = now.max(self.at);
        self.held = (self.held + slices).max(0.0);
    }

    /// Takes back what slices added in a period that ends now.
    pub fn forgive(&mut self, slices: f64, (from, until): (Millis, Millis), half_life: Millis) {
        let half = ms(half_life).max(1.0);
        let lives = ms(until.minus(from)) / half;
        let added = -slices * (-lives * LN_2).exp_m1() * half / LN_2;
        self.used = (self.had(until, half_life) - added).max(0.0);
        self.at = until.max(self.at);
    }

    /// Returns how many compute slices are held now.
    pub const fn held(&self) -> f64 {
        self.held
    }

    /// Returns the usage until a time, in milliseconds on one compute slice.
    pub fn until(&self, now: Millis, half_life: Millis) -> Millis {
        let had = Duration::try_from_secs_f64(self.had(now, half_life) / 1_000.0);
        let whole = had.map_or(u128::MAX, |had| had.as_millis());
        saturating_millis(whole)
    }

    /// Earlier usage decays, and the slices held since add usage that decays as well.
    fn had(&self, now: Millis, half_life: Millis) -> f64 {
        let half = ms(half_life).max(1.0);
        let lives = ms(now.minus(self.at)) / half;
        // This form is exact also for very short times.
        self.used * (-lives * LN_2).exp() - self.held * (-lives * LN_2).exp_m1() * half / LN_2
    }
}

fn ms(time: Millis) -> f64 {
    time.duration().as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Millis = Millis::from_secs(86_400);

    #[test]
    fn usage_weighs_half_after_a_half_life() {
        let hour = Millis::from_secs(3_600);
        let mut had = DecayedUsage::default();
        had.take(7.0, Millis::ZERO, DAY);
        // Within an hour the decay is negligible.
        let first = had.until(hour, DAY).get();
        assert!((24_800_000..=25_200_000).contains(&first), "{first}");
        had.take(-7.0, hour, DAY);
        let later = had.until(hour.plus(DAY), DAY).get();
        assert!((later * 2).abs_diff(first) < 3, "{later} of {first}");
    }

    #[test]
    fn usage_counts_the_same_in_one_period_and_in_two() {
        let (mut one, mut two) = (DecayedUsage::default(), DecayedUsage::default());
        one.take(4.0, Millis::ZERO, DAY);
        two.take(4.0, Millis::ZERO, DAY);
        two.take(0.0, Millis::from_secs(500), DAY);

        let then = Millis::from_secs(90_000);
        assert!(one.until(then, DAY).get().abs_diff(two.until(then, DAY).get()) < 3);
    }
}
