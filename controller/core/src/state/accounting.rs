//! Recent usage by user, updated when attempts begin and end.

use crate::accounts::Accounts;
use crate::state::attempts::LiveAttempt;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_model::Millis;
use tessera_placement::fair::DecayedUsage;

/// Quotas of accounts, and the recent usage of their users.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounting {
    pub(crate) accounts: Accounts,
    pub(crate) ledger: UsageLedger,
}

/// A half-life without any effect: a thousand years, in milliseconds.
const FOREVER: Millis = Millis::from_secs(1_000 * 365 * 86_400);

/// Usage by user, which decays with a half-life.
#[derive(Clone, Debug, Default)]
pub struct UsageLedger {
    pub(crate) users: BTreeMap<Arc<str>, DecayedUsage>,
}

impl UsageLedger {
    /// Starts from earlier usage, and keeps the slices that users hold now.
    pub(crate) fn begin(
        &mut self,
        earlier: Vec<(String, Millis)>,
        accounts: &Accounts,
        now: Millis,
    ) {
        let held: Vec<(Arc<str>, f64)> =
            self.users.iter().map(|(user, usage)| (Arc::clone(user), usage.held())).collect();
        self.users.clear();
        for (user, used) in earlier {
            self.users.insert(user.into(), DecayedUsage::new(used, 0.0, now));
        }
        for (user, slices) in held {
            self.take(&user, slices, accounts, now);
        }
    }

    /// Adds compute slices to those that a user holds; a negative number removes them.
    pub(crate) fn take(&mut self, user: &Arc<str>, slices: f64, accounts: &Accounts, now: Millis) {
        let usage = self.users.entry(Arc::clone(user)).or_default();
        usage.take(slices, now, accounts.half_life.unwrap_or(FOREVER));
    }

    /// Removes all held slices: a reload counts again what each user holds.
    pub(crate) fn release_all(&mut self, accounts: &Accounts, now: Millis) {
        for usage in self.users.values_mut() {
            usage.take(-usage.held(), now, accounts.half_life.unwrap_or(FOREVER));
        }
    }

    /// Returns a user's recent usage, as time on one compute slice.
    pub(crate) fn recent_usage(&self, user: &str, accounts: &Accounts, now: Millis) -> Millis {
        let half_life = accounts.half_life.unwrap_or(FOREVER);
        self.users.get(user).map_or(Millis::ZERO, |usage| usage.until(now, half_life))
    }

    /// Returns the users who hold slices now or held some recently.
    pub(crate) fn users(&self) -> impl Iterator<Item = &Arc<str>> {
        self.users.keys()
    }
}

impl Accounting {
    /// Counts an attempt in its user's usage from now on.
    pub(crate) fn charge(&mut self, user: &Arc<str>, weight: f64, now: Millis) {
        self.ledger.take(user, weight, &self.accounts, now);
    }

    /// Takes the usage of an attempt in a period back: its user is not charged for it.
    pub(crate) fn forgive(&mut self, live: &LiveAttempt, from: Millis, until: Millis) {
        let half_life = self.accounts.half_life.unwrap_or(FOREVER);
        if let Some(usage) = self.ledger.users.get_mut(&live.user) {
            usage.forgive(live.weight, (from, until), half_life);
        }
    }

    /// Stops counting an attempt in its user's usage.
    pub(crate) fn refund(&mut self, live: &LiveAttempt, now: Millis) {
        self.ledger.take(&live.user, -live.weight, &self.accounts, now);
    }
}
