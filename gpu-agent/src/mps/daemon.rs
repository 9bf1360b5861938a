//! One control daemon from its start to its end.

use std::fs;
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown,
};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tessera_model::{BootId, SliceId};
use tokio::time::Instant;

use super::MpsSettings;
use super::control::{ControlClient, ControlError, run_as};
use super::log::{FollowedLog, read_own};
use crate::shepherd::protocol::AccountNumbers;
use crate::sys::identity::{self, ProcessIdentity};
use tessera_agent_core::mps::daemon_output::{self, ControlLog, FaultLines, ServerStatus};

/// The variable that marks a daemon's processes as ours in any list of processes.
pub const MARK: &str = "TESSERA_MPS";
/// How long a daemon and its server may take until they serve. On machines without NVIDIA's
/// persistence daemon a server initialises every GPU first.
pub const START_WITHIN: Duration = Duration::from_secs(30);
/// How long an orderly end may take before everything is killed.
const QUIT_WITHIN_SECS: u64 = 2;
/// How often a starting server is polled.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a small kernel may take (M4).
const CANARY_WITHIN: Duration = Duration::from_secs(10);
/// Longest path of a folder of pipes: sockets have 108 bytes, and names are appended to it.
const PATH_MAX: usize = 80;

/// A daemon that serves.
#[derive(Debug)]
pub struct MpsDaemon {
    /// Its control program.
    pub control: ControlClient,
    folder: PathBuf,
    slice: SliceId,
    boot: BootId,
    process: Option<ProcessIdentity>,
    servers: Vec<ProcessIdentity>,
    server_log: FollowedLog,
    control_log: FollowedLog,
    reported: ControlLog,
    /// Whether it was found dead or silent: nothing more is sent to it.
    broken: bool,
}

/// Why a slice's daemon or its server doesn't start.
#[derive(Debug, thiserror::Error)]
pub enum MpsStartError {
    /// A socket in the folder of pipes would have too long a name.
    #[error("the path of MPS's pipes is longer than {PATH_MAX} bytes: {}", pipes.display())]
    PathTooLong {
        /// The folder of pipes.
        pipes: PathBuf,
    },
    /// A folder can't be made.
    #[error("{} can't be made: {cause}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The file of the daemon's output can't be made.
    #[error("{}: {cause}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// No descriptor is left for the daemon's output.
    #[error("{0}")]
    Descriptor(io::Error),
    /// The control program failed.
    #[error("MPS can't be started for the slice: {error}{output}")]
    Control {
        /// How it failed.
        error: ControlError,
        /// What it printed, in parentheses; empty if it printed nothing.
        output: String,
    },
    /// The daemon refused to start a server.
    #[error("MPS can't be started for the slice: {0}")]
    Complaint(String),
    /// A server ended while it started.
    #[error(
        "MPS can't be started for the slice: its server {pid} ended with status {status} before it \
         served ({reason})"
    )]
    Stillborn {
        /// The server's process.
        pid: u32,
        /// Its exit status.
        status: i32,
        /// The last line of its log, or a hint.
        reason: String,
    },
    /// No server accepts clients in time.
    #[error("no MPS server serves within {} s", within.as_secs())]
    NoServer {
        /// The waiting time.
        within: Duration,
    },
}

/// Why the canary of a slice failed.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// It did not end in time.
    #[error("no answer within {} s", CANARY_WITHIN.as_secs())]
    Silent,
    /// It can't be run.
    #[error("{program}: {cause}")]
    NotRun {
        /// Path of the program that could not be started.
        program: String,
        /// The system's error.
        cause: io::Error,
    },
    /// It ran and failed; its error output.
    #[error("{0}")]
    Failed(String),
}

/// The state of a daemon.
#[derive(Debug)]
pub enum DaemonHealth {
    /// It serves.
    Good,
    /// Its server is in fault; its log may name the culprit.
    Faulted(FaultLines),
    /// It is gone or answers no more; why, for people.
    Dead(String),
}

impl MpsDaemon {
    /// Starts a daemon for a slice in separate folders, and waits until its server serves.
    ///
    /// # Errors
    ///
    /// [`MpsStartError`]; nothing of the daemon is left.
    pub async fn start(
        settings: &MpsSettings,
        folder: PathBuf,
        slice: SliceId,
        boot: BootId,
        account: Option<AccountNumbers>,
    ) -> Result<Self, MpsStartError> {
        let mut daemon = Self::in_folder(settings, folder, slice, boot, account);
        match daemon.bring_up(settings).await {
            Ok(()) => Ok(daemon),
            Err(error) => {
                daemon.stop().await;
                Err(error)
            }
        }
    }

