//! Accounts: their members, their shares, and what each may hold at once.
//!
//! A user without an account counts as an account with one share.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_model::Millis;
use tessera_placement::{Account, SliceLimit};

/// The key of the quota for users without their own quota.
const EVERYBODY: &str = "*";

/// The prefix of accounts' names where users' names are used, too.
const PREFIX: &str = "account ";

/// Maximum number of accounts, members and user quotas: enough for the users of a large site and as
/// many service accounts.
pub const ENTRIES_MAX: usize = 10_000;

/// Longest name of an account, in bytes, so that it fits into tables.
const NAME_MAX: usize = 64;

/// An account, as in the settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountSettings {
    /// The users whose jobs it pays for.
    pub members: Vec<String>,
    /// The users who see and command the jobs of all members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub coordinators: Vec<String>,
    /// Its shares, relative to those of the other accounts.
    #[serde(default = "one_share")]
    pub share: u32,
    /// Maximum number of compute slices that all of its members' jobs may hold at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u32>,
}

const fn one_share() -> u32 {
    1
}

/// Why settings of accounts are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAccounts {
    /// A user is in two accounts.
    #[error("user {user} is in the accounts {one} and {other}: leave it in one of them")]
    TwoAccounts {
        /// The user who is in both.
        user: String,
        /// One of the accounts.
        one: String,
        /// The other account.
        other: String,
    },
    /// An account has no shares.
    #[error(
        "account {account} has a share of 0: write 1 or more (set quota = 0 for an account that \
         may run nothing)"
    )]
    NoShare {
        /// The account whose share is 0.
        account: String,
    },
    /// An account has no members.
    #[error(
        "account {account} has no members: write members = [\"USER\", …], or leave the account out"
    )]
    NoMembers {
        /// The account that is empty.
        account: String,
    },
    /// The name of an account is not usable.
    #[error(
        "{name:?} is not an account name: write 1 to {NAME_MAX} letters, digits, dots, hyphens or \
         underscores"
    )]
    BadName {
        /// The name that can't be used.
        name: String,
    },
    /// A member is not a user's name.
    #[error(
        "account {account} has {user:?} among its members: write users' names, each as its own \
         entry"
    )]
    BadMember {
        /// The account that has such a member.
        account: String,
        /// The name.
        user: String,
    },
    /// There are more entries than are accepted.
    #[error("{found} {what} exceed the maximum of {ENTRIES_MAX}")]
    TooMany {
        /// The number of entries.
        found: usize,
        /// The kind of entries.
        what: &'static str,
    },
    /// The half-life is zero.
    #[error("a half-life of zero would forget all usage at once: write a time such as 1d")]
    NoHalfLife,
}

/// The accounts with their members, and the quotas of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounts {
    pub(crate) quotas: BTreeMap<String, u32>,
    pub(crate) accounts: BTreeMap<String, AccountSettings>,
    /// By user: the account's name, and the name under which its jobs count.
    pub(crate) of_user: BTreeMap<String, (String, Arc<str>)>,
    /// The half-life of usage; `None` if usage never decays.
    pub(crate) half_life: Option<Millis>,
    pub(crate) fair: bool,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            quotas: BTreeMap::new(),
            accounts: BTreeMap::new(),
            of_user: BTreeMap::new(),
            half_life: Some(Self::HALF_LIFE),
            fair: true,
        }
    }
}

/// Returns the name under which a user's jobs are counted, which no account has.
pub(crate) fn alone(user: &Arc<str>) -> Arc<str> {
    if user.starts_with(PREFIX) { format!("user {user}").into() } else { Arc::clone(user) }
}

/// Returns the accounts by member.
pub(crate) fn members(
    accounts: &BTreeMap<String, AccountSettings>,
) -> Result<BTreeMap<String, (String, Arc<str>)>, InvalidAccounts> {
    let mut of_user: BTreeMap<String, (String, Arc<str>)> = BTreeMap::new();
    for (account, terms) in accounts {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
        if account.is_empty() || account.len() > NAME_MAX || !account.chars().all(plain) {
            return Err(InvalidAccounts::BadName { name: account.clone() });
        }
        if terms.share == 0 {
            return Err(InvalidAccounts::NoShare { account: account.clone() });
        }
        if terms.members.is_empty() {
            return Err(InvalidAccounts::NoMembers { account: account.clone() });
        }
        let name: Arc<str> = format!("{PREFIX}{account}").into();
        for user in terms.members.iter().chain(&terms.coordinators) {
            if user.is_empty() || user == EVERYBODY || user.trim() != user {
                let (account, user) = (account.clone(), user.clone());
                return Err(InvalidAccounts::BadMember { account, user });
            }
        }
        for user in &terms.members {
            let entry = (account.clone(), Arc::clone(&name));
            if let Some((one, _)) = of_user.insert(user.clone(), entry) {
                let (user, other) = (user.clone(), account.clone());
                return Err(InvalidAccounts::TwoAccounts { user, one, other });
            }
        }
    }
    Ok(of_user)
}

