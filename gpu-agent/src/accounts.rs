//! The accounts that jobs run under. They are looked up by name on this machine, in their own process, since a name
//! service may take minutes or never answer.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::geteuid;
use tessera_agent_core::attempts::PlacementRefusal;
use tessera_frames::cluster::LaunchOrder;
use tessera_launch::client::{Abilities, probe};
use tessera_launch::policy::Policy;
use tessera_model::Millis;
use tessera_model::isolation::IsolationGap;
use tessera_model::mig::Slot;
use tessera_model::number::clamped;
use tokio::sync::mpsc;

use crate::config::{AgentConfig, RunAs};
use crate::devices;
use crate::messages::NodeInput;
use crate::messages::account::{AccountLookupError, LocalAccount, LookupResult};
use crate::messages::gpu::GpuNumbers;
use crate::shepherd::group;
use crate::shepherd::protocol::{AccountNumbers, Confinement};
use crate::sys::holders::DeviceFiles;

/// How long a name service may take.
const LOOKUP_WITHIN: Duration = Duration::from_secs(10);
/// How long an answer is used before it is looked up again, in the background.
const FRESH_FOR: Millis = Millis::from_secs(60);
/// How long a name counts as unknown: the account may be added soon.
const UNKNOWN_FOR: Millis = Millis::from_secs(5);
/// Maximum number of names that are remembered; beyond it the oldest answers are removed.
const NAMES_MAX: usize = 4096;
/// Maximum number of launches that wait for a name service.
const WAITING_MAX: usize = 4096;

/// What the operator decided about accounts, and what this machine allows.
#[derive(Clone, Debug)]
pub struct AccountRules {
    run_as: RunAs,
    policy: Policy,
    abilities: Abilities,
    private_tmp: bool,
    hide_processes: bool,
    no_new_privileges: bool,
    tasks_max: u64,
    /// Where the device nodes are that are closed for others; `None` to rely on their permissions
    /// alone.
    guarded: Option<DeviceFiles>,
    program: PathBuf,
    file: Option<PathBuf>,
}

/// The account of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobAccount {
    /// What the shepherd gets.
    pub confinement: Confinement,
    /// Variables of the account; none for the agent's own.
    pub variables: Vec<(&'static str, String)>,
}

/// Returns whether a launcher has privileges that its caller does not have.
pub(crate) fn is_setuid(launch: &Path) -> bool {
    const SETUID: u32 = 0o4000;
    std::fs::metadata(launch)
        .is_ok_and(|found| found.uid() == 0 && found.permissions().mode() & SETUID != 0)
}

/// Settings that would run every job as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "run_as = \"agent\" would run every job as root, since this agent is root: remove it, so that jobs run \
     as their submitters, or allow it with root_jobs = true (--root-jobs)"
)]
pub struct RunsAsRoot;

/// Checks what the operator decided.
///
/// # Errors
///
/// [`RunsAsRoot`].
pub fn check(config: &AgentConfig) -> Result<(), RunsAsRoot> {
    if config.run_as == RunAs::Agent && geteuid().is_root() && !config.root_jobs {
        return Err(RunsAsRoot);
    }
    Ok(())
}

impl AccountRules {
    /// Combines the rules.
    pub fn new(config: &AgentConfig, data: &Path, program: PathBuf) -> Self {
        let has_groups = config.cgroups && group::find_parent().is_some();
        let own = geteuid().as_raw();
        let launcher = if is_setuid(&config.launch) { 0 } else { own };
        let policy = Policy {
            own: launcher,
            caller: own,
            uid_min: config.uid_min,
            root_jobs: config.root_jobs,
        };
        let is_submitter = config.run_as == RunAs::Submitter;
        let abilities = if is_submitter && launcher == 0 {
            probe(&config.launch)
        } else {
            Abilities::default()
        };
        Self {
            run_as: config.run_as,
            policy,
            abilities,
            private_tmp: config.private_tmp && abilities.mounts && !in_tmp(data),
            hide_processes: config.hide_processes && abilities.hidden_processes,
            no_new_privileges: config.no_new_privileges,
            tasks_max: config.tasks_max,
            guarded: (config.guard_devices && abilities.device_filters && has_groups)
                .then(|| config.device_files.clone()),
            program,
            file: config.accounts.clone(),
        }
    }