    /// Finds a daemon of an earlier agent in its folder.
    pub fn adopt(
        settings: &MpsSettings,
        folder: PathBuf,
        slice: SliceId,
        boot: BootId,
        account: Option<AccountNumbers>,
    ) -> Self {
        let account = account.or_else(|| owner_of(&folder));
        let mut daemon = Self::in_folder(settings, folder, slice, boot, account);
        daemon.process = daemon.find_process();
        daemon
    }

    fn in_folder(
        settings: &MpsSettings,
        folder: PathBuf,
        slice: SliceId,
        boot: BootId,
        account: Option<AccountNumbers>,
    ) -> Self {
        let logs = folder.join("l");
        let server_log = FollowedLog::new(logs.join("server.log"));
        let control_log = FollowedLog::new(logs.join("control.log"));
        let (program, pipes) = (settings.control.clone(), folder.join("p"));
        let control = ControlClient { program, pipes, logs, account };
        Self {
            control,
            folder,
            slice,
            boot,
            process: None,
            servers: Vec::new(),
            server_log,
            control_log,
            reported: ControlLog::default(),
            broken: false,
        }
    }

    async fn bring_up(&mut self, settings: &MpsSettings) -> Result<(), MpsStartError> {
        let pipes = &self.control.pipes;
        if pipes.as_os_str().len() > PATH_MAX {
            return Err(MpsStartError::PathTooLong { pipes: pipes.clone() });
        }
        // Its user passes through the agent's folder to the daemon's own.
        fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o711))
            .map_err(|cause| MpsStartError::Folder { path: self.folder.clone(), cause })?;
        for folder in [pipes, &self.control.logs] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            let given = made.and_then(|()| match &self.control.account {
                Some(account) => chown(folder, Some(account.uid), Some(account.gid)),
                None => Ok(()),
            });
            given.map_err(|cause| MpsStartError::Folder { path: folder.clone(), cause })?;
        }
        let out = self.out_file()?;
        let mut command = self.control.command();
        command
            .arg("-d")
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", self.search_path())
            .envs(settings.passed.iter().map(|(name, value)| (name, value)))
            .env("CUDA_MPS_PIPE_DIRECTORY", pipes)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.control.logs)
            .env("CUDA_VISIBLE_DEVICES", self.slice.as_str())
            // Marks the daemon and its servers as ours for all that list a GPU's processes.
            .env(MARK, &self.folder)
            // A file, not pipes: a daemon would hold pipes open forever.
            .stdout(out.try_clone().map_err(MpsStartError::Descriptor)?)
            .stderr(out)
            .process_group(0);
        let started = self.control.finish(command, None, "-d", START_WITHIN).await;
        started.map_err(|error| self.explained(error))?;
        self.process = self.find_process();
        let uid = self.uid();
        let start = self.control.clone();
        let mut command = start.command();
        command.stdin(Stdio::piped());
        let line = format!("start_server -uid {uid}");
        let server = start.finish(command, Some(&line), &line, START_WITHIN).await;
        let text = server.map_err(|error| self.explained(error))?;
        if let Some(complaint) = daemon_output::complaint(&text) {
            return Err(MpsStartError::Complaint(complaint));
        }
        self.wait_active(START_WITHIN).await?;
        // Written by a daemon that listens already.
        self.process = self.process.or_else(|| self.find_process());
        Ok(())
    }

    fn out_file(&self) -> Result<fs::File, MpsStartError> {
        let path = self.folder.join("start.out");
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.map_err(|cause| MpsStartError::Output { path, cause })
    }

    fn explained(&self, error: ControlError) -> MpsStartError {
        let text = read_own(&self.folder.join("start.out"));
        let text = text.trim();
        let output = if text.is_empty() { String::new() } else { format!(" ({text})") };
        MpsStartError::Control { error, output }
    }

    /// Returns the path in which the daemon finds its server: its own folder first, as NVIDIA installs them.
    fn search_path(&self) -> String {
        let own_folder = self.control.program.parent().map(|folder| folder.display().to_string());
        let own_folder = own_folder.filter(|folder| !folder.is_empty());
        let usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        own_folder.map_or(usual.to_owned(), |folder| format!("{folder}:{folder}/../sbin:{usual}"))
    }

    /// Waits until a server serves.
    ///
    /// # Errors
    ///
    /// [`MpsStartError`]: at once if the server ended, else when the time is over.
    pub async fn wait_active(&mut self, within: Duration) -> Result<(), MpsStartError> {
        let ends = Instant::now() + within;
        loop {
            self.follow();
            let server = self.servers().await.ok().and_then(|servers| servers.first().copied());
            match server {
                Some(server) if self.serves(server).await => return Ok(()),
                Some(_) => {}
                None => self.check_stillborn()?,
            }
            if Instant::now() > ends {
                return Err(MpsStartError::NoServer { within });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns whether a server accepts clients.
    async fn serves(&self, server: u32) -> bool {
        match self.status_of(server).await {
            Ok(ServerStatus::Active) => true,
            // Drivers before 550 don't report it, their log does. A daemon that can't write one
            // lists at least its server, and the first client waits for it.
            Ok(ServerStatus::NotReported) => {
                let log = self.control.logs.join("control.log");
                self.reported.is_ready(server) || fs::symlink_metadata(log).is_err()
            }
            Ok(ServerStatus::Fault | ServerStatus::Unready) | Err(_) => false,
        }
    }

    /// Reads what the daemon wrote since the last check.
    fn follow(&mut self) {
        let lines = self.control_log.new_lines();
        self.reported.read(&lines);
    }

    /// Returns an error if a server ended while it started.
    fn check_stillborn(&self) -> Result<(), MpsStartError> {
        let Some((pid, status)) = self.reported.failed_server() else { return Ok(()) };
        let log = read_own(&self.control.logs.join("server.log"));
        let hint = "does this user reach the GPU, libcuda.so.1 and nvidia-cuda-mps-server?";
        let reason = daemon_output::last_line(&log).unwrap_or_else(|| hint.to_owned());
        Err(MpsStartError::Stillborn { pid, status, reason })
    }

    async fn servers(&mut self) -> Result<Vec<u32>, ControlError> {
        let list = daemon_output::pids(&self.control.request("get_server_list").await?);
        let known = |pid: &u32| self.own_process(*pid);
        self.servers = list.iter().filter_map(known).collect();
        Ok(list)
    }

    async fn status_of(&self, server: u32) -> Result<ServerStatus, ControlError> {
        self.control
            .request(&format!("get_server_status {server}"))
            .await
            .map(|text| daemon_output::status(&text))
    }

    /// Returns the clients of all servers.
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub async fn clients(&mut self) -> Result<Vec<u32>, ControlError> {
        let mut clients = Vec::new();
        for server in self.servers().await? {
            let list = self.control.request(&format!("get_client_list {server}")).await?;
            clients.extend(daemon_output::pids(&list));
        }
        Ok(clients)
    }

    /// Returns whether the daemon's process exists; this only reads `/proc`.
    pub fn is_alive(&self) -> bool {
        self.process.is_some_and(|process| process.is_alive(self.boot))
    }

    /// Checks the daemon, its server and new lines of its log.
    pub async fn health(&mut self) -> DaemonHealth {
        let health = self.look().await;
        self.broken |= matches!(health, DaemonHealth::Dead(_));
        health
    }

    async fn look(&mut self) -> DaemonHealth {
        if !self.is_alive() {
            return DaemonHealth::Dead("the slice's MPS daemon died".to_owned());
        }
        self.follow();
        let reported = self.new_faults();
        if reported.fatal {
            return DaemonHealth::Faulted(reported);
        }
        let before = self.servers.clone();
        let servers = match self.servers().await {
            Ok(servers) => servers,
            Err(ControlError::Refused { answer, .. }) if daemon_output::nobody_there(&answer) => {
                return DaemonHealth::Dead("the slice's MPS daemon died".to_owned());
            }
            Err(error) => {
                return DaemonHealth::Dead(format!("the slice's MPS daemon hangs: {error}"));
            }
        };
        let Some(server) = servers.first() else {
            return DaemonHealth::Dead(self.server_died(&before));
        };
        match self.status_of(*server).await {
            Ok(ServerStatus::Fault) => DaemonHealth::Faulted(self.new_faults()),
            Ok(ServerStatus::Active | ServerStatus::Unready | ServerStatus::NotReported) => {
                DaemonHealth::Good
            }
            Err(error) => {
                DaemonHealth::Dead(format!("the slice's MPS server doesn't answer: {error}"))
            }
        }
    }

    /// Returns that the server is gone, and how it ended if the daemon noticed.
    fn server_died(&mut self, before: &[ProcessIdentity]) -> String {
        self.follow();
        let status = before.iter().find_map(|server| self.reported.end_of(server.pid));
        let how = status.map_or(String::new(), |status| format!(" (status {status})"));
        format!("the slice's MPS server died{how}")
    }

    /// Reads the faults that the server logged since the last check.
    fn new_faults(&mut self) -> FaultLines {
        daemon_output::fault_lines(&self.server_log.new_lines())
    }

    /// Runs a small kernel as a client.
    ///
    /// # Errors
    ///
    /// [`CanaryError`].
    pub async fn canary(&self, settings: &MpsSettings) -> Result<(), CanaryError> {
        let Some((program, arguments)) = settings.canary.split_first() else { return Ok(()) };
        let mut command = tokio::process::Command::new(program);
        if let Some(account) = &self.control.account {
            run_as(command.as_std_mut(), account);
        }
        command
            .args(arguments)
            .envs(settings.passed.iter().map(|(name, value)| (name, value)))
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.control.pipes)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.control.logs)
            .env("CUDA_VISIBLE_DEVICES", self.slice.as_str())
            .env(MARK, &self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let ran = tokio::time::timeout(CANARY_WITHIN, command.output()).await;
        match ran {
            Err(_) => Err(CanaryError::Silent),
            Ok(Err(cause)) => Err(CanaryError::NotRun { program: program.clone(), cause }),
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => {
                let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(CanaryError::Failed(errors))
            }
        }
    }

    /// Ends the daemon and its servers, in order if they answer, and removes their folders.
    pub async fn stop(mut self) {
        if self.is_alive() && !self.broken {
            // So that the servers are known if the daemon does not end them.
            let _ = self.servers().await;
            let _ = self.control.request(&format!("quit -t {QUIT_WITHIN_SECS}")).await;
        }
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// Kills the daemon and its servers, wherever they hang.
    fn kill(&self) {
        for process in self.process.iter().chain(&self.servers) {
            process.kill(self.boot);
        }
        // Servers that were never listed carry the mark of their folder.
        identity::kill_marked(&format!("{MARK}={}", self.folder.display()));
    }

    /// Finds the daemon: by its own file, or, as drivers before 550 write none, as the oldest
    /// process of the control program that carries the folder's mark.
    fn find_process(&self) -> Option<ProcessIdentity> {
        let path = self.control.pipes.join("nvidia-cuda-mps-control.pid");
        let written = read_own(&path).trim().parse().ok();
        if let Some(found) = written.and_then(|pid| self.own_process(pid)) {
            return Some(found);
        }
        let marked = identity::marked(&format!("{MARK}={}", self.folder.display()));
        let daemons = marked.into_iter().filter(|pid| runs(*pid, &self.control.program));
        let found = daemons.filter_map(|pid| self.own_process(pid));
        found.min_by_key(|process| process.start_ticks)
    }

    /// Identifies a process of the daemon's account: what its user writes or answers may name any
    /// process.
    fn own_process(&self, pid: u32) -> Option<ProcessIdentity> {
        let process = ProcessIdentity::of(self.boot, pid).ok()?;
        let found = fs::metadata(format!("/proc/{pid}")).ok()?;
        (self.control.account.is_none() || found.uid() == self.uid()).then_some(process)
    }

    /// Returns the user that the daemon serves.
    pub fn uid(&self) -> u32 {
        let own = || rustix::process::geteuid().as_raw();
        self.control.account.as_ref().map_or_else(own, |account| account.uid)
    }

    /// Returns the account of the daemon; `None` for the agent's own.
    pub const fn account(&self) -> Option<&AccountNumbers> {
        self.control.account.as_ref()
    }

    /// Returns the folder that holds everything of this daemon.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Returns the account that a daemon's folder of pipes was given to; `None` for the agent's own.
fn owner_of(folder: &Path) -> Option<AccountNumbers> {
    let found = fs::symlink_metadata(folder.join("p")).ok()?;
    let account = AccountNumbers { uid: found.uid(), gid: found.gid(), groups: Vec::new() };
    (account.uid != rustix::process::geteuid().as_raw()).then_some(account)
}

/// Returns whether a process was started as this program.
fn runs(pid: u32, program: &Path) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let started = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = program.file_name().map(std::ffi::OsStr::as_encoded_bytes);
    name.is_some_and(|name| started.rsplit(|byte| *byte == b'/').next() == Some(name))
}
