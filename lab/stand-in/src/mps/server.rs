//! A server: one GPU context that clients share, together with its faults.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::client::{ClientHello, MemoryLimits, limits_from_env};
use super::command::CommandFailure;
use super::daemon_faults::MpsFaults;
use super::log::MpsLog;
use super::release::DriverRelease;
use super::wire::LineStream;
use super::{CLIENTS_MAX, MpsFolders, numbers};
use crate::client::{DeviceClient, DeviceClientError};
use crate::config::StandInConfig;
use crate::device::ClaimKind;
use crate::node::{SimulatedNode, SimulatedNodeError};

/// Why a client or its call is refused, in the terms of the CUDA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum MpsRefusal {
    #[error("CUDA_ERROR_MPS_SERVER_NOT_READY")]
    NotReady,
    #[error("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED")]
    Full,
    #[error("CUDA_ERROR_MPS_RPC_FAILURE")]
    Broken,
    #[error("CUDA_ERROR_MPS_CLIENT_TERMINATED")]
    Terminated,
    #[error("CUDA_ERROR_ILLEGAL_ADDRESS")]
    Faulted,
    #[error("CUDA_ERROR_OUT_OF_MEMORY")]
    NoMemory,
    #[error("CUDA_ERROR_INVALID_VALUE")]
    Invalid,
}

/// The device that memory limits name: a server sees one.
const DEVICE: &str = "0";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientContext {
    Good,
    Faulted,
    Terminated,
}

#[derive(Debug)]
struct KnownClient {
    hello: ClientHello,
    context: ClientContext,
    bytes: u64,
}

#[derive(Debug, Default)]
struct ServerState {
    clients: BTreeMap<u64, KnownClient>,
    next: u64,
    deaths: u64,
    /// Every context is broken, and nothing shows it.
    poisoned: bool,
    percentage: f64,
    limits: MemoryLimits,
}

impl ServerState {
    /// A server is in fault until every client that saw the fault is gone.
    fn status(&self) -> &'static str {
        let faulted = self.clients.values().any(|client| client.context == ClientContext::Faulted);
        if faulted { "FAULT" } else { "ACTIVE" }
    }
}

struct MpsServer {
    log: MpsLog,
    release: DriverRelease,
    uid: u32,
    device: String,
    state: Mutex<ServerState>,
}

/// Runs a server until it is killed.
pub fn serve(folders: &MpsFolders, uid: u32) -> Result<(), CommandFailure> {
    let log = MpsLog::open(&folders.logs, "server.log", "Server");
    log.write("Start");
    let faults =
        MpsFaults::of_node().map_err(|error| CommandFailure::Refused(error.to_string()))?;
    thread::sleep(faults.server_delay);
    if faults.server_fails {
        return Err(CommandFailure::Refused("refused by a fault of the simulated node".to_owned()));
    }
    let device = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    // The server is the process that has the GPU: its context keeps the slice in use.
    let _context = open_context(&device).inspect_err(|error| {
        log.write(&format!("MPS server failed to start: {error}"));
    });
    let _context = _context.map_err(|error| CommandFailure::Refused(error.to_string()))?;
    let percentage = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    let state = ServerState {
        percentage: percentage.ok().and_then(|text| text.parse().ok()).unwrap_or(100.0),
        limits: limits_from_env(),
        ..ServerState::default()
    };
    let path = folders.server(std::process::id());
    let socket = path.with_extension("new");
    let listener = UnixListener::bind(&socket)?;
    let control = folders.control();
    log.write(&format!("MPS Server connecting to control daemon on socket: {}", control.display()));
    log.write("Initializing server process");
    log.write(&format!("Creating server context on device 0 ({device})"));
    let server =
        Arc::new(MpsServer { log, release: faults.release, uid, device, state: Mutex::new(state) });
    // Under its name only once it answers.
    std::fs::rename(&socket, &path)?;
    server.log.write("Active Threads Percentage set to the server's default");
    for stream in listener.incoming().flatten() {
        let server = Arc::clone(&server);
        thread::spawn(move || {
            if let Ok(lines) = LineStream::over(stream) {
                // An end in the middle is an end.
                let _ = server.attend(lines);
            }
        });
    }
    Ok(())
}

fn open_context(device: &str) -> Result<DeviceClient, DeviceClientError> {
    let config = StandInConfig::from_env().map_err(SimulatedNodeError::from)?;
    let node = SimulatedNode::open(&config)?;
    DeviceClient::open_as(&node, device, ClaimKind::Compute)
}