    /// Logs the rules.
    pub fn report(&self, config: &AgentConfig, data: &Path) {
        let Self { private_tmp, hide_processes, abilities, .. } = self;
        let (guarded_devices, is_privileged) = (self.guarded.is_some(), self.is_privileged());
        tracing::info!(
            run_as = ?self.run_as,
            is_privileged,
            private_tmp,
            hide_processes,
            guarded_devices,
            ?abilities,
            "accounts of jobs"
        );
        if self.run_as == RunAs::Agent {
            tracing::warn!(
                "all jobs run as this agent's account: users are not protected from each other"
            );
        } else if !is_privileged {
            tracing::warn!(
                "this agent has no privileges and tessera-launch is not setuid: only jobs of its own account run here"
            );
        } else if config.private_tmp && in_tmp(data) {
            tracing::warn!("the data folder is in /tmp, so jobs have no private /tmp");
        }
    }

    fn is_privileged(&self) -> bool {
        self.policy.own == 0
    }

    /// Returns whether the launcher starts a worker as a job's user, which serves that user's MPS.
    pub fn starts_mps_workers(&self) -> bool {
        self.policy.caller != 0 && self.abilities.mps
    }

    /// Returns whether MPS can be started for the accounts of jobs.
    pub fn serves_mps(&self) -> bool {
        let own_jobs_only = !self.is_submitter() || !self.is_privileged();
        self.policy.caller == 0 || own_jobs_only || self.abilities.mps
    }

    /// Returns which protections from other users' jobs are missing.
    pub fn isolation_gaps(&self) -> BTreeSet<IsolationGap> {
        if self.run_as == RunAs::Agent {
            return BTreeSet::from([IsolationGap::Accounts]);
        }
        if !self.is_privileged() {
            return BTreeSet::from([IsolationGap::OtherAccounts]);
        }
        let protections = [
            (self.private_tmp, IsolationGap::PrivateTmp),
            (self.hide_processes, IsolationGap::HiddenProcesses),
            (self.guarded.is_some(), IsolationGap::DeviceNodes),
        ];
        protections.into_iter().filter(|(holds, _)| !holds).map(|(_, gap)| gap).collect()
    }

    /// Closes device nodes for an attempt of another account than the agent's, except its own.
    pub fn guard_devices(&self, job: &mut JobAccount, held: &[(&GpuNumbers, Option<Slot>)]) {
        if let Some(files) = self.guarded.as_ref().filter(|_| job.confinement.account.is_some()) {
            job.confinement.devices = devices::rules(files, held);
        }
    }

    /// Returns whether each job runs as its submitter.
    pub fn is_submitter(&self) -> bool {
        self.run_as == RunAs::Submitter
    }

    /// Returns the account of jobs that all run as the agent.
    fn of_agent(&self) -> JobAccount {
        let confinement = Confinement {
            uid_min: self.policy.uid_min,
            root_allowed: self.policy.root_jobs,
            ..Confinement::default()
        };
        JobAccount { confinement, variables: Vec::new() }
    }

