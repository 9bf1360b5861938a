//! Accounts of this machine: names and groups of uids, by the system's own name service.
//!
//! A name service may depend on a server that hangs. So look-ups run on separate threads, with a deadline and
//! a limit, and their results are kept for a minute.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use tessera_control::accounts::Accounts;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::principal::{Appointments, Role};

/// How long a result is used: a user who leaves a group keeps its role for that long.
const KEPT: Duration = Duration::from_secs(60);
/// How long a look-up may take: a request waits for it.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(5);
/// Look-ups at once: a name service that hangs must not take every thread.
const LOOK_UPS_MAX: usize = 8;
/// Results that are kept: more accounts than a machine has users at once.
const KEPT_MAX: usize = 10_000;
/// Stands for every account that has no number here, so it is nobody's name.
const OVERFLOW_UID: u32 = 65_534;
/// The first number of people's accounts (`UID_MIN` of login.defs). Those below are the system's.
const PEOPLE_FROM: u32 = 1_000;

/// An account of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The name under which the system knows it.
    pub name: Arc<str>,
    /// Its number.
    pub uid: u32,
    /// What it may do.
    pub role: Role,
    /// The members of the accounts that it coordinates.
    pub coordinates: Arc<[String]>,
}

/// Why an account is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAccount {
    /// The number has no name, or stands for several accounts.
    #[error("uid {uid} has no account on this machine")]
    Uid {
        /// The number.
        uid: u32,
    },
    /// No account has that name.
    #[error("{name} has no account on this machine any more")]
    Name {
        /// The name that no account has.
        name: String,
    },
    /// The name service gave no answer.
    #[error("the name service of this machine does not respond")]
    Silent,
}

/// What names an account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccountKey {
    /// Its number.
    Uid(u32),
    /// By its name in the system's account database.
    Name(String),
}

/// The roles of users, and the accounts that they coordinate.
#[derive(Debug)]
struct Rules {
    appointments: Arc<Appointments>,
    accounts: Accounts,
}

/// Looks accounts up, and remembers them for a while.
#[derive(Debug)]
pub struct Directory {
    rules: RwLock<Rules>,
    kept: Mutex<HashMap<AccountKey, (Instant, Account)>>,
    look_ups: Arc<Semaphore>,
    /// Notified at each change of the rules.
    changes: watch::Sender<()>,
}

impl Directory {
    /// Looks accounts up under these rules.
    pub fn new(appointments: Appointments, accounts: Accounts) -> Self {
        Self {
            rules: RwLock::new(Rules { appointments: Arc::new(appointments), accounts }),
            kept: Mutex::default(),
            look_ups: Arc::new(Semaphore::new(LOOK_UPS_MAX)),
            changes: watch::Sender::default(),
        }
    }

    /// Looks accounts up under other rules from now on.
    pub fn replace_rules(&self, appointments: Appointments, accounts: Accounts) {
        let new = Rules { appointments: Arc::new(appointments), accounts };
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = new;
        self.lock().clear();
        self.changes.send_replace(());
    }

    /// Waits until an account may do less than this role and these coordinated members allow, or is gone. A
    /// change of the rules is seen at once, a change of the system's groups within two minutes.
    pub async fn until_demoted(
        self: Arc<Self>,
        account: AccountKey,
        role: Role,
        coordinates: Arc<[String]>,
    ) {
        let mut changes = self.changes.subscribe();
        loop {
            match self.find(account.clone()).await {
                Ok(now) => {
                    let keeps = coordinates.iter().all(|member| now.coordinates.contains(member));
                    if now.role < role || !keeps {
                        return;
                    }
                }
                Err(NoAccount::Uid { .. } | NoAccount::Name { .. }) => return,
                // A name service that hangs takes nobody's role away.
                Err(NoAccount::Silent) => {}
            }
            // Sleeping ends when results are no longer kept.
            let _ = timeout(KEPT, changes.changed()).await;
        }
    }

    /// Returns the account with a number.
    ///
    /// # Errors
    ///
    /// [`NoAccount`].
    pub async fn by_uid(&self, uid: u32) -> Result<Account, NoAccount> {
        if uid == OVERFLOW_UID {
            return Err(NoAccount::Uid { uid });
        }
        self.find(AccountKey::Uid(uid)).await
    }

    /// Returns the account with a name.
    ///
    /// # Errors
    ///
    /// [`NoAccount`].
    pub async fn by_name(&self, name: &str) -> Result<Account, NoAccount> {
        self.find(AccountKey::Name(name.to_owned())).await
    }

    /// Returns whether a name belongs to the system of this machine, such as root, and to no person.
    ///
    /// # Errors
    ///
    /// [`NoAccount::Silent`].
    pub async fn is_of_the_system(&self, name: &str) -> Result<bool, NoAccount> {
        match self.by_name(name).await {
            Ok(account) => Ok(account.uid < PEOPLE_FROM || account.uid == OVERFLOW_UID),
            Err(NoAccount::Silent) => Err(NoAccount::Silent),
            Err(NoAccount::Name { .. } | NoAccount::Uid { .. }) => Ok(false),
        }
    }

