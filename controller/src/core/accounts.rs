//! Accounts: who pays for whose jobs, what each is entitled to, and what it may hold at once.
//!
//! A user whom no account names is an account of its own, with one share.

mod book;
mod told;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::Millis;
use tessera_placement::{Account, Limit};

pub(super) use book::Book;

/// Whom a quota is for that names nobody.
const EVERYBODY: &str = "*";
/// What the names of accounts begin with where users have names too.
const PREFIX: &str = "account ";
/// Most accounts, most of their members, and most quotas of users: a large site's people, and a robot
/// for each.
pub const ENTRIES_MAX: usize = 10_000;
/// Longest name of an account, in bytes: it stands in tables.
const NAME_MAX: usize = 64;

/// An account, as settings say it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountTerms {
    /// Whose jobs it pays for.
    pub members: Vec<String>,
    /// What it is entitled to, beside the others' numbers.
    #[serde(default = "one_share")]
    pub share: u32,
    /// Most compute slices that all of its members' jobs may hold at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u32>,
}

const fn one_share() -> u32 {
    1
}

/// Accounts that can't be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAccounts {
    /// A user has two.
    #[error("user {user} is in the accounts {one} and {other}: leave it in one of them")]
    TwoAccounts {
        /// Who.
        user: String,
        /// One of them.
        one: String,
        /// Another.
        other: String,
    },
    /// An account has no shares.
    #[error(
        "account {account} has a share of 0: write 1 or more (one that is to run nothing has \
         quota = 0)"
    )]
    NoShare {
        /// Which.
        account: String,
    },
    /// An account has no members.
    #[error(
        "account {account} has no members: write members = [\"USER\", …], or leave the account out"
    )]
    NoMembers {
        /// Which.
        account: String,
    },
    /// A name that would be taken for something else.
    #[error(
        "{name:?} is no name of an account: write 1 to {NAME_MAX} letters, digits, dots, hyphens or \
         underscores"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// A member that no user can be.
    #[error(
        "account {account} has {user:?} among its members: write users' names, each for itself"
    )]
    BadMember {
        /// Whose.
        account: String,
        /// The name.
        user: String,
    },
    /// More than are kept.
    #[error("{found} {what} are more than the {ENTRIES_MAX} that are kept")]
    TooMany {
        /// How many there are.
        found: usize,
        /// Of what.
        what: &'static str,
    },
    /// Usage that is forgotten at once.
    #[error("a half-life of nothing would forget all usage at once: write a time such as 1d")]
    NoHalfLife,
}

/// Who pays for whose jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounts {
    quotas: BTreeMap<String, u32>,
    accounts: BTreeMap<String, AccountTerms>,
    /// By user: the account's name, and the name under which its jobs count together.
    of_user: BTreeMap<String, (String, Arc<str>)>,
    /// After which time half of what was had counts no more; `None` if all counts for ever.
    half_life: Option<Millis>,
    fair: bool,
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

impl Accounts {
    /// After which time half of what was had counts no more, if nothing else is said: a day, so that
    /// yesterday's hunger is nearly forgiven.
    pub const HALF_LIFE: Millis = Millis::from_secs(86_400);

    /// Reads quotas of users (`*` is everybody without one of their own) and accounts.
    ///
    /// # Errors
    ///
    /// [`BadAccounts`] says what is wrong, and what would be right.
    pub fn new(
        quotas: BTreeMap<String, u32>,
        accounts: BTreeMap<String, AccountTerms>,
        half_life: Option<Millis>,
    ) -> Result<Self, BadAccounts> {
        for (found, what) in [(quotas.len(), "quotas"), (accounts.len(), "accounts")] {
            if found > ENTRIES_MAX {
                return Err(BadAccounts::TooMany { found, what });
            }
        }
        let found = accounts.values().map(|terms| terms.members.len()).sum();
        if found > ENTRIES_MAX {
            return Err(BadAccounts::TooMany { found, what: "members of accounts" });
        }
        if half_life == Some(Millis::ZERO) {
            return Err(BadAccounts::NoHalfLife);
        }
        let of_user = members(&accounts)?;
        Ok(Self { quotas, accounts, of_user, half_life, fair: true })
    }

    /// Serves jobs by priority and number alone: what accounts have had counts no more.
    #[must_use]
    pub fn in_turn(self) -> Self {
        Self { fair: false, ..self }
    }

    /// Whether what accounts have had counts.
    pub const fn fair(&self) -> bool {
        self.fair
    }

    /// Returns what limits a user's jobs at once.
    pub fn limits(&self, user: &str) -> impl Iterator<Item = Limit> {
        let own = self.quota(user).map(|slices| Limit { name: alone(&user.into()), slices });
        let account = self.of_user.get(user).and_then(|(account, name)| {
            let slices = self.accounts.get(account)?.quota?;
            Some(Limit { name: Arc::clone(name), slices })
        });
        own.into_iter().chain(account)
    }

    fn quota(&self, user: &str) -> Option<u32> {
        self.quotas.get(user).or_else(|| self.quotas.get(EVERYBODY)).copied()
    }

    /// Returns who pays for a user's jobs; `had` tells what a user has had.
    pub(super) fn account(&self, user: &Arc<str>, had: impl Fn(&str) -> Millis) -> Account {
        let used = |user: &str| if self.fair { had(user) } else { Millis::ZERO };
        let found = self.of_user.get(&**user).and_then(|(account, name)| {
            let terms = self.accounts.get(account)?;
            let all = terms.members.iter().map(|member| used(member));
            let used = all.fold(Millis::ZERO, Millis::plus);
            let own = self.quota(user);
            let member = own.map(|slices| Limit { name: alone(user), slices });
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

/// Returns the name under which a user's jobs count: nobody is taken for an account.
fn alone(user: &Arc<str>) -> Arc<str> {
    if user.starts_with(PREFIX) { format!("user {user}").into() } else { Arc::clone(user) }
}

/// Lists members with their accounts.
fn members(
    accounts: &BTreeMap<String, AccountTerms>,
) -> Result<BTreeMap<String, (String, Arc<str>)>, BadAccounts> {
    let mut of_user: BTreeMap<String, (String, Arc<str>)> = BTreeMap::new();
    for (account, terms) in accounts {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
        if account.is_empty() || account.len() > NAME_MAX || !account.chars().all(plain) {
            return Err(BadAccounts::BadName { name: account.clone() });
        }
        if terms.share == 0 {
            return Err(BadAccounts::NoShare { account: account.clone() });
        }
        if terms.members.is_empty() {
            return Err(BadAccounts::NoMembers { account: account.clone() });
        }
        let name: Arc<str> = format!("{PREFIX}{account}").into();
        for user in &terms.members {
            if user.is_empty() || user == EVERYBODY || user.trim() != user {
                let (account, user) = (account.clone(), user.clone());
                return Err(BadAccounts::BadMember { account, user });
            }
            let entry = (account.clone(), Arc::clone(&name));
            if let Some((one, _)) = of_user.insert(user.clone(), entry) {
                let (user, other) = (user.clone(), account.clone());
                return Err(BadAccounts::TwoAccounts { user, one, other });
            }
        }
    }
    Ok(of_user)
}

#[cfg(test)]
mod tests;
