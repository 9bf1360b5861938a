//! The program that serves a user's MPS, started as that user for an agent that has its own account.
//!
//! It is the agent's own program, so that this one stays small. The caller chooses only the user, who has to be one whose
//! jobs may run here. Whatever it then makes the worker do, it could do by a job of that user as well.

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use crate::child::{become_account, make_own};
use crate::helper::{become_effective, check_trusted, find_settings};
use crate::order::Account;
use crate::policy::{AccountRefusal, Policy};
use crate::sys::{self, Child, Forked, check};
use crate::worker::attend;

/// Argument with which the program starts the worker. The user's uid, gid and groups follow, and the folder in which the
/// worker's own are made, unless they are there.
pub const FLAG: &str = "--mps-worker";
/// The folders of a daemon that belong to its user: of its pipes and of its logs.
pub const FOLDERS: [&str; 2] = ["p", "l"];
/// Where programs that run as a user are found.
const USER_PATH: &str = "PATH=/usr/local/bin:/usr/bin:/bin";

/// Why no worker is started.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// The launcher has no more rights than its caller.
    NoSetuid,
    /// The arguments name no account.
    NoAccount,
    /// No job runs as the account.
    Account(AccountRefusal),
    /// Root's daemon would make the worker a program of root that obeys its caller.
    Root,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSetuid => f.write_str("without setuid it starts no MPS worker"),
            Self::NoAccount => f.write_str("the MPS worker takes UID GID GROUPS [FOLDER]"),
            Self::Account(refusal) => refusal.fmt(f),
            Self::Root => f.write_str("MPS of root is started only by an agent that is root"),
        }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, refusal.to_string())
    }
}

/// Returns whether this program starts a worker for its caller.
pub fn is_allowed() -> bool {
    let (caller, own) = sys::uids();
    let program = find_settings(caller, own).ok().and_then(|settings| settings.mps_worker);
    program.is_some_and(|program| trusted(&program).is_ok())
}

/// Runs the worker to its end; returns only why it was not started.
pub fn main(arguments: impl Iterator<Item = String>) -> io::Error {
    match start(arguments) {
        Ok(worker) => {
            attend(&worker);
            sys::exit(0)
        }
        Err(error) => error,
    }
}

fn trusted(program: &str) -> io::Result<()> {
    check_trusted(&File::open(program)?, program)
}

/// Reads which account the worker gets, and which folder its own are made in.
fn read(
    mut arguments: impl Iterator<Item = String>,
    policy: &Policy,
) -> Result<(Account, Option<String>), Refusal> {
    let mut number = || arguments.next()?.parse::<u32>().ok();
    let (uid, gid) = number().zip(number()).ok_or(Refusal::NoAccount)?;
    let groups = arguments.next().ok_or(Refusal::NoAccount)?;
    let groups = groups.split(',').filter(|group| !group.is_empty());
    let groups = groups.map(str::parse::<u32>).collect::<Result<Vec<_>, _>>();
    let account = Account { uid, gid, groups: groups.map_err(|_| Refusal::NoAccount)? };
    let folder = arguments.next();
    if arguments.next().is_some() {
        return Err(Refusal::NoAccount);
    }
    // An account to change to is never the launcher's own, which is root.
    match policy.change(Some(&account)).map_err(Refusal::Account)? {
        Some(_) => Ok((account, folder)),
        None => Err(Refusal::Root),
    }
}

fn start(arguments: impl Iterator<Item = String>) -> io::Result<Child> {
    let (caller, own) = sys::uids();
    let settings = find_settings(caller, own)?;
    let program = settings.mps_worker.ok_or(Refusal::NoSetuid)?;
    let (account, folder) = read(arguments, &settings.policy)?;
    trusted(&program)?;
    let name = CString::new(program.as_str())?;
    let words = [name.clone(), c"mps-worker".to_owned()];
    let environment = [CString::new(USER_PATH)?];
    become_effective(own)?;
    sys::ignore_signals();
    sys::close_others_on_exec();
    std::env::set_current_dir("/")?;
    if let Some(folder) = folder {
        for own in FOLDERS {
            let path = Path::new(&folder).join(own);
            make_own(&path, Some(&account), caller).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })?;
        }
    }
    let null = File::options().write(true).open("/dev/null")?;
    match sys::fork(None, false)? {
        Forked::Parent(child) => {
            // The agent sees the end of the worker's output.
            sys::replace(null.as_fd(), 1)?;
            Ok(child)
        }
        Forked::Child { .. } => {
            let Ok(mut errors) = io::stderr().as_fd().try_clone_to_owned().map(File::from) else {
                sys::exit(1)
            };
            // The agent's log is not the user's.
            let error = match sys::replace(null.as_fd(), 2).and_then(|()| give_up_rights(&account))
            {
                Ok(()) => {
                    sys::reset_signals();
                    sys::execute(&name, &words, &environment)
                }
                Err(error) => error,
            };
            let _ = writeln!(errors, "tessera-launch: {program}: {error}");
            sys::exit(1)
        }
    }
}

/// Becomes the user, with no way to more rights.
fn give_up_rights(account: &Account) -> io::Result<()> {
    become_account(account)?;
    // SAFETY: plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { own: 0, caller: 990, uid_min: 1000, root_jobs: true };

    fn account(words: &[&str]) -> Result<(Account, Option<String>), Refusal> {
        read(words.iter().map(|word| (*word).to_owned()), &POLICY)
    }

    #[test]
    fn a_worker_gets_the_account_of_a_person_with_its_groups_and_perhaps_a_folder() {
        let expected = Account { uid: 1000, gid: 100, groups: vec![100, 27] };
        assert_eq!(account(&["1000", "100", "100,27"]), Ok((expected, None)));
        let (found, folder) = account(&["1000", "100", "", "/data/mps/1"]).unwrap();
        assert_eq!((found.groups, folder.as_deref()), (vec![], Some("/data/mps/1")));
    }

    #[test]
    fn no_worker_is_roots_the_systems_the_agents_or_in_the_group_of_root() {
        // Also where jobs of root are allowed.
        for words in [
            ["0", "0", "0"],
            ["0", "1000", "1000"],
            ["33", "33", "33"],
            ["990", "990", "990"],
            ["65534", "65534", ""],
            ["4294967295", "1000", ""],
            ["1000", "0", "1000"],
            ["1000", "1000", "1000,0"],
        ] {
            let refused = account(&words);
            assert!(matches!(refused, Err(Refusal::Root | Refusal::Account(_))), "{words:?}");
        }
    }

    #[test]
    fn words_that_name_no_account_start_nothing() {
        for words in [
            &[][..],
            &["1000"],
            &["1000", "1000"],
            &["x", "1000", ""],
            &["-1", "1000", ""],
            &["1000", "1000", "x"],
            &["4294967296", "1000", ""],
            &["1000", "1000", "1000,4294967296"],
            &["1000", "1000", "1000", "/folder", "more"],
        ] {
            assert_eq!(account(words), Err(Refusal::NoAccount), "{words:?}");
        }
    }
}