impl MpsServer {
    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attend(&self, mut lines: LineStream) -> io::Result<()> {
        let Some(first) = lines.receive()? else { return Ok(()) };
        if let Some(question) = first.strip_prefix("control ") {
            let words: Vec<_> = question.split_whitespace().collect();
            return lines.send_all(&self.answer(&words));
        }
        let Some(hello) = ClientHello::parse(&first) else {
            return lines.send("!CUDA_ERROR_INVALID_VALUE");
        };
        let pid = hello.pid;
        let id = match self.admit(hello) {
            Ok(id) => id,
            Err(refusal) => return lines.send(&format!("!{refusal}")),
        };
        let percentage = self.state().percentage;
        lines.send(&format!("ok {percentage}"))?;
        let orderly = self.serve_client(id, pid, &mut lines).unwrap_or(false);
        self.part(id, pid, orderly);
        Ok(())
    }

    fn admit(&self, hello: ClientHello) -> Result<u64, MpsRefusal> {
        let mut state = self.state();
        self.log.write("Received new client request");
        if hello.uid != self.uid || state.status() != "ACTIVE" {
            return Err(MpsRefusal::NotReady);
        }
        if state.poisoned {
            return Err(MpsRefusal::Broken);
        }
        if state.clients.len() >= CLIENTS_MAX {
            return Err(MpsRefusal::Full);
        }
        state.next += 1;
        let id = state.next;
        self.log.write(&format!("New client {} connected", hello.pid));
        self.log.write(&format!("status of client {{{}, {id}}} is ACTIVE", hello.pid));
        state.clients.insert(id, KnownClient { hello, context: ClientContext::Good, bytes: 0 });
        Ok(id)
    }

    /// Serves a client's calls; returns whether it ended with `bye`.
    fn serve_client(&self, id: u64, pid: u32, lines: &mut LineStream) -> io::Result<bool> {
        while let Some(line) = lines.receive()? {
            let words: Vec<_> = line.split_whitespace().collect();
            if words == ["bye"] {
                // It has left in order, even if it does not wait for the answer.
                let _ = lines.send("ok");
                return Ok(true);
            }
            let answer = self.call(id, pid, &words);
            lines
                .send(&answer.map_or_else(|refusal| format!("!{refusal}"), |()| "ok".to_owned()))?;
        }
        Ok(false)
    }

    fn call(&self, id: u64, pid: u32, words: &[&str]) -> Result<(), MpsRefusal> {
        let mut state = self.state();
        let poisoned = state.poisoned;
        let limit = state.limits.get(DEVICE).copied();
        let Some(client) = state.clients.get_mut(&id) else { return Err(MpsRefusal::Terminated) };
        match client.context {
            ClientContext::Terminated => return Err(MpsRefusal::Terminated),
            ClientContext::Faulted => return Err(MpsRefusal::Faulted),
            ClientContext::Good if poisoned => return Err(MpsRefusal::Broken),
            ClientContext::Good => {}
        }
        match *words {
            ["kernel"] => Ok(()),
            ["allocate", bytes] => {
                let bytes_after = client.bytes.saturating_add(bytes.parse().unwrap_or(u64::MAX));
                // A client can narrow its server's limit, never widen it.
                let limit = [limit, client.hello.limit].into_iter().flatten().min();
                if limit.is_some_and(|limit| bytes_after > limit) {
                    self.log.write(&format!("Client {pid} is over its pinned memory limit"));
                    return Err(MpsRefusal::NoMemory);
                }
                client.bytes = bytes_after;
                Ok(())
            }
            ["free", bytes] => {
                client.bytes = client.bytes.saturating_sub(bytes.parse().unwrap_or(0));
                Ok(())
            }
            ["fault"] => {
                self.fault(&mut state, pid);
                Err(MpsRefusal::Faulted)
            }
            _ => Err(MpsRefusal::Invalid),
        }
    }