    /// Returns the members of the accounts that a user coordinates.
    pub fn coordinated_by(&self, user: &str) -> Arc<[String]> {
        self.rules().accounts.coordinated_by(user).into()
    }

    async fn find(&self, key: AccountKey) -> Result<Account, NoAccount> {
        let now = Instant::now();
        if let Some((at, account)) = self.lock().get(&key)
            && now.saturating_duration_since(*at) < KEPT
        {
            return Ok(account.clone());
        }
        let appointments = Arc::clone(&self.rules().appointments);
        let look_up = async {
            let permit = Arc::clone(&self.look_ups).acquire_owned().await.ok()?;
            let (appointments, key) = (Arc::clone(&appointments), key.clone());
            let thread = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                look_up(&key, &appointments)
            });
            thread.await.ok()
        };
        let (name, uid, role) =
            timeout(LOOK_UP_WITHIN, look_up).await.ok().flatten().ok_or(NoAccount::Silent)??;
        let coordinates = self.coordinated_by(&name);
        let account = Account { name: name.into(), uid, role, coordinates };
        let mut kept = self.lock();
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, (at, _)| now.saturating_duration_since(*at) < KEPT);
        }
        // Found under rules that were replaced meanwhile, it is used once and not kept.
        let is_current = Arc::ptr_eq(&appointments, &self.rules().appointments);
        if is_current && kept.len() < KEPT_MAX {
            kept.insert(key, (now, account.clone()));
        }
        Ok(account)
    }

    fn rules(&self) -> RwLockReadGuard<'_, Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing in here can panic halfway, so a poisoned map is whole.
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<AccountKey, (Instant, Account)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look_up(
    key: &AccountKey,
    appointments: &Appointments,
) -> Result<(String, u32, Role), NoAccount> {
    let (found, missing) = match key {
        AccountKey::Uid(uid) => (User::from_uid(Uid::from_raw(*uid)), NoAccount::Uid { uid: *uid }),
        AccountKey::Name(name) => (User::from_name(name), NoAccount::Name { name: name.clone() }),
    };
    let user = found.map_err(|_| NoAccount::Silent)?.ok_or(missing)?;
    let groups = groups(&user, appointments);
    let uid = user.uid.as_raw();
    let role = appointments.role(&user.name, Some(uid), &groups);
    Ok((user.name, uid, role))
}

/// Returns those of the appointed groups that a user is in.
fn groups(user: &User, appointments: &Appointments) -> Vec<String> {
    let mut named = appointments.groups().peekable();
    if named.peek().is_none() {
        return Vec::new();
    }
    let own: Vec<Gid> = CString::new(user.name.as_str())
        .ok()
        .and_then(|name| getgrouplist(&name, user.gid).ok())
        .unwrap_or_default();
    named
        .filter(|name| {
            let group = Group::from_name(name).ok().flatten();
            group.is_some_and(|group| own.contains(&group.gid))
        })
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(operators: &[&str]) -> Directory {
        let operators = operators.iter().map(|text| text.parse().unwrap()).collect();
        let admins = vec!["root".parse().unwrap()];
        let lists = Appointments { admins, operators, own_uid: None };
        Directory::new(lists, Accounts::default())
    }

    #[tokio::test]
    async fn accounts_of_this_machine_have_names_and_roles() {
        let directory = directory(&["@bin"]);

        let root = directory.by_uid(0).await.unwrap();
        let daemon = directory.by_uid(1).await.unwrap();
        let bin = directory.by_name("bin").await.unwrap();

        assert_eq!((&*root.name, root.role), ("root", Role::Admin));
        assert_eq!((&*daemon.name, daemon.role), ("daemon", Role::User));
        assert_eq!((&*bin.name, bin.role), ("bin", Role::Operator));
        assert_eq!(directory.by_uid(0).await.unwrap(), root, "the second time from memory");
    }

    #[tokio::test]
    async fn accounts_of_the_system_are_not_those_of_people() {
        let directory = directory(&[]);

        for (name, of_the_system) in [("root", true), ("daemon", true), ("no-such-user", false)] {
            assert_eq!(directory.is_of_the_system(name).await, Ok(of_the_system), "{name}");
        }
    }

    #[tokio::test]
    async fn a_number_without_a_name_is_nobody() {
        let directory = directory(&[]);

        for uid in [65_534, 3_999_999_999] {
            assert_eq!(directory.by_uid(uid).await, Err(NoAccount::Uid { uid }));
        }
        let gone = directory.by_name("no-such-user").await.unwrap_err();
        assert!(gone.to_string().contains("no-such-user"), "{gone}");
    }
}