    /// Decides which account a user's jobs run under.
    ///
    /// # Errors
    ///
    /// They can't run here.
    pub fn decide(&self, user: &str, found: &LookupResult) -> Result<JobAccount, PlacementRefusal> {
        let refuse = |by_job, reason| PlacementRefusal::Account { by_job, reason };
        let account = match found {
            Err(error) => {
                let reason = format!("the account of {user} can't be looked up: {error}");
                return Err(refuse(false, reason));
            }
            Ok(None) => {
                let reason = format!(
                    "this node has no account {user}: submit as a user that all nodes know (getent passwd {user})"
                );
                return Err(refuse(true, reason));
            }
            Ok(Some(account)) => account,
        };
        let numbers = account.numbers.to_launch();
        let change = self.policy.change(Some(&numbers));
        let change = change.map_err(|refusal| refuse(true, refusal.to_string()))?;
        let mut job = self.of_agent();
        job.variables = vec![
            ("HOME", account.home.clone()),
            ("LOGNAME", user.to_owned()),
            ("USER", user.to_owned()),
            ("SHELL", account.shell.clone()),
        ];
        if change.is_some() {
            job.confinement = Confinement {
                account: Some(account.numbers.clone()),
                private_tmp: self.private_tmp,
                hide_processes: self.hide_processes,
                no_new_privileges: self.no_new_privileges,
                tasks_max: Some(self.tasks_max),
                ..job.confinement
            };
        }
        Ok(job)
    }

    /// Looks an account up, in a process that may hang, and sends the answer.
    fn look_up(&self, name: String, node: mpsc::Sender<NodeInput>) {
        let mut command = tokio::process::Command::new(&self.program);
        command.arg("account").args(self.file.iter().flat_map(|file| [Path::new("--file"), file]));
        command.arg("--").arg(&name);
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        tokio::task::spawn_local(async move {
            let looked = tokio::time::timeout(LOOKUP_WITHIN, command.output()).await;
            let found = match looked {
                Ok(Ok(output)) if output.status.success() => {
                    serde_json::from_slice(&output.stdout).map_err(AccountLookupError::Answer)
                }
                Ok(Ok(output)) => Err(AccountLookupError::Failed(output.status)),
                Ok(Err(error)) => Err(AccountLookupError::Run(error)),
                Err(_) => Err(AccountLookupError::Late),
            };
            // Fails only when the node itself is going down.
            let _ = node.send(NodeInput::Account { name, found }).await;
        });
    }
}

/// Answers of the name service, and the launches that wait for one.
#[derive(Debug, Default)]
pub struct AccountCache {
    found: BTreeMap<String, (LookupResult, Millis)>,
    waiting: BTreeMap<String, Vec<LaunchOrder>>,
    looked_up: BTreeMap<String, Millis>,
}

/// Returns whether the data folder lies where a private folder over `/tmp` would hide it.
fn in_tmp(data: &Path) -> bool {
    ["/tmp", "/var/tmp"].iter().any(|tmp| data.starts_with(tmp))
}

/// What to do for a launch.
#[derive(Debug, PartialEq, Eq)]
enum LookupStep {
    /// Use the answer.
    Use,
    /// Use the answer, and look it up again.
    Refresh,
    /// Wait for an answer.
    Wait,
}

impl AccountCache {
    fn step(&self, name: &str, now: Millis) -> LookupStep {
        match self.found.get(name) {
            Some((Ok(Some(_)), at)) if now < at.plus(FRESH_FOR) => LookupStep::Use,
            Some((Ok(Some(_)), _)) => LookupStep::Refresh,
            Some((Ok(None), at)) if now < at.plus(UNKNOWN_FOR) => LookupStep::Use,
            Some(_) | None => LookupStep::Wait,
        }
    }

    /// Returns the order with its account; `None` if it waits for the name service, which then sends
    /// [`NodeInput::Account`].
    pub fn resolve(
        &mut self,
        rules: &AccountRules,
        order: LaunchOrder,
        now: Millis,
        node: &mpsc::Sender<NodeInput>,
    ) -> Option<(LaunchOrder, Result<JobAccount, PlacementRefusal>)> {
        if !rules.is_submitter() {
            return Some((order, Ok(rules.of_agent())));
        }
        let name = order.user.clone();
        let step = self.step(&name, now);
        if step != LookupStep::Use {
            // One look-up at a time for each name.
            let is_new = self.looked_up.insert(name.clone(), now).is_none();
            if is_new {
                rules.look_up(name.clone(), node.clone());
            }
        }
        if step == LookupStep::Wait {
            let waiting: usize = self.waiting.values().map(Vec::len).sum();
            if waiting >= WAITING_MAX {
                let reason = "too many jobs wait for the node's name service".to_owned();
                return Some((order, Err(PlacementRefusal::Account { by_job: false, reason })));
            }
            self.waiting.entry(name).or_default().push(order);
            return None;
        }
        let (found, _) = self.found.get(&name)?;
        let decided = rules.decide(&name, found);
        Some((order, decided))
    }

