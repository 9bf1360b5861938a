//! Recent usage of accounts, for policies with fair share.

use std::collections::BTreeMap;

use tessera_model::Millis;
use tessera_model::spec::Priority;
use tessera_placement::Account;
use tessera_placement::fair::DecayedUsage;

use super::{SimulationRun, TaskPlacement};
use crate::cluster::job::SimulatedJob;

/// The half-life of recent usage, one day. It is the default of a controller (`usage-half-life`).
pub const HALF_LIFE: Millis = Millis::from_secs(86_400);

/// All accounts, which are users where a job names none; empty if there is only one.
#[derive(Clone, Debug, Default)]
pub(super) struct AccountUsage {
    accounts: BTreeMap<String, SharedAccount>,
}

#[derive(Clone, Copy, Debug)]
struct SharedAccount {
    shares: u32,
    usage: DecayedUsage,
}

impl AccountUsage {
    pub(super) fn of(jobs: &[SimulatedJob]) -> Self {
        let mut accounts: BTreeMap<String, SharedAccount> = BTreeMap::new();
        for job in jobs {
            if !accounts.contains_key(job.account()) {
                let account = SharedAccount { shares: job.shares, usage: DecayedUsage::default() };
                accounts.insert(job.account().to_owned(), account);
            }
        }
        if accounts.len() > 1 { Self { accounts } } else { Self::default() }
    }

    /// Counts slices that an account takes or returns.
    fn take(&mut self, account: &str, slices: f64, now: u64) {
        let Some(account) = self.accounts.get_mut(account) else { return };
        account.usage.take(slices, Millis::new(now), HALF_LIFE);
    }

    pub(super) fn account(&self, account: &str, now: u64) -> Option<Account> {
        let SharedAccount { shares, usage } = *self.accounts.get(account)?;
        let used = usage.until(Millis::new(now), HALF_LIFE);
        Some(Account { name: account.into(), shares, used, quota: None, member: None })
    }
}

impl SimulationRun<'_> {
    /// Counts a placement that is taken.
    pub(super) fn charge(&mut self, task: usize, spot: &TaskPlacement) {
        let slices = self.held(spot);
        self.usage.take(self.setup.jobs[task].account(), slices, self.now);
    }

    /// Counts a placement that ends.
    pub(super) fn refund(&mut self, task: usize, spot: &TaskPlacement) {
        let slices = self.held(spot);
        self.usage.take(self.setup.jobs[task].account(), -slices, self.now);
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
