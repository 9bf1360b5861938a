//! One control daemon from its start to its end.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tessera_launch::user_worker::FOLDERS;
use tessera_model::{AttemptId, BootId, SliceId};
use tokio::time::Instant;

use super::MpsSettings;
use super::access::DaemonAccess;
use super::control::{COMMAND_WITHIN, ControlClient, ControlError};
use super::log::FollowedLog;
use super::messages::{CanaryError, DaemonFile, DaemonReply, DaemonTask, WorkerError};
use crate::shepherd::protocol::AccountNumbers;
use crate::sys::identity::{ProcessIdentity, WatchedProcess};
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
/// Longest path of a folder of pipes: sockets have 108 bytes, and names are appended to it.
const PATH_MAX: usize = 80;

/// A daemon that serves.
#[derive(Debug)]
pub struct MpsDaemon {
    /// Its control program.
    pub control: ControlClient,
    access: DaemonAccess,
    folder: PathBuf,
    slice: SliceId,
    boot: BootId,
    process: Option<(ProcessIdentity, WatchedProcess)>,
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
    /// The worker of the daemon's user did not do its part.
    #[error("MPS can't be started for the slice: {0}")]
    Worker(#[from] WorkerError),
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

    /// Takes over what an earlier agent left in a folder. Its process is looked for by [`Self::find_process`].
    pub fn adopt(
        settings: &MpsSettings,
        folder: PathBuf,
        slice: SliceId,
        boot: BootId,
        account: Option<AccountNumbers>,
    ) -> Self {
        let account = account.or_else(|| owner_of(&folder));
        Self::in_folder(settings, folder, slice, boot, account)
    }

    fn in_folder(
        settings: &MpsSettings,
        folder: PathBuf,
        slice: SliceId,
        boot: BootId,
        account: Option<AccountNumbers>,
    ) -> Self {
        let [pipes, logs] = FOLDERS.map(|name| folder.join(name));
        let server_log = FollowedLog::new(DaemonFile::ServerLog);
        let control_log = FollowedLog::new(DaemonFile::ControlLog);
        let access = DaemonAccess::new(settings.launcher.as_deref(), account.as_ref());
        let program = settings.control.clone();
        let control = ControlClient { program, pipes, logs, account };
        Self {
            control,
            access,
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
        let pipes = self.control.pipes.clone();
        if pipes.as_os_str().len() > PATH_MAX {
            return Err(MpsStartError::PathTooLong { pipes });
        }
        self.make_folders().await?;
        let environment = self.environment(settings);
        let (folder, within) = (self.folder.clone(), START_WITHIN);
        let task = DaemonTask::Start { environment, folder, within };
        match self.access.request(&self.control, task).await? {
            DaemonReply::Started(Ok(())) => {}
            DaemonReply::Started(Err((error, output))) => return Err(explained(error, &output)),
            _ => return Err(WorkerError::Answer.into()),
        }
        self.find_process().await;
        let line = format!("start_server -uid {}", self.control.uid());
        let server = self.command(&line, START_WITHIN).await;
        let text = server.map_err(|error| explained(error, ""))?;
        if let Some(complaint) = daemon_output::complaint(&text) {
            return Err(MpsStartError::Complaint(complaint));
        }
        self.wait_active(START_WITHIN).await?;
        // Written by a daemon that listens already.
        if self.process.is_none() {
            self.find_process().await;
        }
        Ok(())
    }

    /// Makes the folders that belong to the daemon's user.
    async fn make_folders(&mut self) -> Result<(), MpsStartError> {
        // Its user passes through the agent's folder to the daemon's own.
        fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o711))
            .map_err(|cause| MpsStartError::Folder { path: self.folder.clone(), cause })?;
        if let DaemonAccess::User(worker) = &mut self.access {
            return Ok(worker.make_folders(&self.folder, &self.control).await?);
        }
        for folder in [&self.control.pipes, &self.control.logs] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            let given = made.and_then(|()| match &self.control.account {
                Some(account) => chown(folder, Some(account.uid), Some(account.gid)),
                None => Ok(()),
            });
            given.map_err(|cause| MpsStartError::Folder { path: folder.clone(), cause })?;
        }
        Ok(())
    }

    /// Returns the variables of the daemon.
    fn environment(&self, settings: &MpsSettings) -> Vec<(String, String)> {
        let path = ("PATH".to_owned(), self.search_path());
        std::iter::once(path).chain(self.client_variables(settings)).collect()
    }

    /// Returns the variables of all that the agent starts for the slice.
    fn client_variables(&self, settings: &MpsSettings) -> Vec<(String, String)> {
        let shown = |path: &Path| path.display().to_string();
        let own = [
            ("CUDA_MPS_PIPE_DIRECTORY", shown(&self.control.pipes)),
            ("CUDA_MPS_LOG_DIRECTORY", shown(&self.control.logs)),
            ("CUDA_VISIBLE_DEVICES", self.slice.as_str().to_owned()),
            // Marks the daemon and its servers as ours for all that list a GPU's processes.
            (MARK, shown(&self.folder)),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        settings.passed.iter().cloned().chain(own).collect()
    }

    /// Sends the daemon one command.
    async fn command(&mut self, line: &str, within: Duration) -> Result<String, ControlError> {
        let task = DaemonTask::Command { line: line.to_owned(), within };
        match self.access.request(&self.control, task).await? {
            DaemonReply::Ran(ran) => ran,
            _ => Err(WorkerError::Answer.into()),
        }
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
            self.follow().await;
            let server = self.servers().await.ok().and_then(|servers| servers.first().copied());
            match server {
                Some(server) if self.serves(server).await => return Ok(()),
                Some(_) => {}
                None => self.check_stillborn().await?,
            }
            if Instant::now() > ends {
                return Err(MpsStartError::NoServer { within });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns whether a server accepts clients.
    async fn serves(&mut self, server: u32) -> bool {
        match self.status_of(server).await {
            Ok(ServerStatus::Active) => true,
            // Drivers before 550 don't report it, their log does. A daemon that can't write one
            // lists at least its server, and the first client waits for it.
            Ok(ServerStatus::NotReported) => {
                self.reported.is_ready(server) || !self.control_log.is_there()
            }
            Ok(ServerStatus::Fault | ServerStatus::Unready) | Err(_) => false,
        }
    }

    /// Reads what the daemon wrote since the last check.
    async fn follow(&mut self) {
        let lines = self.control_log.new_lines(&mut self.access, &self.control).await;
        self.reported.read(&lines);
    }

    /// Returns an error if a server ended while it started.
    async fn check_stillborn(&mut self) -> Result<(), MpsStartError> {
        let Some((pid, status)) = self.reported.failed_server() else { return Ok(()) };
        let mut log = FollowedLog::new(DaemonFile::ServerLog);
        let log = log.new_lines(&mut self.access, &self.control).await;
        let hint = "does this user reach the GPU, libcuda.so.1 and nvidia-cuda-mps-server?";
        let reason = daemon_output::last_line(&log).unwrap_or_else(|| hint.to_owned());
        Err(MpsStartError::Stillborn { pid, status, reason })
    }

    async fn servers(&mut self) -> Result<Vec<u32>, ControlError> {
        let list = daemon_output::pids(&self.command("get_server_list", COMMAND_WITHIN).await?);
        self.servers = self.identify(list.clone()).await?;
        Ok(list)
    }

    /// Identifies those of these processes that are of the daemon's account.
    async fn identify(&mut self, pids: Vec<u32>) -> Result<Vec<ProcessIdentity>, WorkerError> {
        if pids.is_empty() {
            return Ok(Vec::new());
        }
        let task = DaemonTask::Identify { boot: self.boot, pids };
        match self.access.request(&self.control, task).await? {
            DaemonReply::Processes(found) => Ok(found),
            _ => Err(WorkerError::Answer),
        }
    }

    async fn status_of(&mut self, server: u32) -> Result<ServerStatus, ControlError> {
        self.command(&format!("get_server_status {server}"), COMMAND_WITHIN)
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
            let list = self.command(&format!("get_client_list {server}"), COMMAND_WITHIN).await?;
            clients.extend(daemon_output::pids(&list));
        }
        Ok(clients)
    }

    /// Returns those of these processes that belong to attempts, with their attempts.
    pub async fn owners(&mut self, pids: Vec<u32>) -> Vec<(u32, AttemptId)> {
        if pids.is_empty() {
            return Vec::new();
        }
        match self.access.request(&self.control, DaemonTask::Owners(pids)).await {
            Ok(DaemonReply::Owners(owners)) => owners,
            // The next check requests them again.
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    /// Returns whether the daemon's process exists; this costs one system call.
    pub fn is_alive(&self) -> bool {
        self.process.as_ref().is_some_and(|(_, process)| process.is_alive())
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
        self.follow().await;
        let reported = self.new_faults().await;
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
            return DaemonHealth::Dead(self.server_died(&before).await);
        };
        match self.status_of(*server).await {
            Ok(ServerStatus::Fault) => DaemonHealth::Faulted(self.new_faults().await),
            Ok(ServerStatus::Active | ServerStatus::Unready | ServerStatus::NotReported) => {
                DaemonHealth::Good
            }
            Err(error) => {
                DaemonHealth::Dead(format!("the slice's MPS server doesn't answer: {error}"))
            }
        }
    }

    /// Returns that the server is gone, and how it ended if the daemon noticed.
    async fn server_died(&mut self, before: &[ProcessIdentity]) -> String {
        self.follow().await;
        let status = before.iter().find_map(|server| self.reported.end_of(server.pid));
        let how = status.map_or(String::new(), |status| format!(" (status {status})"));
        format!("the slice's MPS server died{how}")
    }

    /// Reads the faults that the server logged since the last check.
    async fn new_faults(&mut self) -> FaultLines {
        let lines = self.server_log.new_lines(&mut self.access, &self.control).await;
        daemon_output::fault_lines(&lines)
    }

    /// Runs a small kernel as a client.
    ///
    /// # Errors
    ///
    /// [`CanaryError`].
    pub async fn canary(&mut self, settings: &MpsSettings) -> Result<(), CanaryError> {
        let (command, environment) = (settings.canary.clone(), self.client_variables(settings));
        let task = DaemonTask::Canary { command, environment };
        match self.access.request(&self.control, task).await? {
            DaemonReply::Canary(ran) => ran,
            _ => Err(WorkerError::Answer.into()),
        }
    }

    /// Ends the daemon and its servers, in order if they answer, and removes their folders.
    pub async fn stop(mut self) {
        if self.is_alive() && !self.broken {
            // So that the servers are known if the daemon does not end them.
            let _ = self.servers().await;
            let _ = self.command(&format!("quit -t {QUIT_WITHIN_SECS}"), COMMAND_WITHIN).await;
        }
        self.kill().await;
        if let DaemonAccess::User(_) = self.access {
            // The agent may remove only empty folders of the user's. What is left is tried again by the next agent.
            let _ = self.access.request(&self.control, DaemonTask::Clear).await;
            for folder in [&self.control.pipes, &self.control.logs] {
                let _ = fs::remove_dir(folder);
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// Kills the daemon and its servers, wherever they hang.
    async fn kill(&mut self) {
        let daemon = self.process.take().map(|(daemon, _)| daemon);
        let processes = daemon.into_iter().chain(self.servers.iter().copied()).collect();
        let task = DaemonTask::Kill { processes, mark: self.mark() };
        if let Err(error) = self.access.request(&self.control, task).await {
            tracing::warn!(%error, slice = %self.slice, "the slice's MPS daemon may be left");
        }
    }

    /// Returns what marks the daemon's processes.
    fn mark(&self) -> String {
        format!("{MARK}={}", self.folder.display())
    }

    /// Finds the daemon's process, and watches it.
    pub async fn find_process(&mut self) {
        let task = DaemonTask::Find { boot: self.boot, mark: self.mark() };
        let Ok(DaemonReply::Processes(found)) = self.access.request(&self.control, task).await
        else {
            return;
        };
        let Some(found) = found.first().copied() else { return };
        let Ok(watched) = WatchedProcess::open(found.pid) else { return };
        // Its number may have been another's when it was opened.
        let identified = self.identify(vec![found.pid]).await;
        if identified.is_ok_and(|identified| identified.contains(&found)) {
            self.process = Some((found, watched));
        }
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

/// Adds what the control program printed.
fn explained(error: ControlError, output: &str) -> MpsStartError {
    let text = output.trim();
    let output = if text.is_empty() { String::new() } else { format!(" ({text})") };
    MpsStartError::Control { error, output }
}
