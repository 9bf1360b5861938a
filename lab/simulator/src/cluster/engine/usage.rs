//! Recent usage of users, for policies with fair share.

use std::collections::BTreeMap;

use tessera_model::Millis;
use tessera_model::spec::Priority;
use tessera_placement::Account;
use tessera_placement::fair::DecayedUsage;

use super::{SimulationRun, TaskPlacement};
use crate::cluster::job::SimulatedJob;

/// The half-life of recent usage, one day. It is the default of a controller (`usage-half-life`).
pub(in crate::cluster) const HALF_LIFE: Millis = Millis::from_secs(86_400);

/// All users; empty if there is only one.
#[derive(Clone, Debug, Default)]
pub(super) struct AccountUsage {
    users: BTreeMap<String, UserAccount>,
}

#[derive(Clone, Copy, Debug)]
struct UserAccount {
    shares: u32,
    usage: DecayedUsage,
}

impl AccountUsage {
    pub(super) fn of(jobs: &[SimulatedJob]) -> Self {
        let mut users: BTreeMap<String, UserAccount> = BTreeMap::new();
        for job in jobs {
            if !users.contains_key(&job.user) {
                let account = UserAccount { shares: job.shares, usage: DecayedUsage::default() };
                users.insert(job.user.clone(), account);
            }
        }
        if users.len() > 1 { Self { users } } else { Self::default() }
    }

    /// Counts slices that a user takes or returns.
    fn take(&mut self, user: &str, slices: f64, now: u64) {
        let Some(account) = self.users.get_mut(user) else { return };
        account.usage.take(slices, Millis::new(now), HALF_LIFE);
    }

    pub(super) fn account(&self, user: &str, now: u64) -> Option<Account> {
        let UserAccount { shares, usage } = *self.users.get(user)?;
        let used = usage.until(Millis::new(now), HALF_LIFE);
        Some(Account { name: user.into(), shares, used, quota: None, member: None })
    }
}

impl SimulationRun<'_> {
    /// Counts a placement that is taken.
    pub(super) fn charge(&mut self, task: usize, spot: &TaskPlacement) {
        let slices = self.held(spot);
        self.usage.take(&self.setup.jobs[task].user, slices, self.now);
    }

    /// Counts a placement that ends.
    pub(super) fn refund(&mut self, task: usize, spot: &TaskPlacement) {
        let slices = self.held(spot);
        self.usage.take(&self.setup.jobs[task].user, -slices, self.now);
    }

    /// Returns a placement's compute slices, by its part of them.
    fn held(&self, spot: &TaskPlacement) -> f64 {
        let part = match (spot.sm, spot.kernel_priority) {
            (Some(sm), _) => f64::from(sm.get()) / 100.0,
            // A filler uses capacity that no other job could use, so it counts by half.
            (None, Some(priority)) if priority > Priority::HIGHEST => 0.5,
            (None, _) => 1.0,
        };
        f64::from(self.slices(spot.gpu, spot.slot)) * part
    }
}
