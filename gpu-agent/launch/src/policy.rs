//! Which accounts a launcher may become. Pure.

use crate::order::Account;

/// The account of processes whose uid is not known on this machine. No person is it.
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

impl Policy {
    /// Returns whether an attempt may run as `account`, and with what change: `None` for none.
    ///
    /// # Errors
    ///
    /// The reason, for people.
    pub fn change<'a>(&self, account: Option<&'a Account>) -> Result<Option<&'a Account>, String> {
        let uid = account.map_or(self.own, |account| account.uid);
        if uid == 0 && !self.root_jobs {
            return Err("jobs of root are refused here: submit as another user, or set root_jobs \
                        in the agent's settings"
                .to_owned());
        }
        let Some(account) = account.filter(|account| account.uid != self.own) else {
            return Ok(None);
        };
        if self.own != 0 {
            return Err(format!(
                "this node's agent has no privileges, so that it runs only jobs of its own account \
                 (uid {}), not of uid {uid}. Install tessera-launch as docs/launching.md describes, or \
                 run the agent as root",
                self.own
            ));
        }
        if uid == 0 {
            return Ok(Some(account));
        }
        if uid == UNKNOWN_UID || uid == u32::MAX {
            return Err(format!("uid {uid} stands for unknown users, and runs no jobs"));
        }
        if uid < self.uid_min {
            let least = self.uid_min;
            return Err(format!(
                "uid {uid} is below {least}, and belongs to the system: submit as a person, or set \
                 uid_min in the agent's settings"
            ));
        }
        if uid == self.caller {
            return Err(format!("uid {uid} is the agent's own account, which runs no jobs"));
        }
        if account.gid == 0 || account.groups.contains(&0) {
            return Err(format!("uid {uid} is in the group of root (gid 0), which runs no jobs"));
        }
        Ok(Some(account))
    }
}

/// Reads what a setuid launcher obeys: lines of `caller = UID`, `uid_min = UID` and `root_jobs = yes`.
///
/// # Errors
///
/// What is wrong with it.
pub fn parse(text: &str) -> Result<Policy, String> {
    let mut policy = Policy { own: 0, caller: u32::MAX, uid_min: UID_MIN, root_jobs: false };
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(|| format!("no setting: {line}"))?;
        let value = value.trim();
        let number = || value.parse::<u32>().map_err(|_| format!("{value} is no uid: {line}"));
        match name.trim() {
            "caller" => policy.caller = number()?,
            "uid_min" => policy.uid_min = number()?,
            "root_jobs" => policy.root_jobs = value == "yes",
            name => return Err(format!("{name} is no setting: caller, uid_min and root_jobs are")),
        }
    }
    if policy.caller == u32::MAX {
        return Err("it names no caller: write caller = UID of the agent's account".to_owned());
    }
    Ok(policy)
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
            let refusal = policy.change(Some(&account(uid))).unwrap_err();
            assert!(refusal.contains(word), "{uid}: {refusal}");
        }
        assert!(policy.change(None).is_err(), "its own account is root");
        let low = Policy { uid_min: 1, ..policy };
        assert!(low.change(Some(&account(990))).unwrap_err().contains("agent's own"));
        let groups = Account { groups: vec![7, 0], ..account(1000) };
        assert!(policy.change(Some(&groups)).unwrap_err().contains("gid 0"));
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
        assert!(policy.change(Some(&account(1001))).unwrap_err().contains("no privileges"));
        assert!(policy.change(Some(&account(0))).unwrap_err().contains("no privileges"));
    }

    #[test]
    fn a_file_that_names_no_caller_or_an_unknown_setting_is_refused() {
        assert_eq!(
            parse("# who\ncaller = 990\nuid_min = 500\n").unwrap(),
            Policy { own: 0, caller: 990, uid_min: 500, root_jobs: false }
        );
        for text in ["", "caller = x", "caller = 1\nrootjobs = yes", "caller"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
