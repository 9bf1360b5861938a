//! Recent usage of users, for policies with fair share.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::Millis;
use tessera_model::spec::Priority;
use tessera_placement::Account;
use tessera_placement::fair::DecayedUsage;

use super::{SimulationRun, TaskPlacement};
use crate::cluster::job::SimulatedJob;

/// After which time half of what was had counts no more: a day, so that yesterday's hunger is
/// nearly forgiven. The same as a controller's default (`usage-half-life`).
const HALF_LIFE: Millis = Millis::from_secs(86_400);

/// All users; empty where there is but one.
#[derive(Clone, Debug, Default)]
pub(super) struct AccountUsage {
    users: BTreeMap<String, DecayedUsage>,
}

impl AccountUsage {
    pub(super) fn of(jobs: &[SimulatedJob]) -> Self {
        let names: BTreeSet<&str> = jobs.iter().map(|job| job.user.as_str()).collect();
        let users = names.iter().map(|name| ((*name).to_owned(), DecayedUsage::default()));
        if names.len() > 1 { Self { users: users.collect() } } else { Self::default() }
    }

    /// A user takes slices, or gives them back.
    fn take(&mut self, user: &str, slices: f64, now: u64) {
        let Some(had) = self.users.get_mut(user) else { return };
        had.take(slices, Millis::new(now), HALF_LIFE);
    }

    pub(super) fn account(&self, user: &str, now: u64) -> Option<Account> {
        let had = self.users.get(user)?;
        let used = had.until(Millis::new(now), HALF_LIFE);
        Some(Account { name: user.into(), shares: 1, used, quota: None, member: None })
    }
}

impl SimulationRun<'_> {
    /// Counts a placement that is taken.
    pub(super) fn charge(&mut self, task: usize, spot: &TaskPlacement) {
        let slices = self.held(spot);
        self.usage.take(&self.setup.jobs[task].user, slices, self.now);
    }

    /// Counts a placement that is given back.
    pub(super) fn refund(&mut self, task: usize, spot: &TaskPlacement) {
        let slices = self.held(spot);
        self.usage.take(&self.setup.jobs[task].user, -slices, self.now);
    }

    /// Returns a placement's compute slices, by its part of them.
    fn held(&self, spot: &TaskPlacement) -> f64 {
        let part = match (spot.sm, spot.kernel_priority) {
            (Some(sm), _) => f64::from(sm.get()) / 100.0,
            // Who fills gaps has what nobody else could have had; a half is what others may share.
            (None, Some(priority)) if priority > Priority::HIGHEST => 0.5,
            (None, _) => 1.0,
        };
        f64::from(self.slices(spot.gpu, spot.slot)) * part
    }
}
