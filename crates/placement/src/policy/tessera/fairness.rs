//! Fair share between accounts: whose jobs are looked at first, and how much an account may hold.
//!
//! An account that has had more than its part weighs less, by half for each time that part: the
//! factor is `2^-(u/s)`, with `u` its part of the decayed usage of all accounts that wait and `s`
//! its part of their shares. (Source: the classic fair-share factor of Slurm's multifactor
//! priority.) It multiplies the urgency of all its jobs, so that among an account's own jobs the
//! order stays what it was; and since a wait grows without end, no account is shut out for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_model::JobId;

use super::float;
use super::waiting::{Clock, Key, Waiting, Weight};
use crate::forecast::{Account, Forecast};
use crate::view::QueuedJob;

/// Jobs that wait, by account.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    lines: BTreeMap<Arc<str>, Waiting>,
    accounts: BTreeMap<Key, Arc<str>>,
    /// Those whose account was not asked for yet.
    fresh: BTreeSet<Key>,
}

impl Lines {
    pub(super) fn insert(&mut self, job: &QueuedJob) {
        self.fresh.insert((job.priority, job.id));
    }

    pub(super) fn remove(&mut self, job: &QueuedJob) {
        let key = (job.priority, job.id);
        self.fresh.remove(&key);
        let Some(account) = self.accounts.remove(&key) else { return };
        if let Some(line) = self.lines.get_mut(&account) {
            line.remove(job);
            if line.queue().is_empty() {
                self.lines.remove(&account);
            }
        }
    }

    /// Returns the most urgent jobs of all accounts, each by its account's factor.
    pub(super) fn most_urgent(
        &mut self,
        all: &Waiting,
        forecast: &dyn Forecast,
        clock: Clock,
        most: usize,
        weigh: &mut dyn FnMut(&QueuedJob) -> Weight,
    ) -> Vec<QueuedJob> {
        for key in std::mem::take(&mut self.fresh) {
            let Some(job) = all.queue().get(&key) else { continue };
            let name = forecast.account(job.id).map_or_else(|| "".into(), |account| account.name);
            self.lines.entry(Arc::clone(&name)).or_default().insert(job.clone());
            self.accounts.insert(key, name);
        }
        let known: Vec<Option<Account>> = self
            .lines
            .values()
            .map(|line| forecast.account(line.queue().keys().next()?.1))
            .collect();
        let mut order: Vec<(f64, QueuedJob)> = Vec::new();
        for (line, factor) in self.lines.values_mut().zip(factors(&known)) {
            line.weigh(weigh);
            let urgent = line.most_urgent(clock, most);
            order.extend(urgent.into_iter().map(|(urgency, job)| (urgency * factor, job)));
        }
        order.sort_by(|a, b| {
            b.0.total_cmp(&a.0).then_with(|| (a.1.priority, a.1.id).cmp(&(b.1.priority, b.1.id)))
        });
        order.truncate(most);
        order.into_iter().map(|(_, job)| job).collect()
    }
}

fn factors(accounts: &[Option<Account>]) -> Vec<f64> {
    let known = || accounts.iter().flatten();
    let used: f64 = known().map(|account| float(account.used)).sum();
    let shares: f64 = known().map(|account| f64::from(account.shares)).sum();
    let factor = |account: &Option<Account>| {
        let Some(account) = account else { return 1.0 };
        let part = f64::from(account.shares) / shares.max(1.0);
        let had = float(account.used) / used.max(1.0);
        // An account with no shares at all comes after everyone, and is not shut out either.
        2.0_f64.powf(-(had / part.max(0.001)).min(60.0))
    };
    accounts.iter().map(factor).collect()
}

/// What accounts hold, in compute slices, with what this round promised on top; for quotas.
#[derive(Clone, Debug, Default)]
pub(super) struct Quotas {
    accounts: BTreeMap<JobId, Option<Account>>,
    /// Empty until somebody with a quota is met.
    held: Option<BTreeMap<Arc<str>, u32>>,
}

