//! The end of an attempt's clients before it is killed, in NVIDIA's order: `terminate_client`,
//! wait for success, then `SIGKILL`. Run by shepherds, so that it works without an agent.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::control::run_as;
use crate::shepherd::protocol::AccountNumbers;
use crate::sys::identity;
use tessera_agent_core::mps::daemon_output::{pids, terminated};

/// How long all commands together may take (M3).
const WITHIN: Duration = Duration::from_secs(5);
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
#[expect(
    clippy::disallowed_methods,
    reason = "the commands of a program outside of this process share a real deadline"
)]
pub fn run(what: &TerminateArguments) -> bool {
    let ends = Instant::now() + WITHIN;
    let account = what.account();
    let request = |line: &str| request(&what.control, &what.pipes, account.as_ref(), line, ends);
    let Some(servers) = request("get_server_list") else { return false };
    let mut all = true;
    for server in pids(&servers) {
        let clients = request(&format!("get_client_list {server}")).unwrap_or_default();
        for client in pids(&clients) {
            if identity::belongs_to(client, &what.attempt) {
                let answer = request(&format!("terminate_client {server} {client}"));
                all &= answer.is_some_and(|text| terminated(&text));
            }
        }
    }
    if all {
        identity::kill_by_environment(&what.attempt);
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
