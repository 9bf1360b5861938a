//! What is done with a daemon's files and processes: by the agent itself, or by a worker as the daemon's user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, geteuid, set_parent_process_death_signal};
use tessera_model::{AttemptId, BootId};

use super::control::{ControlClient, ControlError, answer_of, run_as};
use super::log;
use super::messages::{CanaryError, DaemonFile, DaemonReply, DaemonRequest, DaemonTask};
use super::terminate;
use crate::sys::identity::{self, ProcessIdentity};

/// How long a small kernel may take (M4).
pub const CANARY_WITHIN: Duration = Duration::from_secs(10);
/// Name of the daemon's file with its pid, in its folder of pipes.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";

/// Does what is requested.
pub async fn carry_out(request: DaemonRequest) -> DaemonReply {
    let DaemonRequest { control, task } = request;
    match task {
        DaemonTask::Start { environment, folder, within } => {
            DaemonReply::Started(start(&control, environment, &folder, within).await)
        }
        DaemonTask::Command { line, within } => {
            let mut command = control.command();
            command.stdin(Stdio::piped());
            DaemonReply::Ran(control.finish(command, Some(&line), &line, within).await)
        }
        DaemonTask::Read { file, from } => {
            DaemonReply::Piece(log::read_piece(&control.file(file), from).ok())
        }
        DaemonTask::Cut(file) => DaemonReply::Done(log::empty(&control.file(file)).is_ok()),
        DaemonTask::Find { boot, mark } => {
            DaemonReply::Processes(find(&control, boot, &mark).into_iter().collect())
        }
        DaemonTask::Identify { boot, pids } => {
            let found = pids.into_iter().filter_map(|pid| own_process(&control, boot, pid));
            DaemonReply::Processes(found.collect())
        }
        DaemonTask::Owners(pids) => {
            let owners = pids.into_iter().filter_map(|pid| Some((pid, owner(pid)?)));
            DaemonReply::Owners(owners.collect())
        }
        DaemonTask::Kill { processes, mark } => {
            for process in processes {
                process.kill(process.boot);
            }
            // Servers that were never listed carry the mark of their folder.
            identity::kill_marked(&mark);
            DaemonReply::Done(true)
        }
        DaemonTask::Canary { command, environment } => {
            DaemonReply::Canary(canary(&control, &command, environment).await)
        }
        DaemonTask::Terminate { attempt } => {
            DaemonReply::Done(terminate::end_clients(&control, &attempt))
        }
        DaemonTask::Clear => {
            let are_empty = [&control.pipes, &control.logs].map(|folder| clear(folder));
            DaemonReply::Done(are_empty == [true; 2])
        }
    }
}

async fn start(
    control: &ControlClient,
    environment: Vec<(String, String)>,
    folder: &Path,
    within: Duration,
) -> Result<(), (ControlError, String)> {
    let not_run = |cause| {
        (ControlError::NoProgram { program: control.program.clone(), cause }, String::new())
    };
    // In memory, not pipes: a daemon would hold pipes open forever.
    let memory = || -> std::io::Result<_> {
        let file = tessera_launch::sys::memory_file()?;
        Ok((file.try_clone()?, file.try_clone()?, file))
    };
    let (stdout, stderr, output) = memory().map_err(|error| not_run(error.into()))?;
    let mut command = control.command();
    command
        .arg("-d")
        .current_dir(folder)
        .env_clear()
        .envs(environment)
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0);
    let started = control.finish(command, None, "-d", within).await;
    started.map(drop).map_err(|error| (error, log::beginning(output)))
}

/// Runs a small kernel as a client.
async fn canary(
    control: &ControlClient,
    command: &[String],
    environment: Vec<(String, String)>,
) -> Result<(), CanaryError> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let not_run = |cause: std::io::Error| CanaryError::NotRun {
        program: program.clone(),
        cause: cause.into(),
    };
    let mut command = tokio::process::Command::new(program);
    if let Some(account) = &control.account {
        run_as(command.as_std_mut(), account);
    }
    command
        .args(arguments)
        .envs(environment)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    end_with_parent(&mut command);
    let run = async {
        let mut child = command.spawn().map_err(not_run)?;
        let errors = answer_of(child.stderr.take()).await;
        let status = child.wait().await.map_err(not_run)?;
        if status.success() {
            return Ok(());
        }
        Err(CanaryError::Failed(String::from_utf8_lossy(&errors).trim().to_owned()))
    };
    let ran = tokio::time::timeout(CANARY_WITHIN, run).await;
    ran.unwrap_or(Err(CanaryError::Silent { within: CANARY_WITHIN }))
}

/// Lets a program end with the process that waits for it. What the program itself starts goes on.
pub fn end_with_parent(command: &mut tokio::process::Command) {
    let end =
        || -> std::io::Result<()> { Ok(set_parent_process_death_signal(Some(Signal::KILL))?) };
    // SAFETY: between fork and exec only a system call is made.
    unsafe { command.pre_exec(end) };
}

/// Finds the daemon: by its own file, or, as drivers before 550 write none, as the oldest
/// process of the control program that carries the folder's mark.
fn find(control: &ControlClient, boot: BootId, mark: &str) -> Option<ProcessIdentity> {
    let written = log::read_own(&control.pipes.join(PID_FILE)).trim().parse().ok();
    if let Some(found) = written.and_then(|pid| own_process(control, boot, pid)) {
        return Some(found);
    }
    let marked = identity::marked(mark);
    let daemons = marked.into_iter().filter(|pid| runs(*pid, &control.program));
    let found = daemons.filter_map(|pid| own_process(control, boot, pid));
    found.min_by_key(|process| process.start_ticks)
}

/// Identifies a process of the daemon's account: what its user writes or answers may name any
/// process.
fn own_process(control: &ControlClient, boot: BootId, pid: u32) -> Option<ProcessIdentity> {
    let process = ProcessIdentity::of(boot, pid).ok()?;
    let found = fs::metadata(format!("/proc/{pid}")).ok()?;
    (control.account.is_none() || found.uid() == control.uid()).then_some(process)
}

/// Returns whether a process was started as this program.
fn runs(pid: u32, program: &Path) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let started = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = program.file_name().map(std::ffi::OsStr::as_encoded_bytes);
    name.is_some_and(|name| started.rsplit(|byte| *byte == b'/').next() == Some(name))
}

/// Returns the attempt to which a process belongs, by its environment.
fn owner(pid: u32) -> Option<AttemptId> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let pair = environment
        .split(|byte| *byte == 0)
        .find_map(|pair| pair.strip_prefix(b"TESSERA_ATTEMPT_ID="))?;
    std::str::from_utf8(pair).ok()?.parse().ok()
}

/// Removes what is in a folder of the user's; returns whether it is empty now.
fn clear(folder: &Path) -> bool {
    // Another's folder in its place is left as it is, and what it links to.
    if !fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw())
    {
        return false;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Neither follows a link. What can't be removed is still there afterwards.
        let _ = match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
    }
    fs::read_dir(folder).is_ok_and(|mut left| left.next().is_none())
}

impl ControlClient {
    /// Returns where the daemon has a file.
    fn file(&self, file: DaemonFile) -> std::path::PathBuf {
        self.logs.join(match file {
            DaemonFile::ServerLog => "server.log",
            DaemonFile::ControlLog => "control.log",
        })
    }

    /// Returns the user that the daemon serves.
    pub fn uid(&self) -> u32 {
        let own = || geteuid().as_raw();
        self.account.as_ref().map_or_else(own, |account| account.uid)
    }
}