/// A job with the compute slices that it has.
pub(super) type Held = (JobId, u32);

impl Quotas {
    /// Returns a job's account, if it has a quota.
    pub(super) fn account(&mut self, forecast: &dyn Forecast, job: JobId) -> Option<Account> {
        let account = self.accounts.entry(job).or_insert_with(|| forecast.account(job));
        account.as_ref().filter(|account| account.quota.is_some()).cloned()
    }

    /// Returns how many slices an account may still take. `seats` is who has what as the round
    /// begins; it is read once, and only if somebody has a quota.
    pub(super) fn left(
        &mut self,
        forecast: &dyn Forecast,
        account: &Account,
        seats: &mut dyn Iterator<Item = Held>,
    ) -> u32 {
        if self.held.is_none() {
            let mut held: BTreeMap<Arc<str>, u32> = BTreeMap::new();
            for (job, slices) in seats {
                if let Some(account) = self.account(forecast, job) {
                    *held.entry(account.name).or_default() += slices;
                }
            }
            self.held = Some(held);
        }
        let held = self.held.as_ref().and_then(|held| held.get(&account.name)).copied();
        account.quota.unwrap_or(u32::MAX).saturating_sub(held.unwrap_or(0))
    }

    /// Tells whether no account takes more on a GPU than it may: what it takes beyond what its
    /// jobs have there must be left to it.
    pub(super) fn allows(
        &mut self,
        forecast: &dyn Forecast,
        before: &[Held],
        after: &[Held],
        seats: &mut dyn Iterator<Item = Held>,
    ) -> bool {
        for (account, more) in self.changes(forecast, before, after).into_values() {
            let left = self.left(forecast, &account, seats);
            if more > i64::from(left) && more > 0 {
                return false;
            }
        }
        true
    }

    /// Counts what accounts take or give back on a GPU.
    pub(super) fn take(&mut self, forecast: &dyn Forecast, before: &[Held], after: &[Held]) {
        if self.held.is_none() {
            return;
        }
        for (name, (_, more)) in self.changes(forecast, before, after) {
            let Some(held) = &mut self.held else { return };
            let entry = held.entry(name).or_default();
            *entry = u32::try_from((i64::from(*entry) + more).max(0)).unwrap_or(u32::MAX);
        }
    }

    fn changes(
        &mut self,
        forecast: &dyn Forecast,
        before: &[Held],
        after: &[Held],
    ) -> BTreeMap<Arc<str>, (Account, i64)> {
        let mut changes: BTreeMap<Arc<str>, (Account, i64)> = BTreeMap::new();
        let signed = before.iter().map(|held| (held, -1)).chain(after.iter().map(|held| (held, 1)));
        for ((job, slices), sign) in signed {
            if let Some(account) = self.account(forecast, *job) {
                let name = Arc::clone(&account.name);
                changes.entry(name).or_insert((account, 0)).1 += sign * i64::from(*slices);
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use tessera_model::Millis;

    use super::*;

    fn account(name: &str, shares: u32, hours: u64) -> Option<Account> {
        let used = Millis::from_secs(hours * 3_600);
        Some(Account { name: name.into(), shares, used, quota: None })
    }

    #[test]
    fn who_had_its_part_weighs_half_and_who_had_nothing_weighs_all() {
        let found = factors(&[account("a", 1, 50), account("b", 1, 50)]);
        assert_eq!(found, [0.5, 0.5]);
        let found = factors(&[account("a", 1, 100), account("b", 1, 0)]);
        assert_eq!(found, [0.25, 1.0]);
        let found = factors(&[account("a", 3, 75), account("b", 1, 25)]);
        assert_eq!(found, [0.5, 0.5]);
        assert_eq!(factors(&[account("a", 1, 0), None]), [1.0, 1.0]);
    }
}
