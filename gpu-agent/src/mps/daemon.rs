//! One control daemon from its start to its end.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tessera_model::{BootId, SliceId};
use tokio::time::Instant;

use super::MpsSettings;
use super::control::{Control, ControlError};
use crate::core::mps::{self, FaultLines, ServerStatus};
use crate::sys::identity::{self, ProcessIdentity};

/// The variable by which a daemon's processes are known as ours, whoever lists them.
pub const MARK: &str = "TESSERA_MPS";
/// How long a daemon and its server may take until they serve. On machines without NVIDIA's
/// persistence daemon a server initialises every GPU first.
pub const START_WITHIN: Duration = Duration::from_secs(30);
/// How long an orderly end may take before everything is killed.
const QUIT_WITHIN_SECS: u64 = 2;
/// How often a server that starts is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a small kernel may take (M4).
const CANARY_WITHIN: Duration = Duration::from_secs(10);
/// Longest path of a folder of pipes: sockets have 108 bytes, and names are put behind it.
const PATH_MAX: usize = 80;
/// Most bytes of a log that are read at once: more than a fault writes for 48 clients.
const LOG_BYTES_MAX: u64 = 256 * 1024;

/// A daemon that serves.
#[derive(Debug)]
pub struct Daemon {
    /// Its control program.
    pub control: Control,
    folder: PathBuf,
    slice: SliceId,
    boot: BootId,
    process: Option<ProcessIdentity>,
    servers: Vec<ProcessIdentity>,
    log_read: u64,
    /// Whether it was found dead or silent: nothing is asked of it any more.
    broken: bool,
}

/// How a daemon stands.
#[derive(Debug)]
pub enum Health {
    /// It serves.
    Good,
    /// Its server is in fault; perhaps its log says whose.
    Faulted(FaultLines),
    /// It is gone or answers no more; why, for people.
    Dead(String),
}

impl Daemon {
    /// Starts a daemon for a slice in folders of its own, and waits until its server serves.
    ///
    /// # Errors
    ///
    /// Why it doesn't, for people; nothing of it is left.
    pub async fn start(
        settings: &MpsSettings,
        folder: PathBuf,
        slice: SliceId,
        boot: BootId,
    ) -> Result<Self, String> {
        let mut daemon = Self::in_folder(settings, folder, slice, boot);
        match daemon.bring_up(settings).await {
            Ok(()) => Ok(daemon),
            Err(reason) => {
                daemon.stop().await;
                Err(reason)
            }
        }
    }

    /// Finds a daemon of an earlier agent in its folder.
    pub fn adopt(settings: &MpsSettings, folder: PathBuf, slice: SliceId, boot: BootId) -> Self {
        let mut daemon = Self::in_folder(settings, folder, slice, boot);
        daemon.process = daemon.find_process();
        daemon
    }

    fn in_folder(settings: &MpsSettings, folder: PathBuf, slice: SliceId, boot: BootId) -> Self {
        let control = Control {
            program: settings.control.clone(),
            pipes: folder.join("p"),
            logs: folder.join("l"),
        };
        Self {
            control,
            folder,
            slice,
            boot,
            process: None,
            servers: Vec::new(),
            log_read: 0,
            broken: false,
        }
    }

