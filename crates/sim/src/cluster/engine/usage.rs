//! What users have had lately, for policies that share fairly.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::Millis;
use tessera_placement::Account;

use super::{Run, Spot};
use crate::cluster::job::Job;
use crate::cluster::number::{float, whole};

/// After which time half of what was had counts no more: a day, so that yesterday's hunger is
/// nearly forgiven.
const HALF_LIFE_MS: f64 = 86_400_000.0;

/// One user.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    /// Decayed time on compute slices, in milliseconds of one, until `at`.
    used: f64,
    at: u64,
    /// Compute slices that are held.
    held: f64,
}

/// All users; empty where there is but one, with whom nobody has to share.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    users: BTreeMap<String, Had>,
}

impl Usage {
    pub(super) fn of(jobs: &[Job]) -> Self {
        let names: BTreeSet<&str> = jobs.iter().map(|job| job.user.as_str()).collect();
        let users = names.iter().map(|name| ((*name).to_owned(), Had::default()));
        if names.len() > 1 { Self { users: users.collect() } } else { Self::default() }
    }

    /// A user takes slices, or gives them back.
    fn take(&mut self, user: &str, slices: f64, now: u64) {
        let Some(had) = self.users.get_mut(user) else { return };
        had.used = had.until(now);
        had.at = now;
        had.held = (had.held + slices).max(0.0);
    }

    pub(super) fn account(&self, user: &str, now: u64) -> Option<Account> {
        let had = self.users.get(user)?;
        let used = Millis::new(whole(had.until(now)));
        Some(Account { name: user.into(), shares: 1, used, quota: None })
    }
}

impl Had {
    /// Returns what was had until then: what was known decays, and what is held adds to it as it
    /// decays itself.
    fn until(&self, now: u64) -> f64 {
        let left = 0.5_f64.powf(float(now.saturating_sub(self.at)) / HALF_LIFE_MS);
        self.used * left + self.held * (1.0 - left) * HALF_LIFE_MS / std::f64::consts::LN_2
    }
}

impl Run<'_> {
    /// Counts a seat that is taken.
    pub(super) fn charge(&mut self, task: usize, spot: &Spot) {
        let slices = self.held(spot);
        self.usage.take(&self.setup.jobs[task].user, slices, self.now);
    }

    /// Counts a seat that is given back.
    pub(super) fn refund(&mut self, task: usize, spot: &Spot) {
        let slices = self.held(spot);
        self.usage.take(&self.setup.jobs[task].user, -slices, self.now);
    }

    /// Returns a seat's compute slices, by its part of them.
    fn held(&self, spot: &Spot) -> f64 {
        let part = spot.sm.map_or(1.0, |sm| f64::from(sm.get()) / 100.0);
        f64::from(self.slices(spot.gpu, spot.slot)) * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_had_is_half_forgotten_after_a_day() {
        let mut had = Had { used: 0.0, at: 0, held: 7.0 };
        let hour = 3_600_000;
        // Next to nothing decays within an hour.
        assert!((had.until(hour) / float(7 * hour) - 1.0).abs() < 0.02, "{}", had.until(hour));
        had = Had { used: had.until(hour), at: hour, held: 0.0 };
        let later = had.until(25 * hour);
        assert!((later * 2.0 - had.used).abs() < 1.0, "{later}");
    }
}