    /// Records an answer, and returns the launches that waited for it.
    pub fn found(&mut self, name: String, found: LookupResult, now: Millis) -> Vec<LaunchOrder> {
        self.looked_up.remove(&name);
        let waiting = self.waiting.remove(&name).unwrap_or_default();
        if self.found.len() >= NAMES_MAX {
            let oldest = self.found.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.found.remove(&oldest);
            }
        }
        // A failed service does not make a known user unknown.
        let known = self.found.get(&name).is_some_and(|(known, _)| matches!(known, Ok(Some(_))));
        if found.is_ok() || !known {
            self.found.insert(name, (found, now));
        }
        waiting
    }

    /// Decides with an answer that has just arrived, regardless of its maximum age.
    pub fn decide(&self, rules: &AccountRules, user: &str) -> Result<JobAccount, PlacementRefusal> {
        match self.found.get(user) {
            Some((found, _)) => rules.decide(user, found),
            None => rules.decide(user, &Err(AccountLookupError::None)),
        }
    }
}

/// Prints an account for the agent that started this process.
///
/// # Errors
///
/// The name service failed.
pub fn print(name: &str, file: Option<&Path>) -> io::Result<()> {
    let found = match file {
        Some(file) => in_file(&std::fs::read_to_string(file)?, name),
        None => in_name_service(name)?,
    };
    let text = serde_json::to_vec(&found).map_err(io::Error::other)?;
    io::stdout().write_all(&text)
}

/// Finds an account in a text like that of `/etc/passwd`.
fn in_file(text: &str, name: &str) -> Option<LocalAccount> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [found, _, uid, gid, _, home, shell] = fields.as_slice() else { return None };
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        let numbers = AccountNumbers { uid, gid, groups: vec![gid] };
        (*found == name).then(|| LocalAccount {
            numbers,
            home: (*home).to_owned(),
            shell: (*shell).trim().to_owned(),
        })
    })
}

/// Queries the system's name service.
fn in_name_service(name: &str) -> io::Result<Option<LocalAccount>> {
    /// Longer than entries with thousands of groups.
    const ENTRY_BYTES: usize = 1 << 20;
    let name = CString::new(name)?;
    // SAFETY: zeroed pointers and numbers are valid.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut buffer = vec![0; ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: all places are valid for writes, and the buffer's length is given.
    let failed = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            &raw mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
        )
    };
    if found.is_null() {
        // Unknown names give any of these, by the manual.
        return match failed {
            0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => Ok(None),
            error => Err(io::Error::from_raw_os_error(error)),
        };
    }
    let mut groups = vec![0; GROUPS_MAX];
    let mut count: libc::c_int = clamped(groups.len());
    // SAFETY: the array's length is given.
    let listed = unsafe {
        libc::getgrouplist(name.as_ptr(), entry.pw_gid, groups.as_mut_ptr(), &raw mut count)
    };
    if listed < 0 {
        return Err(io::Error::other(format!("the account is in more than {GROUPS_MAX} groups")));
    }
    groups.truncate(clamped(count));
    // SAFETY: the entry's texts are C strings in the buffer, which still lives.
    let text = |text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    Ok(Some(LocalAccount {
        numbers: AccountNumbers { uid: entry.pw_uid, gid: entry.pw_gid, groups },
        home: text(entry.pw_dir),
        shell: text(entry.pw_shell),
    }))
}

