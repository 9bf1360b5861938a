//! What somebody has had recently.

use std::f64::consts::LN_2;
use std::time::Duration;

use tessera_model::Millis;

use crate::numbers::saturating_millis;

/// Time on compute slices, of which half counts no more after each half-life.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecayedUsage {
    /// Milliseconds of one slice, until `at`.
    used: f64,
    at: Millis,
    /// Compute slices that are held.
    held: f64,
}

impl DecayedUsage {
    /// Begins with what was had until a moment, and with what is held then.
    pub fn new(used: Millis, held: f64, at: Millis) -> Self {
        Self { used: ms(used), at, held }
    }

    /// Slices are taken, or, if the number is negative, given back.
    pub fn take(&mut self, slices: f64, now: Millis, half_life: Millis) {
        self.used = self.had(now, half_life);
        self.at = now.max(self.at);
        self.held = (self.held + slices).max(0.0);
    }

    /// Returns how many compute slices are held.
    pub const fn held(&self) -> f64 {
        self.held
    }

    /// Returns what was had until then, in time on one slice.
    pub fn until(&self, now: Millis, half_life: Millis) -> Millis {
        let had = Duration::try_from_secs_f64(self.had(now, half_life) / 1_000.0);
        let whole = had.map_or(u128::MAX, |had| had.as_millis());
        saturating_millis(whole)
    }

    /// What was known decays, and what is held adds to it as it decays itself.
    fn had(&self, now: Millis, half_life: Millis) -> f64 {
        let half = ms(half_life).max(1.0);
        let lives = ms(now.minus(self.at)) / half;
        // Exact also where next to nothing decays.
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
        // Next to nothing decays within an hour.
        let first = had.until(hour, DAY).get();
        assert!((24_800_000..=25_200_000).contains(&first), "{first}");
        had.take(-7.0, hour, DAY);
        let later = had.until(hour.plus(DAY), DAY).get();
        assert!((later * 2).abs_diff(first) < 3, "{later} of {first}");
    }

    #[test]
    fn what_is_held_in_two_parts_counts_as_what_is_held_at_once() {
        let (mut one, mut two) = (DecayedUsage::default(), DecayedUsage::default());
        one.take(4.0, Millis::ZERO, DAY);
        two.take(4.0, Millis::ZERO, DAY);
        two.take(0.0, Millis::from_secs(500), DAY);

        let then = Millis::from_secs(90_000);
        assert!(one.until(then, DAY).get().abs_diff(two.until(then, DAY).get()) < 3);
    }
}
