//! What accounts and their users hold and used recently.

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

fn weigh(accounts: &mut [AccountUsage]) {
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
    /// Returns what accounts and their users used recently, hold, and may hold.
    pub fn usage(&self, now: Millis) -> UsageReport {
        let counts = self.counts(now);
        let accounts = &self.accounting.accounts;
        let user = |name: &str| {
            let count = counts.get(name).copied().unwrap_or_default();
            UserUsage {
                user: name.to_owned(),
                recent_slice_secs: self
                    .accounting
                    .ledger
                    .had(name, accounts, now)
                    .duration()
                    .as_secs_f64(),
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
            .accounting
            .ledger
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
            fair_share: accounts.fair && self.planner.policy.shares_fairly(),
            half_life_secs: accounts.half_life.map(|half| half.duration().as_secs_f64()),
            accounts: told,
        }
    }

    fn counts(&self, now: Millis) -> BTreeMap<Arc<str>, UserCounts> {
        let mut counts: BTreeMap<Arc<str>, UserCounts> = BTreeMap::new();
        for live in self.attempts.live.values() {
            counts.entry(Arc::clone(&live.user)).or_default().running += 1;
        }
        for waiting in self.queue.waiting.values() {
            counts.entry(Arc::clone(&waiting.asked.user)).or_default().waiting += 1;
        }
        let owner = |job: JobId| {
            let live = self.attempts.live.get(self.attempts.by_job.get(&job)?)?;
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

#[cfg(test)]
impl ClusterState {
    /// Checks that the ledger has what the users' attempts hold.
    pub(crate) fn check_book(&self) {
        for (user, had) in &self.accounting.ledger.users {
            let own = self.attempts.live.values().filter(|live| live.user == *user);
            let held: f64 = own.map(|live| live.weight).sum();
            assert!((held - had.held()).abs() < 1e-6, "{user} holds {held}, not {had:?}");
        }
        let known = |live: &&crate::state::attempts::LiveAttempt| {
            self.accounting.ledger.users.contains_key(&live.user)
        };
        assert_eq!(self.attempts.live.values().filter(known).count(), self.attempts.live.len());
    }
}
