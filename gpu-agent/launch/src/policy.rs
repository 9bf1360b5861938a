//! Which accounts a launcher may become, and which programs it may start as root and as a user. Pure.

use std::error::Error;
use std::fmt;

use crate::order::Account;

/// The account of processes whose uid is not known on this machine. No person has it.
const UNKNOWN_UID: u32 = 65_534;
/// The smallest uid of a person, unless the operator set another one.
pub const UID_MIN: u32 = 1000;

/// What a launcher goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The account that it runs as.
    pub own: u32,
    /// The account that started it.
    pub caller: u32,
    /// The smallest uid of a person.
    pub uid_min: u32,
    /// Whether jobs may be root's.
    pub root_jobs: bool,
}

/// The program that divides GPUs, which a setuid launcher starts as root for its caller. The caller chooses nothing of
/// it: choosing a library that root loads means being root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRules {
    /// The program: the agent's own, in its role as worker.
    pub program: String,
    /// The management library that it loads.
    pub library: String,
    /// Its environment, as `NAME=value`.
    pub environment: Vec<String>,
}

/// Where the packages install the agent's program.
const WORKER_PROGRAM: &str = "/usr/lib/tessera/tessera-agent";

/// What a setuid launcher obeys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which accounts it may become.
    pub policy: Policy,
    /// What it may start as root; `None` for nothing.
    pub worker: Option<WorkerRules>,
    /// The agent's own program, which it starts as a user for that user's MPS; `None` for a launcher without setuid.
    pub mps_worker: Option<String>,
}

/// Why an attempt may not run as an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountRefusal {
    /// Jobs of root are not allowed.
    Root,
    /// The launcher has no privileges.
    Unprivileged {
        /// The account that it runs as.
        own: u32,
        /// The requested account.
        uid: u32,
    },
    /// The account stands for users that this machine does not know.
    UnknownUsers(u32),
    /// The account belongs to the system.
    System {
        /// The account.
        uid: u32,
        /// The smallest uid of a person.
        uid_min: u32,
    },
    /// The account is the agent's own.
    Agent(u32),
    /// The account is in the group of root.
    RootGroup(u32),
}

impl fmt::Display for AccountRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Root => f.write_str(
                "jobs of root are refused here: submit as another user, or set root_jobs in the \
                 agent's settings",
            ),
            Self::Unprivileged { own, uid } => write!(
                f,
                "this node's agent has no privileges, so that it runs only jobs of its own account \
                 (uid {own}), not of uid {uid}. Install tessera-launch as docs/launching.md describes, \
                 or run the agent as root",
            ),
            Self::UnknownUsers(uid) => {
                write!(f, "uid {uid} stands for unknown users, and runs no jobs")
            }
            Self::System { uid, uid_min } => write!(
                f,
                "uid {uid} is below {uid_min}, and belongs to the system: submit as a person, or set \
                 uid_min in the agent's settings"
            ),
            Self::Agent(uid) => {
                write!(f, "uid {uid} is the agent's own account, which runs no jobs")
            }
            Self::RootGroup(uid) => {
                write!(f, "uid {uid} is in the group of root (gid 0), which runs no jobs")
            }
        }
    }
}

impl Error for AccountRefusal {}

/// Why a setuid launcher's settings can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadPolicy {
    /// A line has no `=`.
    NoSetting(String),
    /// A value is no uid.
    NoUid {
        /// The value that is no number of an account.
        value: String,
        /// The line of the file that has it.
        line: String,
    },
    /// A name is no setting.
    UnknownSetting(String),
    /// No line names the caller.
    NoCaller,
    /// A variable has no name.
    NoVariable(String),
}

impl fmt::Display for BadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSetting(line) => write!(f, "no setting: {line}"),
            Self::NoUid { value, line } => write!(f, "{value} is no uid: {line}"),
            Self::UnknownSetting(name) => {
                write!(
                    f,
                    "{name} is no setting: caller, uid_min, root_jobs, nvml, worker and worker_env are"
                )
            }
            Self::NoCaller => {
                f.write_str("it names no caller: write caller = UID of the agent's account")
            }
            Self::NoVariable(line) => write!(f, "no NAME=value: {line}"),
        }
    }
}

impl Error for BadPolicy {}

impl Policy {
    /// Checks that an attempt may run as `account`. Returns the account to change to, or `None` if it is the
    /// launcher's own.
    ///
    /// # Errors
    ///
    /// Jobs may not run as this account.
    pub fn change<'a>(
        &self,
        account: Option<&'a Account>,
    ) -> Result<Option<&'a Account>, AccountRefusal> {
        let uid = account.map_or(self.own, |account| account.uid);
        if uid == 0 && !self.root_jobs {
            return Err(AccountRefusal::Root);
        }
        let Some(account) = account.filter(|account| account.uid != self.own) else {
            return Ok(None);
        };
        if self.own != 0 {
            return Err(AccountRefusal::Unprivileged { own: self.own, uid });
        }
        if uid == 0 {
            return Ok(Some(account));
        }
        if uid == UNKNOWN_UID || uid == u32::MAX {
            return Err(AccountRefusal::UnknownUsers(uid));
        }
        if uid < self.uid_min {
            return Err(AccountRefusal::System { uid, uid_min: self.uid_min });
        }
        if uid == self.caller {
            return Err(AccountRefusal::Agent(uid));
        }
        if account.gid == 0 || account.groups.contains(&0) {
            return Err(AccountRefusal::RootGroup(uid));
        }
        Ok(Some(account))
    }
}

