//! The daemon's servers: started without waiting, watched, and ended.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::super::numbers;
use super::super::own_uid;
use super::super::wire::LineStream;
use super::commands::{CommandReply, shown};
use super::{ControlDaemon, LOOK_EVERY, START_WITHIN, held};

/// One server's process.
pub struct ServerProcess {
    uid: u32,
    child: Child,
    ready: bool,
}

/// Why a server can't be started; the first message is NVIDIA's.
#[derive(Debug, thiserror::Error)]
pub enum ServerStartError {
    #[error("Insufficient privileges for UID {uid}")]
    Privileges { uid: u32 },
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl ControlDaemon {
    /// Returns the servers that run, with their users.
    pub fn alive(&self) -> BTreeMap<u32, u32> {
        let mut servers = held(&self.servers);
        servers.retain(|pid, server| match server.child.try_wait() {
            Ok(Some(status)) => {
                let code = code(status);
                self.log.write(&format!("Server {pid} exited with status {code}"));
                self.log.write("Removed Shm file at ");
                self.failed.fetch_or(code != 0, Ordering::Relaxed);
                let _ = fs::remove_file(self.folders.server(*pid));
                false
            }
            Ok(None) | Err(_) => true,
        });
        servers.iter().map(|(pid, server)| (*pid, server.uid)).collect()
    }

    /// Starts a server, or returns the one that runs. It is ready later.
    pub fn start_server(&self, uid: u32) -> Result<u32, ServerStartError> {
        if own_uid() != 0 && own_uid() != uid {
            return Err(ServerStartError::Privileges { uid: own_uid() });
        }
        let _alone = held(&self.starting);
        if let Some(pid) = self.alive().into_keys().next() {
            return Ok(pid);
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0("nvidia-cuda-mps-server").args(["--stand-in-server", &uid.to_string()]);
        command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", held(&self.percentage).to_string());
        let limits = held(&self.limits);
        let limits = limits.iter().map(|(d, bytes)| format!("{d}={}", numbers::shown(*bytes)));
        let limits: Vec<_> = limits.collect();
        if !limits.is_empty() {
            command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits.join(","));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn()?;
        let pid = child.id();
        self.log.write(&format!("Starting new server {pid} for user {uid}"));
        held(&self.servers).insert(pid, ServerProcess { uid, child, ready: false });
        Ok(pid)
    }

    /// Notices servers that are ready, and those that ended.
    pub fn watch(self: &Arc<Self>) {
        loop {
            self.alive();
            for (pid, server) in held(&self.servers).iter_mut() {
                if !server.ready && self.folders.server(*pid).exists() {
                    server.ready = true;
                    self.log.write(&format!("NEW SERVER {pid}: Ready"));
                }
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until a server accepts clients; returns whether it does.
    pub fn wait_ready(&self, pid: u32) -> bool {
        let ends = Instant::now() + START_WITHIN;
        loop {
            match held(&self.servers).get(&pid) {
                Some(server) if server.ready => return true,
                Some(_) if Instant::now() < ends => {}
                Some(_) | None => return false,
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Queries a server that runs; one that initialises has nothing to report.
    pub fn request(&self, pid: u32, question: &str) -> Vec<CommandReply> {
        let path = self.folders.server(pid);
        if !path.exists() {
            let initializing = "INITIALIZING".to_owned();
            return if question == "status" { vec![shown(initializing)] } else { Vec::new() };
        }
        let answer = LineStream::connect(&path)
            .and_then(|mut lines| lines.request_all(&format!("control {question}")));
        match answer {
            Ok(lines) => lines.into_iter().map(shown).collect(),
            Err(_) => vec![shown(format!("Server {pid} is <busy>"))],
        }
    }

    /// Waits until a server's clients are gone, or for this long, then ends it.
    pub fn shut_down(&self, pid: u32, within: Option<Duration>) {
        let ends = within.map(|within| Instant::now() + within);
        while ends.is_none_or(|ends| Instant::now() < ends)
            && !self.request(pid, "clients").is_empty()
        {
            thread::sleep(LOOK_EVERY);
        }
        if let Some(mut server) = held(&self.servers).remove(&pid) {
            let _ = server.child.kill();
            let _ = server.child.wait();
            let _ = fs::remove_file(self.folders.server(pid));
            self.log.write(&format!("Server {pid} exited with status 0"));
        }
    }
}

fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal()).unwrap_or(0)
}
