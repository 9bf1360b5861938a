//! One process of a cluster that can be started, killed and started again.

use std::fs::{self, OpenOptions};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use std::{io, thread};

use crate::{processes, wait};

/// A process and how to start it.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    env: Vec<(String, String)>,
    log: PathBuf,
    account: Option<(u32, u32)>,
    child: Option<Child>,
}

impl Daemon {
    /// Describes a process; its output goes to a file of its name in `logs`.
    pub fn new(name: &str, program: PathBuf, logs: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program,
            arguments: Vec::new(),
            env: Vec::new(),
            log: logs.join(format!("{name}.log")),
            account: None,
            child: None,
        }
    }

    /// Adds arguments.
    pub fn args<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds a variable of the environment.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Lets it run as another user and group.
    pub fn as_user(mut self, user: u32, group: u32) -> Self {
        self.account = Some((user, group));
        self
    }

    /// Renames it, and lets its output go to a file of the new name in `logs`.
    pub fn logging_as(mut self, name: &str, logs: &Path) -> Self {
        self.name = name.to_owned();
        self.log = logs.join(format!("{name}.log"));
        self
    }

    /// Changes a variable for the next start.
    pub fn set_env(&mut self, name: &str, value: impl Into<String>) {
        self.env.retain(|(n, _)| n != name);
        self.env.push((name.to_owned(), value.into()));
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// If it runs already, or can't be started.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("log file");
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log file"))
            .stderr(log);
        if let Some((user, group)) = self.account {
            command.uid(user).gid(group);
        }
        let child = spawn(command).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        self.child = Some(child);
    }

    /// Returns its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns whether it runs; collects its end if not.
    pub fn is_running(&mut self) -> bool {
        match &mut self.child {
            Some(child) => child.try_wait().is_ok_and(|ended| ended.is_none()),
            None => false,
        }
    }

    /// Kills it and waits for its end. Does nothing if it doesn't run.
    pub fn kill(&mut self) {
        self.end(libc::SIGKILL, Duration::from_secs(10));
    }

    /// Stops it, kills it if it doesn't, and returns how it ended.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        self.end(libc::SIGTERM, Duration::from_secs(10))
    }

    /// Waits until it ends by itself.
    pub fn wait_for_end(&mut self, within: Duration) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        let ended = wait::within_time(within, || child.try_wait().ok().flatten());
        if ended.is_some() {
            self.child = None;
        }
        ended
    }

    fn end(&mut self, signal: i32, within: Duration) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        processes::signal(child.id(), signal);
        if let Some(status) = wait::within_time(within, || child.try_wait().ok().flatten()) {
            return Some(status);
        }
        let _ = child.kill();
        child.wait().ok()
    }

    /// Returns its complete output.
    pub fn output(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Returns the last lines that it printed.
    pub fn tail(&self, lines: usize) -> String {
        let text = self.output();
        let all: Vec<&str> = text.lines().collect();
        let from = all.len().saturating_sub(lines);
        format!("--- {} ({} lines)\n{}\n", self.name, all.len(), all[from..].join("\n"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Shows how a process ended.
pub fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

type Job = (Command, Sender<io::Result<Child>>);

/// Starts processes from one thread that lives as long as this process: the kernel kills them
/// with the thread that started them, and tests come and go with theirs.
fn spawn(command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in jobs {
                // Sound: prctl(2) is safe between fork and exec.
                unsafe {
                    command.pre_exec(|| {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        Ok(())
                    });
                }
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (answer, started) = mpsc::channel();
    starter
        .lock()
        .expect("no starter panics")
        .send((command, answer))
        .expect("the thread never ends");
    started.recv().expect("the thread answers")
}
