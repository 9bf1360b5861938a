//! The control daemon: listens, starts servers, forwards commands and clients to them.

mod commands;
mod servers;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, fcntl_lock, mknodat};

use self::commands::CommandReply;
use self::servers::ServerProcess;
use super::MpsFolders;
use super::command::CommandFailure;
use super::daemon_faults::MpsFaults;
use super::log::MpsLog;
use super::release::DriverRelease;
use super::wire::LineStream;

/// How long a start may take before the starting command gives up.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How often something that is not announced is polled.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The percentage of a server for which none was set.
const WHOLE: f64 = 100.0;

struct ControlDaemon {
    folders: MpsFolders,
    release: DriverRelease,
    log: MpsLog,
    servers: Mutex<BTreeMap<u32, ServerProcess>>,
    percentage: Mutex<f64>,
    /// In bytes, by device.
    limits: Mutex<BTreeMap<u32, u64>>,
    priority: Mutex<i64>,
    /// Whether a server ended with an error.
    failed: AtomicBool,
    /// Held while a server is started: clients that come together share one.
    starting: Mutex<()>,
    /// Its lock shows that a daemon has the folder, for as long as it lives.
    _lock: File,
}

/// Starts a daemon and returns once it listens.
pub fn start_in_background(folders: &MpsFolders) -> Result<(), CommandFailure> {
    if UnixStream::connect(folders.control()).is_ok() {
        return Err(CommandFailure::Running);
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
            return Err(CommandFailure::Refused(format!(
                "the daemon did not start: {}",
                log.display()
            )));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Runs the daemon until it gets `quit`.
pub fn serve(folders: &MpsFolders) -> Result<(), CommandFailure> {
    let log = MpsLog::open(&folders.logs, "control.log", "Control");
    let faults =
        MpsFaults::of_node().map_err(|error| CommandFailure::Refused(error.to_string()))?;
    thread::sleep(faults.start_delay);
    if faults.refuse_start {
        log.write("Failed to start: refused by a fault of the simulated node");
        return Err(CommandFailure::Refused("refused by a fault of the simulated node".to_owned()));
    }
    let lock = OpenOptions::new().create(true).append(true).open(folders.lock())?;
    fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| CommandFailure::Running)?;
    MpsLog::open(&folders.logs, "server.log", "Other")
        .write(&format!("Using log directory: {}", folders.logs.display()));
    let privileged = listen(&folders.privileged())?;
    let listener = listen(&folders.control())?;
    let _ = fs::remove_file(folders.pipe());
    let everyone = Mode::from_raw_mode(0o666);
    mknodat(rustix::fs::CWD, folders.pipe(), FileType::Fifo, everyone, 0)
        .map_err(io::Error::from)?;
    if faults.release.writes_pid() {
        fs::write(folders.pid_file(), std::process::id().to_string())?;
    }
    log.write(&format!("Starting control daemon using socket {}", folders.control().display()));
    let pipes = folders.pipes.display();
    log.write(&format!(
        "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipes}"
    ));
    let percentage = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").ok();
    let daemon = Arc::new(ControlDaemon {
        folders: folders.clone(),
        release: faults.release,
        log,
        servers: Mutex::default(),
        percentage: Mutex::new(percentage.and_then(|text| text.parse().ok()).unwrap_or(WHOLE)),
        limits: Mutex::default(),
        priority: Mutex::new(0),
        failed: AtomicBool::new(false),
        starting: Mutex::default(),
        _lock: lock,
    });
    let watching = Arc::clone(&daemon);
    thread::spawn(move || watching.watch());
    let other = Arc::clone(&daemon);
    thread::spawn(move || other.accept(&privileged));
    daemon.accept(&listener);
    Ok(())
}

fn listen(path: &std::path::Path) -> io::Result<UnixListener> {
    // Left by a daemon that ended: this one has the lock.
    let _ = fs::remove_file(path);
    UnixListener::bind(path)
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ControlDaemon {
    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming().flatten() {
            let daemon = Arc::clone(self);
            thread::spawn(move || {
                if let Ok(lines) = LineStream::over(stream) {
                    // A program that went away in the middle needs no answer.
                    let _ = daemon.attend(lines);
                }
            });
        }
    }

    fn attend(&self, mut lines: LineStream) -> io::Result<()> {
        let Some(first) = lines.receive()? else { return Ok(()) };
        self.log.write("Accepting connection...");
        if let Some(rest) = first.strip_prefix("client ") {
            let answer = self.place_client(rest);
            return lines.send(&answer);
        }
        self.log.write("NEW UI");
        while let Some(line) = lines.receive()? {
            self.log.write(&format!("Cmd:{line}"));
            let answer = self.obey(&line);
            let texts: Vec<_> = answer.into_iter().filter_map(|reply| self.note(reply)).collect();
            lines.send_all(&texts)?;
            if line.split_whitespace().next() == Some("quit") {
                self.exit();
            }
        }
        self.log.write("UI closed");
        Ok(())
    }

    /// Logs a line of an answer; returns it if it is to be printed.
    fn note(&self, reply: CommandReply) -> Option<String> {
        match reply {
            CommandReply::Shown(text) => {
                if !text.is_empty() {
                    self.log.write(&text);
                }
                Some(text)
            }
            CommandReply::Logged(text) => {
                self.log.write(text);
                None
            }
        }
    }

    fn exit(&self) -> ! {
        let _ = fs::remove_file(self.folders.pipe());
        let _ = fs::remove_file(self.folders.pid_file());
        let failed = self.failed.load(Ordering::Relaxed);
        self.log.write(&format!("Exit with status {}", u8::from(failed)));
        std::process::exit(i32::from(failed));
    }

    fn place_client(&self, rest: &str) -> String {
        let mut words = rest.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
        let (Some(pid), Some(uid)) = (words.next(), words.next()) else {
            self.log.write("User did not send valid credentials");
            return "!CUDA_ERROR_MPS_CONNECTION_FAILED".to_owned();
        };
        let alive = self.alive();
        let new = format!("NEW CLIENT {pid} from user {uid}");
        let (server, outcome) = match alive.iter().next() {
            Some((_, owner)) if *owner != uid => {
                self.log.write(&format!("{new}: Server is not ready, push client to pending list"));
                return "!CUDA_ERROR_MPS_SERVER_NOT_READY".to_owned();
            }
            Some((server, _)) => (Ok(*server), "Server already exists"),
            None => (self.start_server(uid), "Server is not ready, push client to pending list"),
        };
        self.log.write(&format!("{new}: {outcome}"));
        match server {
            Ok(server) if self.wait_ready(server) => server.to_string(),
            Ok(_) | Err(_) => "!CUDA_ERROR_MPS_CONNECTION_FAILED".to_owned(),
        }
    }
}
