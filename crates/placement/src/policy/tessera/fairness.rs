//! Fair share between accounts: in which order their jobs are considered, and how much an account
//! may hold.
//!
//! An account's factor ([`crate::fair::factor`]) multiplies the urgency of all its jobs, so that
//! the order among an account's own jobs doesn't change. Urgency grows with waiting time without
//! limit, so no account is shut out forever.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use tessera_model::JobId;

use super::waiting::{JobWeight, Key, UrgencyClock, WaitingJobs};
use crate::facts::{Account, JobTable, SliceLimit};
use crate::fair::factors;
use crate::numbers;
use crate::view::QueuedJob;

/// The waiting jobs, by account.
#[derive(Clone, Debug, Default)]
pub(super) struct AccountQueues {
    account_queues: BTreeMap<Arc<str>, WaitingJobs>,
    accounts: BTreeMap<Key, Arc<str>>,
    /// Those whose account was not requested yet.
    fresh: BTreeSet<Key>,
}

impl AccountQueues {
    pub(super) fn insert(&mut self, job: &QueuedJob) {
        self.fresh.insert(job.key());
    }

    pub(super) fn remove(&mut self, job: &QueuedJob) {
        let key = job.key();
        self.fresh.remove(&key);
        let Some(account) = self.accounts.remove(&key) else { return };
        if let Some(line) = self.account_queues.get_mut(&account) {
            line.remove(job);
            if line.queue().is_empty() {
                self.account_queues.remove(&account);
            }
        }
    }

    /// Returns the most urgent jobs of all accounts, each by its account's factor.
    pub(super) fn most_urgent(
        &mut self,
        all: &WaitingJobs,
        jobs: &dyn JobTable,
        clock: UrgencyClock,
        most: usize,
        weigh: &mut dyn FnMut(&QueuedJob) -> JobWeight,
    ) -> Vec<QueuedJob> {
        for key in std::mem::take(&mut self.fresh) {
            let Some(job) = all.queue().get(&key) else { continue };
            let name = jobs.account(job.id).map_or_else(|| "".into(), |account| account.name);
            self.account_queues.entry(Arc::clone(&name)).or_default().insert(job.clone());
            self.accounts.insert(key, name);
        }
        let known: Vec<Option<Account>> = self
            .account_queues
            .values()
            .map(|line| jobs.account(line.queue().keys().next()?.1))
            .collect();
        let mut order: Vec<(f64, QueuedJob)> = Vec::new();
        for (line, factor) in self.account_queues.values_mut().zip(factors(&known)) {
            line.weigh(weigh);
            let urgent = line.most_urgent(clock, most);
            order.extend(urgent.into_iter().map(|(urgency, job)| (urgency * factor, job)));
        }
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.key().cmp(&b.1.key())));
        order.truncate(most);
        order.into_iter().map(|(_, job)| job).collect()
    }
}

/// What accounts hold, in compute slices, including the placements that this round plans; for
/// quotas.
#[derive(Clone, Debug, Default)]
pub(super) struct SearchQuotas {
    limits: BTreeMap<JobId, Rc<[SliceLimit]>>,
    /// Empty until the first job with a quota is considered.
    held: Option<BTreeMap<Arc<str>, u32>>,
}

/// A job with the compute slices that it has.
pub(super) type Held = (JobId, u32);

impl SearchQuotas {
    /// Returns the limits of a job: its account's quota, and its user's quota within the account.
    pub(super) fn limits(&mut self, jobs: &dyn JobTable, job: JobId) -> Rc<[SliceLimit]> {
        let limits = || jobs.account(job).iter().flat_map(Account::limits).collect();
        Rc::clone(self.limits.entry(job).or_insert_with(limits))
    }

    /// Returns how many slices may still be taken under a limit. `placements` has the placements at
    /// the start of the round; it is read once, and only if a quota exists.
    pub(super) fn left(
        &mut self,
        jobs: &dyn JobTable,
        limit: &SliceLimit,
        placements: &mut dyn Iterator<Item = Held>,
    ) -> u32 {
        if self.held.is_none() {
            let mut held: BTreeMap<Arc<str>, u32> = BTreeMap::new();
            for (job, slices) in placements {
                for limit in &*self.limits(jobs, job) {
                    *held.entry(Arc::clone(&limit.name)).or_default() += slices;
                }
            }
            self.held = Some(held);
        }
        let held = self.held.as_ref().and_then(|held| held.get(&limit.name)).copied();
        limit.slices.saturating_sub(held.unwrap_or(0))
    }

    /// Returns whether a plan for a GPU keeps all quotas: what an account takes beyond what its
    /// jobs have there must not exceed what its quota leaves.
    pub(super) fn allows(
        &mut self,
        jobs: &dyn JobTable,
        before: &[Held],
        after: &[Held],
        placements: &mut dyn Iterator<Item = Held>,
    ) -> bool {
        for (limit, more) in self.changes(jobs, before, after).into_values() {
            let left = self.left(jobs, &limit, placements);
            if more > i64::from(left) && more > 0 {
                return false;
            }
        }
        true
    }

    /// Counts what accounts take or give back on a GPU.
    pub(super) fn take(&mut self, jobs: &dyn JobTable, before: &[Held], after: &[Held]) {
        if self.held.is_none() {
            return;
        }
        for (name, (_, more)) in self.changes(jobs, before, after) {
            let Some(held) = &mut self.held else { return };
            let entry = held.entry(name).or_default();
            *entry = numbers::slices_after(*entry, more);
        }
    }

    fn changes(
        &mut self,
        jobs: &dyn JobTable,
        before: &[Held],
        after: &[Held],
    ) -> BTreeMap<Arc<str>, (SliceLimit, i64)> {
        let mut changes: BTreeMap<Arc<str>, (SliceLimit, i64)> = BTreeMap::new();
        let signed = before.iter().map(|held| (held, -1)).chain(after.iter().map(|held| (held, 1)));
        for ((job, slices), sign) in signed {
            for limit in &*self.limits(jobs, *job) {
                let name = Arc::clone(&limit.name);
                changes.entry(name).or_insert_with(|| (limit.clone(), 0)).1 +=
                    sign * i64::from(*slices);
            }
        }
        changes
    }
}
