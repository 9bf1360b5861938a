//! Fair share between accounts: in which order their jobs are considered, and how much an account
//! may hold.
//!
//! Of the most urgent jobs of each account, the next one is of the account that has used least for its shares, including
//! what earlier jobs take in this round. A better priority comes first. Urgency by itself would let a user with short jobs
//! take everything. The order among an account's own jobs is that of their urgency.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use tessera_model::{JobId, Millis};

use super::rounding::float_sum;
use super::waiting::{JobWeight, Key, UrgencyClock, WaitingJobs};
use crate::facts::{Account, JobTable, SliceLimit};
use crate::numbers;
use crate::view::QueuedJob;

/// Compute slices of a whole GPU, in which usage is counted.
pub(super) const SLICES_OF_GPU: f64 = 7.0;

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

    /// Puts the jobs that arrived since into the lines of their accounts.
    fn read_accounts(&mut self, all: &WaitingJobs, jobs: &dyn JobTable) {
        for key in std::mem::take(&mut self.fresh) {
            let Some(job) = all.queue().get(&key) else { continue };
            let name = jobs.account(job.id).map_or_else(|| "".into(), |account| account.name);
            self.account_queues.entry(Arc::clone(&name)).or_default().insert(job.clone());
            self.accounts.insert(key, name);
        }
    }

    /// Returns at most `most` of the jobs that were submitted by then: the oldest of each account, that with the least usage
    /// first, then the second of each.
    pub(super) fn oldest(
        &mut self,
        all: &WaitingJobs,
        jobs: &dyn JobTable,
        submitted_by: Millis,
        most: usize,
    ) -> Vec<QueuedJob> {
        self.read_accounts(all, jobs);
        let lines = self.account_queues.values();
        let mut lines: Vec<_> = lines.map(|line| (usage_of(line, jobs).0, line.oldest())).collect();
        lines.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let mut found: Vec<QueuedJob> = Vec::new();
        while found.len() < most {
            let before = found.len();
            for (_, line) in &mut lines {
                let next = line.next().filter(|job| job.submitted <= submitted_by);
                found.extend(next.filter(|_| found.len() < most).cloned());
            }
            if found.len() == before {
                break;
            }
        }
        found
    }

    /// Returns the most urgent jobs of all accounts, in the order of the accounts' usage.
    pub(super) fn most_urgent(
        &mut self,
        all: &WaitingJobs,
        jobs: &dyn JobTable,
        clock: UrgencyClock,
        most: usize,
        weigh: &mut dyn FnMut(&QueuedJob) -> JobWeight,
    ) -> Vec<QueuedJob> {
        self.read_accounts(all, jobs);
        let mut lines: Vec<AccountLine> = Vec::new();
        for line in self.account_queues.values_mut() {
            let (used, shares) = usage_of(line, jobs);
            line.weigh(weigh);
            let urgent = line.most_urgent(clock, most).into_iter().map(|(_, job)| {
                let work_ms = line.work_ms(&job);
                (job, SLICES_OF_GPU * float_sum(work_ms) / shares)
            });
            lines.push(AccountLine { used, jobs: urgent.collect() });
        }
        let mut order: Vec<QueuedJob> = Vec::new();
        while order.len() < most {
            let waiting = lines.iter_mut().filter(|line| !line.jobs.is_empty());
            let next = waiting.min_by(|a, b| {
                let rank = |line: &AccountLine| line.jobs.front().map(|(job, _)| job.queue_rank);
                rank(a).cmp(&rank(b)).then_with(|| a.used.total_cmp(&b.used))
            });
            let Some(line) = next else { break };
            let Some((job, takes)) = line.jobs.pop_front() else { break };
            line.used += takes;
            order.push(job);
        }
        order
    }
}

/// Returns what the account of some waiting jobs has used for each of its shares, in milliseconds of a compute slice, and
/// its shares.
fn usage_of(line: &WaitingJobs, jobs: &dyn JobTable) -> (f64, f64) {
    let first = line.queue().keys().next().map(|(_, job)| *job);
    let account = first.and_then(|job| jobs.account(job));
    let shares = account.as_ref().map_or(1.0, |account| f64::from(account.shares.max(1)));
    (account.as_ref().map_or(0.0, Account::usage_per_share), shares)
}

/// The most urgent jobs of an account.
#[derive(Debug)]
struct AccountLine {
    /// What the account has used for each of its shares, in milliseconds of a compute slice.
    used: f64,
    /// The most urgent first, each with what it takes in the same unit.
    jobs: VecDeque<(QueuedJob, f64)>,
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
