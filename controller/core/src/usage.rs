//! The held slices and the recent usage of accounts and their users.

use crate::state::ClusterState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_api_types::{AccountUsage, UsageReport, UserUsage};
use tessera_model::{JobId, Millis};
use tessera_placement::fair::{factor, held};

/// Jobs and compute slices of one user.
#[derive(Clone, Copy, Debug, Default)]
struct UserCounts {
    running: u64,
    waiting: u64,
    held: u32,
}

fn account_usage(
    name: &str,
    (share, quota_slices): (u32, Option<u32>),
    users: Vec<UserUsage>,
    named: bool,
) -> AccountUsage {
    AccountUsage {
        account: name.to_owned(),
        named,
        share,
        norm_shares: 0.0,
        recent_slice_secs: users.iter().map(|user| user.recent_slice_secs).sum(),
        effective_usage: 0.0,
        factor: 1.0,
        held_slices: users.iter().map(|user| user.held_slices).sum(),
        quota_slices,
        running: users.iter().map(|user| user.running).sum(),
        waiting: users.iter().map(|user| user.waiting).sum(),
        users,
    }
}

fn add_fair_shares(accounts: &mut [AccountUsage]) {
    let used: f64 = accounts.iter().map(|account| account.recent_slice_secs).sum();
    let shares: f64 = accounts.iter().map(|account| f64::from(account.share)).sum();
    for account in accounts {
        let share = f64::from(account.share);
        account.norm_shares = share / shares.max(1.0);
        account.effective_usage = if used > 0.0 { account.recent_slice_secs / used } else { 0.0 };
        account.factor = factor((account.recent_slice_secs, used), (share, shares));
    }
}

impl ClusterState {
    /// Returns the recent usage, the held slices and the quotas of accounts and their users.
    pub fn usage(&self, now: Millis) -> UsageReport {
        let counts = self.count_by_user(now);
        let accounts = &self.accounting.accounts;
        let user = |name: &str| {
            let count = counts.get(name).copied().unwrap_or_default();
            UserUsage {
                user: name.to_owned(),
                recent_slice_secs: self
                    .accounting
                    .ledger
                    .recent_usage(name, accounts, now)
                    .duration()
                    .as_secs_f64(),
                held_slices: count.held,
                quota_slices: accounts.quota(name),
                running: count.running,
                waiting: count.waiting,
            }
        };
        let mut usage: Vec<AccountUsage> = accounts
            .accounts
            .iter()
            .map(|(name, terms)| {
                let users: Vec<UserUsage> = terms.members.iter().map(|name| user(name)).collect();
                account_usage(name, (terms.share, terms.quota), users, true)
            })
            .collect();
        let known: BTreeSet<&str> = self
            .accounting
            .ledger
            .users()
            .map(|user| &**user)
            .chain(counts.keys().map(|user| &**user))
            .collect();
        let alone = known.into_iter().filter(|user| !accounts.of_user.contains_key(*user));
        usage.extend(alone.map(|name| {
            let user = user(name);
            account_usage(name, (1, user.quota_slices), vec![user], false)
        }));
        add_fair_shares(&mut usage);
        UsageReport {
            fair_share: accounts.fair && self.planner.policy.shares_fairly(),
            half_life_secs: accounts.half_life.map(|half| half.duration().as_secs_f64()),
            accounts: usage,
        }
    }

    fn count_by_user(&self, now: Millis) -> BTreeMap<Arc<str>, UserCounts> {
        let mut counts: BTreeMap<Arc<str>, UserCounts> = BTreeMap::new();
        for live in self.attempts.live.values() {
            counts.entry(Arc::clone(&live.user)).or_default().running += 1;
        }
        for waiting in self.queue.waiting.values() {
            counts.entry(Arc::clone(&waiting.job.user)).or_default().waiting += 1;
        }
        let owner = |job: JobId| Some(Arc::clone(&self.attempts.of_job(job)?.user));
        for (job, slices) in held(&self.view(now)) {
            if let Some(user) = owner(job) {
                counts.entry(user).or_default().held += slices;
            }
        }
        counts
    }
}

#[cfg(test)]
impl ClusterState {
    /// Checks that the ledger equals the slices that the users' attempts hold.
    pub(crate) fn check_ledger(&self) {
        for (user, usage) in &self.accounting.ledger.users {
            let own = self.attempts.live.values().filter(|live| live.user == *user);
            let held: f64 = own.map(|live| live.weight).sum();
            assert!((held - usage.held()).abs() < 1e-6, "{user} holds {held}, not {usage:?}");
        }
        let known = |live: &&crate::state::attempts::LiveAttempt| {
            self.accounting.ledger.users.contains_key(&live.user)
        };
        assert_eq!(self.attempts.live.values().filter(known).count(), self.attempts.live.len());
    }
}