impl Accounts {
    /// The default half-life of usage: past usage is weighted by half for each day of age.
    pub const HALF_LIFE: Millis = Millis::from_secs(86_400);

    /// Reads accounts and quotas of users (`*` means all users without their own quota).
    ///
    /// # Errors
    ///
    /// [`InvalidAccounts`] states what is wrong and what is expected.
    pub fn new(
        quotas: BTreeMap<String, u32>,
        accounts: BTreeMap<String, AccountSettings>,
        half_life: Option<Millis>,
    ) -> Result<Self, InvalidAccounts> {
        for (found, what) in [(quotas.len(), "quotas"), (accounts.len(), "accounts")] {
            if found > ENTRIES_MAX {
                return Err(InvalidAccounts::TooMany { found, what });
            }
        }
        let found = accounts.values().map(|terms| terms.members.len()).sum();
        if found > ENTRIES_MAX {
            return Err(InvalidAccounts::TooMany { found, what: "members of accounts" });
        }
        if half_life == Some(Millis::ZERO) {
            return Err(InvalidAccounts::NoHalfLife);
        }
        let of_user = members(&accounts)?;
        Ok(Self { quotas, accounts, of_user, half_life, fair: true })
    }

    /// Turns fair share off: jobs are served by priority and number alone.
    #[must_use]
    pub fn in_turn(self) -> Self {
        Self { fair: false, ..self }
    }

    /// Returns these accounts with the half-life of others.
    #[must_use]
    pub(crate) fn with_half_life_of(self, others: &Self) -> Self {
        Self { half_life: others.half_life, ..self }
    }

    /// Returns whether recent usage counts in the service order.
    pub const fn fair(&self) -> bool {
        self.fair
    }

    /// Returns the members of the accounts that a user coordinates, without the user.
    pub fn coordinated_by(&self, user: &str) -> Vec<String> {
        let own =
            self.accounts.values().filter(|terms| terms.coordinators.iter().any(|c| c == user));
        let members = own.flat_map(|terms| &terms.members).filter(|member| *member != user);
        members.cloned().collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the name of the account that pays for a user's jobs, if the settings name one.
    pub fn account_of(&self, user: &str) -> Option<&str> {
        self.of_user.get(user).map(|(account, _)| &**account)
    }

    /// Returns the limits on what a user's jobs hold at once.
    pub fn limits(&self, user: &str) -> impl Iterator<Item = SliceLimit> {
        let own = self.quota(user).map(|slices| SliceLimit { name: alone(&user.into()), slices });
        let account = self.of_user.get(user).and_then(|(account, name)| {
            let slices = self.accounts.get(account)?.quota?;
            Some(SliceLimit { name: Arc::clone(name), slices })
        });
        own.into_iter().chain(account)
    }

    pub(crate) fn quota(&self, user: &str) -> Option<u32> {
        self.quotas.get(user).or_else(|| self.quotas.get(EVERYBODY)).copied()
    }

    /// Returns the account of a user's jobs; `had` returns a user's recent usage.
    pub(crate) fn account(
        &self,
        user: &Arc<str>,
        recent_usage: impl Fn(&str) -> Millis,
    ) -> Account {
        let used = |user: &str| if self.fair { recent_usage(user) } else { Millis::ZERO };
        let found = self.of_user.get(&**user).and_then(|(account, name)| {
            let terms = self.accounts.get(account)?;
            let all = terms.members.iter().map(|member| used(member));
            let used = all.fold(Millis::ZERO, Millis::plus);
            let own = self.quota(user);
            let member = own.map(|slices| SliceLimit { name: alone(user), slices });
            let (name, shares, quota) = (Arc::clone(name), terms.share, terms.quota);
            Some(Account { name, shares, used, quota, member })
        });
        found.unwrap_or_else(|| Account {
            name: alone(user),
            shares: 1,
            used: used(user),
            quota: self.quota(user),
            member: None,
        })
    }
}

#[cfg(test)]
mod tests;