    async fn bring_up(&mut self, settings: &MpsSettings) -> Result<(), String> {
        let pipes = &self.control.pipes;
        if pipes.as_os_str().len() > PATH_MAX {
            let shown = pipes.display();
            return Err(format!(
                "the path of MPS's pipes is longer than {PATH_MAX} bytes: {shown}"
            ));
        }
        for folder in [pipes, &self.control.logs] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| format!("{} can't be made: {error}", folder.display()))?;
        }
        let mut command = self.control.command();
        command
            .arg("-d")
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(settings.passed.iter().map(|(name, value)| (name, value)))
            .env("CUDA_MPS_PIPE_DIRECTORY", pipes)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.control.logs)
            .env("CUDA_VISIBLE_DEVICES", self.slice.as_str())
            // Marks the daemon and its servers as ours for whoever lists a GPU's processes.
            .env(MARK, &self.folder)
            // Files, not pipes: a daemon would hold pipes open for ever.
            .stdout(self.out_file()?)
            .stderr(Stdio::null())
            .process_group(0);
        let started = self.control.finish(command, None, "-d", START_WITHIN).await;
        started.map_err(|error| self.explained(&error))?;
        self.process = self.find_process();
        let uid = fs::metadata("/proc/self").map_or(0, |found| found.uid());
        let start = self.control.clone();
        let mut command = start.command();
        command.stdin(Stdio::piped());
        let line = format!("start_server -uid {uid}");
        let server = start.finish(command, Some(&line), &line, START_WITHIN).await;
        server.map_err(|error| self.explained(&error))?;
        self.wait_active(START_WITHIN).await?;
        // Written by a daemon that listens already.
        self.process = self.process.or_else(|| self.find_process());
        Ok(())
    }

    fn out_file(&self) -> Result<fs::File, String> {
        let path = self.folder.join("start.out");
        fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn explained(&self, error: &ControlError) -> String {
        let said = fs::read_to_string(self.folder.join("start.out")).unwrap_or_default();
        let said = said.trim();
        let more = if said.is_empty() { String::new() } else { format!(" ({said})") };
        format!("MPS can't be started for the slice: {error}{more}")
    }

    /// Waits until a server serves.
    ///
    /// # Errors
    ///
    /// That it doesn't, for people.
    pub async fn wait_active(&mut self, within: Duration) -> Result<(), String> {
        let ends = Instant::now() + within;
        loop {
            if let Ok(servers) = self.servers().await
                && let Some(server) = servers.first()
                && self.status_of(*server).await.is_ok_and(|s| s == ServerStatus::Active)
            {
                return Ok(());
            }
            if Instant::now() > ends {
                return Err(format!("no MPS server serves within {} s", within.as_secs()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn servers(&mut self) -> Result<Vec<u32>, ControlError> {
        let list = mps::pids(&self.control.ask("get_server_list").await?);
        let known = |pid: &u32| ProcessIdentity::of(self.boot, *pid).ok();
        self.servers = list.iter().filter_map(known).collect();
        Ok(list)
    }

    async fn status_of(&self, server: u32) -> Result<ServerStatus, ControlError> {
        self.control
            .ask(&format!("get_server_status {server}"))
            .await
            .map(|text| mps::status(&text))
    }

    /// Returns the clients of all servers.
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub async fn clients(&mut self) -> Result<Vec<u32>, ControlError> {
        let mut clients = Vec::new();
        for server in self.servers().await? {
            let list = self.control.ask(&format!("get_client_list {server}")).await?;
            clients.extend(mps::pids(&list));
        }
        Ok(clients)
    }

    /// Tells whether the daemon's process is there; costs no more than a look at `/proc`.
    pub fn is_alive(&self) -> bool {
        self.process.is_some_and(|process| process.is_alive(self.boot))
    }

    /// Looks at the daemon, its server and what its log says since the last look.
    pub async fn health(&mut self) -> Health {
        let health = self.look().await;
        self.broken |= matches!(health, Health::Dead(_));
        health
    }

    async fn look(&mut self) -> Health {
        if !self.is_alive() {
            return Health::Dead("the slice's MPS daemon died".to_owned());
        }
        let told = self.new_log();
        if told.fatal {
            return Health::Faulted(told);
        }
        let servers = match self.servers().await {
            Ok(servers) => servers,
            Err(error) => return Health::Dead(format!("the slice's MPS daemon hangs: {error}")),
        };
        let Some(server) = servers.first() else {
            return Health::Dead("the slice's MPS server died".to_owned());
        };
        match self.status_of(*server).await {
            Ok(ServerStatus::Fault) => Health::Faulted(self.new_log()),
            Ok(ServerStatus::Active | ServerStatus::Unready) => Health::Good,
            Err(error) => Health::Dead(format!("the slice's MPS server doesn't answer: {error}")),
        }
    }

    /// Reads what the server wrote since the last look.
    fn new_log(&mut self) -> FaultLines {
        let path = self.control.logs.join("server.log");
        let read = |from: u64| -> io::Result<(u64, Vec<u8>)> {
            let mut file = fs::File::open(&path)?;
            let end = file.metadata()?.len();
            let from = from.max(end.saturating_sub(LOG_BYTES_MAX));
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok((from, bytes))
        };
        let Ok((from, bytes)) = read(self.log_read) else { return FaultLines::default() };
        // The last line may be half written: it is read again with its end.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.log_read = from + u64::try_from(whole).unwrap_or(0);
        mps::fault_lines(&String::from_utf8_lossy(&bytes[..whole]))
    }

    /// Runs a small kernel as a client.
    ///
    /// # Errors
    ///
    /// What it said, for people.
    pub async fn canary(&self, settings: &MpsSettings) -> Result<(), String> {
        let Some((program, arguments)) = settings.canary.split_first() else { return Ok(()) };
        let mut command = tokio::process::Command::new(program);
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
            Err(_) => Err(format!("no answer within {} s", CANARY_WITHIN.as_secs())),
            Ok(Err(error)) => Err(format!("{program}: {error}")),
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    /// Ends the daemon and its servers, in order if they answer, and takes their folders away.
    pub async fn stop(mut self) {
        if self.is_alive() && !self.broken {
            // So that the servers are known if the daemon won't end them.
            let _ = self.servers().await;
            let _ = self.control.ask(&format!("quit -t {QUIT_WITHIN_SECS}")).await;
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

    fn find_process(&self) -> Option<ProcessIdentity> {
        let path = self.control.pipes.join("nvidia-cuda-mps-control.pid");
        let pid = fs::read_to_string(path).ok()?.trim().parse().ok()?;
        ProcessIdentity::of(self.boot, pid).ok()
    }

    /// Returns the folder that holds everything of this daemon.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
