//! The end of an attempt's clients before it is killed, in NVIDIA's order: `terminate_client`,
//! wait for success, then `SIGKILL`. Run by shepherds, so that it works without an agent.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::access::{WORKER_DELAY, words};
use super::control::{ControlClient, run_as};
use super::messages::{DaemonReply, DaemonRequest, DaemonTask};
use crate::shepherd::protocol::AccountNumbers;
use crate::shepherd::socket::{frame_bytes, take_frame};
use crate::sys::identity;
use tessera_agent_core::mps::daemon_output::{pids, terminated};

/// How long all commands together may take (M3).
pub const WITHIN: Duration = Duration::from_secs(5);
/// How often a running command is polled.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The clients to end.
#[derive(Clone, Debug, clap::Args)]
pub struct TerminateArguments {
    /// NVIDIA's control program.
    #[arg(long)]
    control: PathBuf,
    /// The daemon's folder of pipes.
    #[arg(long)]
    pipes: PathBuf,
    #[arg(long)]
    attempt: String,
    /// The daemon's user, if it is another than this program's.
    #[arg(long, requires = "gid")]
    uid: Option<u32>,
    /// The user's main group.
    #[arg(long)]
    gid: Option<u32>,
    /// All groups of the user.
    #[arg(long)]
    groups: Option<String>,
    /// The launcher that starts a worker as the user, for an agent that isn't root.
    #[arg(long, requires = "uid")]
    launch: Option<PathBuf>,
}

impl TerminateArguments {
    fn account(&self) -> Option<AccountNumbers> {
        let groups = self.groups.as_deref().unwrap_or_default();
        let groups = groups.split(',').filter_map(|group| group.parse().ok()).collect();
        Some(AccountNumbers { uid: self.uid?, gid: self.gid?, groups })
    }
}

/// Terminates the clients of an attempt; kills the attempt's processes if that succeeded for all
/// of them. If not, their shepherd kills them after its timeout, and the slice is checked.
pub fn run(what: &TerminateArguments) -> bool {
    let account = what.account();
    let (program, pipes) = (what.control.clone(), what.pipes.clone());
    let control = ControlClient { program, logs: pipes.clone(), pipes, account };
    match (&what.launch, &control.account) {
        (Some(launch), Some(account)) => {
            let control = ControlClient { account: None, ..control.clone() };
            let task = DaemonTask::Terminate { attempt: what.attempt.clone() };
            let request = DaemonRequest { control, task };
            by_worker(launch, account, &request).unwrap_or(false)
        }
        (None, _) | (_, None) => end_clients(&control, &what.attempt),
    }
}

/// Lets a worker of the user end the clients; returns whether all have ended.
#[expect(
    clippy::disallowed_methods,
    reason = "a program outside of this process has a real deadline"
)]
fn by_worker(launch: &Path, account: &AccountNumbers, request: &DaemonRequest) -> io::Result<bool> {
    let ends = Instant::now() + WITHIN + WORKER_DELAY;
    let mut worker = Command::new(launch)
        .env_clear()
        .args(words(account))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (input, output) = (worker.stdin.take(), worker.stdout.take());
    let (Some(mut input), Some(mut output)) = (input, output) else { return Ok(false) };
    input.write_all(&frame_bytes(request)?)?;
    let done = is_done(&mut output, ends);
    // The end of its input ends it, also if it hangs: this process then has ended long before.
    drop(input);
    let _ = worker.try_wait();
    done
}

/// Waits for a worker's answer; returns whether all was done.
#[expect(
    clippy::disallowed_methods,
    reason = "a program outside of this process has a real deadline"
)]
fn is_done(output: &mut ChildStdout, ends: Instant) -> io::Result<bool> {
    let (mut buffer, mut chunk) = (Vec::new(), [0; 256]);
    loop {
        if let Some(reply) = take_frame::<DaemonReply>(&mut buffer)? {
            return Ok(reply == DaemonReply::Done(true));
        }
        let left = i32::try_from(ends.saturating_duration_since(Instant::now()).as_millis());
        if !tessera_launch::sys::poll(&[output.as_raw_fd()], left.unwrap_or(0)).contains(&true) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match output.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => buffer.extend_from_slice(&chunk[..bytes]),
        }
    }
}

/// Terminates the clients of an attempt, and then kills the attempt's processes; returns whether all clients have ended.
#[expect(
    clippy::disallowed_methods,
    reason = "the commands of a program outside of this process share a real deadline"
)]
pub fn end_clients(control: &ControlClient, attempt: &str) -> bool {
    let ends = Instant::now() + WITHIN;
    let request = |line: &str| {
        request(&control.program, &control.pipes, control.account.as_ref(), line, ends)
    };
    let Some(servers) = request("get_server_list") else { return false };
    let mut all = true;
    for server in pids(&servers) {
        let clients = request(&format!("get_client_list {server}")).unwrap_or_default();
        for client in pids(&clients) {
            if identity::belongs_to(client, attempt) {
                let answer = request(&format!("terminate_client {server} {client}"));
                all &= answer.is_some_and(|text| terminated(&text));
            }
        }
    }
    if all {
        identity::kill_by_environment(attempt);
    }
    all
}

/// Sends the daemon one command; `None` if it refuses or doesn't answer in time.
#[expect(
    clippy::disallowed_methods,
    reason = "the command of a program outside of this process has a real deadline"
)]
fn request(
    control: &Path,
    pipes: &Path,
    account: Option<&AccountNumbers>,
    line: &str,
    ends: Instant,
) -> Option<String> {
    let mut command = Command::new(control);
    if let Some(account) = account {
        run_as(&mut command, account);
    }
    let mut child = command
        .env("CUDA_MPS_PIPE_DIRECTORY", pipes)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    writeln!(child.stdin.take()?, "{line}").ok()?;
    loop {
        match child.try_wait().ok()? {
            Some(_) => break,
            None if Instant::now() > ends => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
    let output = child.wait_with_output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
