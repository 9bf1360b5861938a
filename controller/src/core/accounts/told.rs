//! What is told of accounts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_api::types::usage::{AccountUsage, UsageReport, UserUsage};
use tessera_model::{JobId, Millis};
use tessera_placement::fair::{factor, held};

use super::super::Cluster;

/// Jobs and compute slices of one user.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    running: u64,
    waiting: u64,
    held: u32,
}

impl Cluster {
    /// Tells what accounts and their users have had, hold, and may.
    pub fn usage(&self, now: Millis) -> UsageReport {
        let counts = self.counts(now);
        let accounts = &self.accounts;
        let user = |name: &str| {
            let count = counts.get(name).copied().unwrap_or_default();
            UserUsage {
                user: name.to_owned(),
                used_slice_secs: self.book.had(name, accounts, now).duration().as_secs_f64(),
                held_slices: count.held,
                quota_slices: accounts.quota(name),
                running: count.running,
                waiting: count.waiting,
            }
        };
        let mut told: Vec<AccountUsage> = accounts
            .accounts
            .iter()
            .map(|(name, terms)| {
                let users: Vec<UserUsage> = terms.members.iter().map(|name| user(name)).collect();
                total(name, (terms.share, terms.quota), users, true)
            })
            .collect();
        let known: BTreeSet<&str> = self
            .book
            .users()
            .map(|user| &**user)
            .chain(counts.keys().map(|user| &**user))
            .collect();
        let alone = known.into_iter().filter(|user| !accounts.of_user.contains_key(*user));
        told.extend(alone.map(|name| {
            let user = user(name);
            total(name, (1, user.quota_slices), vec![user], false)
        }));
        weigh(&mut told);
        UsageReport {
            fair_share: accounts.fair && self.policy.shares_fairly(),
            half_life_secs: accounts.half_life.map(|half| half.duration().as_secs_f64()),
            accounts: told,
        }
    }

    fn counts(&self, now: Millis) -> BTreeMap<Arc<str>, Count> {
        let mut counts: BTreeMap<Arc<str>, Count> = BTreeMap::new();
        for live in self.live.values() {
            counts.entry(Arc::clone(&live.user)).or_default().running += 1;
        }
        for waiting in self.queue.values() {
            counts.entry(Arc::clone(&waiting.asked.user)).or_default().waiting += 1;
        }
        let owner = |job: JobId| {
            let live = self.live.get(self.attempts.get(&job)?)?;
            Some(Arc::clone(&live.user))
        };
        for (job, slices) in held(&self.view(now)) {
            if let Some(user) = owner(job) {
                counts.entry(user).or_default().held += slices;
            }
        }
        counts
    }
}

fn total(
    name: &str,
    (share, quota_slices): (u32, Option<u32>),
    users: Vec<UserUsage>,
    named: bool,
) -> AccountUsage {
    AccountUsage {
        account: name.to_owned(),
        named,
        share,
        share_part: 0.0,
        used_slice_secs: users.iter().map(|user| user.used_slice_secs).sum(),
        used_part: 0.0,
        factor: 1.0,
        held_slices: users.iter().map(|user| user.held_slices).sum(),
        quota_slices,
        running: users.iter().map(|user| user.running).sum(),
        waiting: users.iter().map(|user| user.waiting).sum(),
        users,
    }
}

fn weigh(accounts: &mut [AccountUsage]) {
    let used: f64 = accounts.iter().map(|account| account.used_slice_secs).sum();
    let shares: f64 = accounts.iter().map(|account| f64::from(account.share)).sum();
    for account in accounts {
        let share = f64::from(account.share);
        account.share_part = share / shares.max(1.0);
        account.used_part = if used > 0.0 { account.used_slice_secs / used } else { 0.0 };
        account.factor = factor((account.used_slice_secs, used), (share, shares));
    }
}