/// Maximum number of groups of an account: the kernel's own limit.
const GROUPS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "root:x:0:0:root:/root:/bin/bash\n\
                        broken\n\
                        ada:x:64001:64001:Ada:/home/ada:/bin/sh\n";

    fn rules(own: u32) -> AccountRules {
        AccountRules {
            run_as: RunAs::Submitter,
            policy: Policy { own, caller: own, uid_min: 1000, root_jobs: false },
            abilities: Abilities::default(),
            private_tmp: true,
            hide_processes: true,
            no_new_privileges: true,
            tasks_max: 100,
            guarded: None,
            program: "/nowhere".into(),
            file: None,
        }
    }

    #[test]
    fn an_account_is_found_in_a_file_by_its_whole_name() {
        let ada = in_file(FILE, "ada").unwrap();

        assert_eq!((ada.numbers.uid, ada.home.as_str()), (64_001, "/home/ada"));
        assert_eq!(in_file(FILE, "ad"), None);
        assert_eq!(in_file(FILE, "broken"), None);
    }

    #[test]
    fn root_is_found_by_the_name_service_and_nobody_of_that_name_is_not() {
        assert_eq!(in_name_service("root").unwrap().unwrap().numbers.uid, 0);
        assert_eq!(in_name_service("no-such-user-of-tessera").unwrap(), None);
    }

    #[test]
    fn a_user_without_an_account_is_the_jobs_fault_and_a_silent_service_the_nodes() {
        let unknown = rules(0).decide("eve", &Ok(None)).unwrap_err();
        assert!(matches!(&unknown, PlacementRefusal::Account { by_job: true, .. }), "{unknown}");
        assert!(unknown.to_string().contains("no account eve"), "{unknown}");
        let silent = rules(0).decide("ada", &Err(AccountLookupError::Late)).unwrap_err();
        assert!(matches!(silent, PlacementRefusal::Account { by_job: false, .. }));
        let root = rules(0).decide("root", &Ok(in_file(FILE, "root"))).unwrap_err();
        assert!(root.to_string().contains("root are refused"), "{root}");
    }

    #[test]
    fn jobs_change_to_their_account_where_the_launcher_can() {
        let ada = Ok(in_file(FILE, "ada"));

        let job = rules(0).decide("ada", &ada).unwrap();
        assert_eq!(job.confinement.account.unwrap().uid, 64_001);
        assert!(job.confinement.private_tmp);
        assert!(job.variables.contains(&("HOME", "/home/ada".to_owned())));
        let own = rules(64_001).decide("ada", &ada).unwrap();
        assert_eq!(own.confinement.account, None);
        assert!(
            rules(64_002).decide("ada", &ada).unwrap_err().to_string().contains("no privileges")
        );
    }

    #[test]
    fn answers_are_used_for_a_while_and_refreshed_in_the_background() {
        let mut cache = AccountCache::default();
        let at = Millis::from_secs;
        assert_eq!(cache.step("ada", at(0)), LookupStep::Wait);
        assert!(cache.found("ada".into(), Ok(in_file(FILE, "ada")), at(0)).is_empty());
        assert_eq!(cache.step("ada", at(59)), LookupStep::Use);
        assert_eq!(cache.step("ada", at(61)), LookupStep::Refresh);
        cache.found("ada".into(), Err(AccountLookupError::Late), at(62));
        assert_eq!(cache.step("ada", at(63)), LookupStep::Refresh, "still known");
        cache.found("eve".into(), Ok(None), at(0));
        assert_eq!(cache.step("eve", at(4)), LookupStep::Use);
        assert_eq!(cache.step("eve", at(6)), LookupStep::Wait);
        cache.found("bob".into(), Err(AccountLookupError::Late), at(0));
        assert_eq!(cache.step("bob", at(1)), LookupStep::Wait);
    }
}
