//! The control daemon: starts servers, tells them apart, carries commands to them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::command::Failure;
use super::faults::Faults;
use super::log::Log;
use super::wire::Lines;
use super::{Folders, own_uid};

/// How long a start may take before the starting command gives up.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How often something is looked at that nobody announces.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The percentage of a server to which nobody gave one.
const WHOLE: u32 = 100;

struct Server {
    uid: u32,
    child: Child,
}

struct Daemon {
    folders: Folders,
    log: Log,
    servers: Mutex<BTreeMap<u32, Server>>,
    percentage: Mutex<u32>,
    limits: Mutex<BTreeMap<String, String>>,
    /// Held while a server is started: clients that come together share one.
    starting: Mutex<()>,
}

/// Starts a daemon and returns once it listens.
pub fn start_in_background(folders: &Folders) -> Result<(), Failure> {
    if UnixStream::connect(folders.control()).is_ok() {
        return Err(Failure::Running);
    }
    fs::create_dir_all(&folders.pipes)?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("-f")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let ends = Instant::now() + START_WITHIN;
    while UnixStream::connect(folders.control()).is_err() {
        if child.try_wait()?.is_some() || Instant::now() > ends {
            let _ = child.kill();
            let log = folders.logs.join("control.log");
            return Err(Failure::Refused(format!("the daemon did not start: {}", log.display())));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Is the daemon, until it is told to quit.
pub fn serve(folders: &Folders) -> Result<(), Failure> {
    let log = Log::open(&folders.logs, "control.log", "Control");
    let faults = Faults::of_node().map_err(Failure::Refused)?;
    thread::sleep(faults.start_delay);
    if faults.refuse_start {
        log.write("Failed to start: refused by a fault of the simulated node");
        return Err(Failure::Refused("refused by a fault of the simulated node".to_owned()));
    }
    let socket = folders.control();
    if UnixStream::connect(&socket).is_ok() {
        return Err(Failure::Running);
    }
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)?;
    fs::write(folders.pid_file(), format!("{}\n", std::process::id()))?;
    log.write(&format!("Starting control daemon using socket {}", socket.display()));
    let pipes = folders.pipes.display();
    log.write(&format!(
        "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipes}"
    ));
    let daemon = Arc::new(Daemon {
        folders: folders.clone(),
        log,
        servers: Mutex::default(),
        percentage: Mutex::new(
            std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(WHOLE),
        ),
        limits: Mutex::default(),
        starting: Mutex::default(),
    });
    for stream in listener.incoming().flatten() {
        let daemon = Arc::clone(&daemon);
        thread::spawn(move || {
            if let Ok(lines) = Lines::over(stream) {
                // Whoever went away in the middle wants no answer.
                let _ = daemon.attend(lines);
            }
        });
    }
    Ok(())
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon {
    fn attend(&self, mut lines: Lines) -> io::Result<()> {
        while let Some(line) = lines.receive()? {
            if let Some(rest) = line.strip_prefix("client ") {
                self.log.write("Accepting connection...");
                let answer = self.place_client(rest);
                lines.send(&answer)?;
                continue;
            }
            let words: Vec<_> = line.split_whitespace().collect();
            let quits = words.first() == Some(&"quit");
            let answer = self.obey(&words).unwrap_or_else(|refusal| vec![format!("!{refusal}")]);
            lines.send_all(&answer)?;
            if quits && answer.is_empty() {
                self.log.write("Exit");
                let _ = fs::remove_file(self.folders.control());
                let _ = fs::remove_file(self.folders.pid_file());
                std::process::exit(0);
            }
        }
        Ok(())
    }

    fn obey(&self, words: &[&str]) -> Result<Vec<String>, String> {
        match *words {
            ["get_server_list"] => Ok(self.alive().keys().map(ToString::to_string).collect()),
            ["start_server", "-uid", uid] => {
                let uid = uid.parse().map_err(|_| format!("{uid} is no user id"))?;
                self.start_server(uid).map(|_| Vec::new())
            }
            ["get_server_status", pid] => self.ask(pid, "status"),
            ["get_client_list", pid] => self.ask(pid, "clients"),
            ["get_device_client_list"] => self.ask_each("device_clients"),
            ["get_device_client_list", pid] => self.ask(pid, "device_clients"),
            ["ps"] => self.ps(&self.alive().into_keys().collect::<Vec<_>>()),
            ["ps", "-p", pid] => self.ps(&[number(pid)?]),
            ["terminate_client", server, client] => {
                self.ask(server, &format!("terminate {}", number(client)?))
            }
            ["set_default_active_thread_percentage", percentage] => {
                *held(&self.percentage) = percent(percentage)?;
                Ok(Vec::new())
            }
            ["get_default_active_thread_percentage"] => {
                Ok(vec![format!("{}.0", *held(&self.percentage))])
            }
            ["set_active_thread_percentage", server, percentage] => {
                self.ask(server, &format!("set_percentage {}", percent(percentage)?))
            }
            ["get_active_thread_percentage", server] => self.ask(server, "percentage"),
            ["set_default_device_pinned_mem_limit", device, limit] => {
                super::client::parse_limit(limit)?;
                held(&self.limits).insert(device.to_owned(), limit.to_owned());
                Ok(Vec::new())
            }
            ["get_default_device_pinned_mem_limit", device] => {
                Ok(held(&self.limits).get(device).cloned().into_iter().collect())
            }
            ["set_device_pinned_mem_limit", server, device, limit] => {
                super::client::parse_limit(limit)?;
                self.ask(server, &format!("set_limit {device} {limit}"))
            }
            ["get_device_pinned_mem_limit", server, device] => {
                self.ask(server, &format!("limit {device}"))
            }
            ["shutdown_server", server] | ["shutdown_server", server, "-f"] => {
                self.shut_down(number(server)?, words.contains(&"-f").then_some(Duration::ZERO))
            }
            ["quit"] => self.quit(None),
            ["quit", "-t", secs] => self.quit(Some(Duration::from_secs(number(secs)?.into()))),
            _ => Err(format!("Unrecognized command: {}", words.join(" "))),
        }
    }

    /// Returns the servers that run, and forgets those that are gone.
    fn alive(&self) -> BTreeMap<u32, u32> {
        let mut servers = held(&self.servers);
        servers.retain(|pid, server| match server.child.try_wait() {
            Ok(Some(status)) => {
                self.log.write(&format!("Server {pid} exited with status {}", code(status)));
                let _ = fs::remove_file(self.folders.server(*pid));
                false
            }
            Ok(None) | Err(_) => true,
        });
        servers.iter().map(|(pid, server)| (*pid, server.uid)).collect()
    }

    fn place_client(&self, rest: &str) -> String {
        let mut words = rest.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
        let (Some(pid), Some(uid)) = (words.next(), words.next()) else {
            self.log.write("User did not send valid credentials");
            return "!CUDA_ERROR_MPS_CONNECTION_FAILED".to_owned();
        };
        let alive = self.alive();
        match alive.iter().next() {
            Some((server, owner)) if *owner == uid => {
                let told = "Server already exists";
                self.log.write(&format!("NEW CLIENT {pid} from user {uid}: {told}"));
                server.to_string()
            }
            Some(_) => {
                let told = "Server is not ready, push client to pending list";
                self.log.write(&format!("NEW CLIENT {pid} from user {uid}: {told}"));
                "!CUDA_ERROR_MPS_SERVER_NOT_READY".to_owned()
            }
            None => {
                let told = "Server is not ready, push client to pending list";
                self.log.write(&format!("NEW CLIENT {pid} from user {uid}: {told}"));
                match self.start_server(uid) {
                    Ok(server) => server.to_string(),
                    Err(_) => "!CUDA_ERROR_MPS_CONNECTION_FAILED".to_owned(),
                }
            }
        }
    }

    fn start_server(&self, uid: u32) -> Result<u32, String> {
        let _alone = held(&self.starting);
        if let Some((pid, owner)) = self.alive().into_iter().next() {
            return if owner == uid {
                Ok(pid)
            } else {
                Err(format!("a server of user {owner} is running"))
            };
        }
        if own_uid() != 0 && own_uid() != uid {
            return Err(format!("user {} can't start a server of user {uid}", own_uid()));
        }
        let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
        command.arg0("nvidia-cuda-mps-server").args(["--stand-in-server", &uid.to_string()]);
        command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", held(&self.percentage).to_string());
        let limits: Vec<_> =
            held(&self.limits).iter().map(|(device, limit)| format!("{device}={limit}")).collect();
        if !limits.is_empty() {
            command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits.join(","));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let pid = child.id();
        self.log.write(&format!("Starting new server {pid} for user {uid}"));
        let ends = Instant::now() + START_WITHIN;
        while !self.folders.server(pid).exists() {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) || Instant::now() > ends {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("Server {pid} failed to start"));
            }
            thread::sleep(LOOK_EVERY);
        }
        held(&self.servers).insert(pid, Server { uid, child });
        self.log.write(&format!("NEW SERVER {pid}: Ready"));
        Ok(pid)
    }

    fn ask(&self, server: &str, question: &str) -> Result<Vec<String>, String> {
        let pid = number(server)?;
        if !self.alive().contains_key(&pid) {
            return Err(format!("Server {pid} not found"));
        }
        let lines = Lines::connect(&self.folders.server(pid));
        let answer = lines.and_then(|mut lines| lines.ask_all(&format!("control {question}")));
        let answer = answer.map_err(|_| format!("Server {pid} does not answer"))?;
        match answer.iter().find_map(|line| line.strip_prefix('!')) {
            Some(refusal) => Err(refusal.to_owned()),
            None => Ok(answer),
        }
    }

    fn ask_each(&self, question: &str) -> Result<Vec<String>, String> {
        let mut all = Vec::new();
        for pid in self.alive().keys() {
            all.extend(self.ask(&pid.to_string(), question)?);
        }
        Ok(all)
    }

    fn ps(&self, servers: &[u32]) -> Result<Vec<String>, String> {
        let mut rows = vec!["PID\tID\tSERVER\tDEVICE\tNAMESPACE\tCOMMAND".to_owned()];
        for pid in servers {
            rows.extend(self.ask(&pid.to_string(), "ps")?);
        }
        Ok(rows)
    }

    /// Waits until a server's clients are gone, or for so long, then ends it.
    fn shut_down(&self, pid: u32, within: Option<Duration>) -> Result<Vec<String>, String> {
        let ends = within.map(|within| Instant::now() + within);
        if !self.alive().contains_key(&pid) {
            return Err(format!("Server {pid} not found"));
        }
        while ends.is_none_or(|ends| Instant::now() < ends) {
            match self.ask(&pid.to_string(), "clients") {
                Ok(clients) if !clients.is_empty() => thread::sleep(LOOK_EVERY),
                Ok(_) | Err(_) => break,
            }
        }
        if let Some(mut server) = held(&self.servers).remove(&pid) {
            let _ = server.child.kill();
            let _ = server.child.wait();
            let _ = fs::remove_file(self.folders.server(pid));
            self.log.write(&format!("Server {pid} exited with status 0"));
        }
        Ok(Vec::new())
    }

    fn quit(&self, within: Option<Duration>) -> Result<Vec<String>, String> {
        for pid in self.alive().into_keys() {
            self.shut_down(pid, within)?;
        }
        Ok(Vec::new())
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

fn percent(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(percentage @ 1..=100) => Ok(percentage),
        _ => Err(format!("{text} is no percentage from 1 to 100")),
    }
}

fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal()).unwrap_or(0)
}