    /// A fault of one client affects all clients.
    fn fault(&self, state: &mut ServerState, culprit: u32) {
        if self.release.names_the_cause() {
            self.log.write("Server is handling a fatal GPU error.");
            self.log.write("Processing fault detected on the following GPUs [ 0 ]");
            self.log.write(&format!("Client process {culprit} caused a memory fault"));
        } else {
            // As recorded in load-tests/gpu/results/nvidia-h200/mps-live.txt: the first client is named first, whichever it was.
            let first =
                state.clients.values().map(|client| client.hello.pid).min().unwrap_or(culprit);
            self.log.write(&format!(
                "Client {{PID: {first}, Context: 1}} encountered a fatal GPU error."
            ));
            self.log.write("Server is handling a fatal GPU error.");
            for client in state.clients.values() {
                let pid = client.hello.pid;
                self.log.write(&format!(
                    "Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down"
                ));
                let line = format!(
                    "All clients belonging to error trigging process {pid} will be torn down"
                );
                self.log.write(&line);
            }
        }
        for (id, client) in &mut state.clients {
            client.context = ClientContext::Faulted;
            let pid = client.hello.pid;
            self.log.write(&format!("status of client {{{pid}, {id}}} is INACTIVE"));
        }
    }

    fn part(&self, id: u64, pid: u32, orderly: bool) {
        let mut state = self.state();
        let was = state.clients.remove(&id).map(|client| client.context);
        self.log.write(&format!("Client {pid} disconnected"));
        // A context that is terminated or faulted holds nothing that its end could break.
        if orderly || was != Some(ClientContext::Good) {
            return;
        }
        self.log.write("Receive command failed, assuming client exit");
        state.deaths += 1;
        let faults = MpsFaults::of_node().unwrap_or_default();
        if faults.poisons(state.deaths) {
            state.poisoned = true;
        }
    }

    fn answer(&self, words: &[&str]) -> Vec<String> {
        let mut state = self.state();
        let mut pids: Vec<_> = state.clients.values().map(|client| client.hello.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        match *words {
            ["status"] => vec![state.status().to_owned()],
            ["clients"] => pids.iter().map(ToString::to_string).collect(),
            ["device_clients"] => {
                let clients: Vec<_> = pids.iter().map(ToString::to_string).collect();
                vec![format!("{} {}", self.device, clients.join(" "))]
            }
            ["ps"] => state.clients.iter().map(|(id, client)| self.row(*id, client)).collect(),
            ["terminate", pid] => self.terminate(&mut state, pid.parse().unwrap_or(0)),
            ["percentage"] => vec![format!("{:.1}", state.percentage)],
            ["set_percentage", percentage] => {
                state.percentage = percentage.parse().unwrap_or(state.percentage);
                vec![format!("{:.1}", state.percentage)]
            }
            ["limit", device] => {
                state.limits.get(device).map(|bytes| numbers::shown(*bytes)).into_iter().collect()
            }
            ["set_limit", device, bytes] => {
                if let Ok(bytes @ 1..) = bytes.parse() {
                    state.limits.insert(device.to_owned(), bytes);
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// One line of `ps`; see [`head`].
    fn row(&self, id: u64, client: &KnownClient) -> String {
        let (pid, command) = (client.hello.pid, &client.hello.command);
        let (server, device) = (std::process::id(), short(&self.device));
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let space: String = space.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let status = match client.context {
            ClientContext::Good => "ACTIVE",
            ClientContext::Faulted | ClientContext::Terminated => "INACTIVE",
        };
        let status = if self.release.reports_status() { status } else { "" };
        let width = if status.is_empty() { 0 } else { 15 };
        format!("{pid:<10}{id:<10}{server:<15}{status:<width$}{device:<23}{space:<15}{command}")
    }

    fn terminate(&self, state: &mut ServerState, pid: u32) -> Vec<String> {
        if MpsFaults::of_node().is_ok_and(|faults| faults.terminate_fails) {
            // CUDA_ERROR_TIMEOUT
            return vec!["909".to_owned()];
        }
        let mut found = false;
        for client in state.clients.values_mut().filter(|client| client.hello.pid == pid) {
            client.context = ClientContext::Terminated;
            found = true;
        }
        if !found {
            return vec![format!("Invalid process {pid}!"), "1".to_owned()];
        }
        self.log.write(&format!("Client {pid} terminated"));
        vec!["0".to_owned()]
    }
}

/// The head of `ps`: its widths are those of NVIDIA's programs.
pub fn head(release: DriverRelease) -> String {
    let status = if release.reports_status() { format!("{:<15}", "STATUS") } else { String::new() };
    format!(
        "{:<10}{:<10}{:<15}{status}{:<23}{:<15}{}",
        "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"
    )
}

fn short(device: &str) -> &str {
    device.get(..20).unwrap_or(device)
}