/// Reads the rules of a setuid launcher: lines of `caller = UID`, `uid_min = UID` and `root_jobs = yes`. With
/// `nvml = LIBRARY` it also starts the program that divides GPUs, which is `worker = PROGRAM` with the variables of the
/// lines `worker_env = NAME=value`.
///
/// # Errors
///
/// A line that can't be read, or no caller.
pub fn parse(text: &str) -> Result<Settings, BadPolicy> {
    let mut policy = Policy { own: 0, caller: u32::MAX, uid_min: UID_MIN, root_jobs: false };
    let (mut library, mut program, mut environment) = (None, WORKER_PROGRAM, Vec::new());
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) =
            line.split_once('=').ok_or_else(|| BadPolicy::NoSetting(line.to_owned()))?;
        let value = value.trim();
        let bad = || BadPolicy::NoUid { value: value.to_owned(), line: line.to_owned() };
        let number = || value.parse::<u32>().map_err(|_| bad());
        match name.trim() {
            "caller" => policy.caller = number()?,
            "uid_min" => policy.uid_min = number()?,
            "root_jobs" => policy.root_jobs = value == "yes",
            "nvml" => library = Some(value.to_owned()),
            "worker" => program = value,
            "worker_env" => match value.split_once('=') {
                Some((name, _)) if !name.is_empty() => environment.push(value.to_owned()),
                _ => return Err(BadPolicy::NoVariable(line.to_owned())),
            },
            name => return Err(BadPolicy::UnknownSetting(name.to_owned())),
        }
    }
    if policy.caller == u32::MAX {
        return Err(BadPolicy::NoCaller);
    }
    let mps_worker = Some(program.to_owned());
    let program = program.to_owned();
    let worker = library.map(|library| WorkerRules { program, library, environment });
    Ok(Settings { policy, worker, mps_worker })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(uid: u32) -> Account {
        Account { uid, gid: uid.max(1), groups: vec![uid.max(1)] }
    }

    #[test]
    fn a_launcher_of_root_becomes_people_and_nobody_else() {
        let policy = Policy { own: 0, caller: 990, uid_min: 1000, root_jobs: false };
        assert_eq!(policy.change(Some(&account(1000))), Ok(Some(&account(1000))));
        for (uid, word) in [
            (0, "root"),
            (33, "system"),
            (990, "system"),
            (65_534, "unknown"),
            (u32::MAX, "unknown"),
        ] {
            let refusal = policy.change(Some(&account(uid))).unwrap_err().to_string();
            assert!(refusal.contains(word), "{uid}: {refusal}");
        }
        assert!(policy.change(None).is_err(), "its own account is root");
        let low = Policy { uid_min: 1, ..policy };
        assert!(low.change(Some(&account(990))).unwrap_err().to_string().contains("agent's own"));
        let groups = Account { groups: vec![7, 0], ..account(1000) };
        assert!(policy.change(Some(&groups)).unwrap_err().to_string().contains("gid 0"));
    }

    #[test]
    fn root_runs_jobs_only_where_the_operator_allows_it() {
        let policy = Policy { own: 0, caller: 0, uid_min: 1000, root_jobs: true };
        assert_eq!(policy.change(None), Ok(None));
        assert_eq!(policy.change(Some(&account(0))), Ok(None));
    }

    #[test]
    fn without_privileges_only_the_own_account_runs_jobs() {
        let policy = Policy { own: 1000, caller: 1000, uid_min: 1000, root_jobs: true };
        assert_eq!(policy.change(Some(&account(1000))), Ok(None));
        assert_eq!(policy.change(None), Ok(None));
        assert!(
            policy.change(Some(&account(1001))).unwrap_err().to_string().contains("no privileges")
        );
        assert!(
            policy.change(Some(&account(0))).unwrap_err().to_string().contains("no privileges")
        );
    }

    #[test]
    fn a_file_that_names_no_caller_or_an_unknown_setting_is_refused() {
        assert_eq!(
            parse("# who\ncaller = 990\nuid_min = 500\n").unwrap(),
            Settings {
                policy: Policy { own: 0, caller: 990, uid_min: 500, root_jobs: false },
                worker: None,
                mps_worker: Some(WORKER_PROGRAM.to_owned()),
            }
        );
        for text in
            ["", "caller = x", "caller = 1\nrootjobs = yes", "caller", "caller = 1\nworker_env = X"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_worker_is_started_as_root_only_where_a_library_is_named() {
        let worker = |text: &str| parse(&format!("caller = 990\n{text}")).unwrap().worker;

        assert_eq!(worker("worker = /opt/agent\nworker_env = A=b\n"), None);
        let expected = WorkerRules {
            program: WORKER_PROGRAM.to_owned(),
            library: "libnvidia-ml.so.1".to_owned(),
            environment: vec!["A=b=c".to_owned()],
        };
        assert_eq!(worker("nvml = libnvidia-ml.so.1\nworker_env = A=b=c\n"), Some(expected));
    }
}
