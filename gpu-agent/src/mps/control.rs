//! NVIDIA's control program: one command per run, on its standard input.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_launch::child::become_account;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use super::messages::{SystemError, WorkerError};
use super::work::end_with_parent;
use crate::shepherd::protocol::AccountNumbers;

/// How long one command may take: its pipes block forever when the daemon hangs (M5).
pub const COMMAND_WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of an answer that is read: far more than 48 clients need, and as text, less than a frame. The answering
/// program may be the user's own.
pub const ANSWER_MAX: u64 = 16 * 1024;
/// Where programs that run as a user are found.
const USER_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ControlError {
    /// The program can't be run.
    #[error("{} can't be run: {cause}", program.display())]
    NoProgram {
        program: PathBuf,
        /// Why it could not be run.
        cause: SystemError,
    },
    /// It did not end in time.
    #[error("no answer to `{command}` within {} s", within.as_secs())]
    Silent {
        /// The request.
        command: String,
        /// The waiting time.
        within: Duration,
    },
    #[error("`{command}`: {answer}")]
    Refused {
        /// The request.
        command: String,
        /// The system's error.
        answer: String,
    },
    /// The worker of the daemon's user did not run it.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// A daemon's control program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlClient {
    pub program: PathBuf,
    /// The daemon's folder of pipes.
    pub pipes: PathBuf,
    /// Its folder of logs.
    pub logs: PathBuf,
    /// Whose daemon it is; `None` for the agent's own account.
    pub account: Option<AccountNumbers>,
}

/// Makes a command run as an account, with nothing of the agent's environment and no way to more rights.
pub fn run_as(command: &mut std::process::Command, account: &AccountNumbers) {
    let account = account.to_launch();
    command.env_clear().env("PATH", USER_PATH);
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            become_account(&account)?;
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

impl ControlClient {
    /// Makes the program's command with the folders in its environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(account) = &self.account {
            run_as(command.as_std_mut(), account);
        }
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipes)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.logs)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        end_with_parent(&mut command);
        command
    }

    /// Runs the program to its end.
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub async fn finish(
        &self,
        mut command: Command,
        input: Option<&str>,
        what: &str,
        within: Duration,
    ) -> Result<String, ControlError> {
        let no_program = |cause: std::io::Error| ControlError::NoProgram {
            program: self.program.clone(),
            cause: cause.into(),
        };
        let what = what.to_owned();
        let run = async {
            let mut child = command.spawn().map_err(no_program)?;
            if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
                // A program that ended already gives its reason in its answer.
                let _ = pipe.write_all(format!("{input}\n").as_bytes()).await;
            }
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            let (stdout, stderr) = tokio::join!(answer_of(stdout), answer_of(stderr));
            let status = child.wait().await.map_err(no_program)?;
            Ok::<_, ControlError>(std::process::Output { status, stdout, stderr })
        };
        let output = tokio::time::timeout(within, run).await;
        let output =
            output.map_err(|_| ControlError::Silent { command: what.clone(), within })??;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() {
            return Ok(text);
        }
        let complained = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let answer = if text.is_empty() { complained } else { text };
        Err(ControlError::Refused { command: what, answer })
    }
}

/// Reads the beginning of an output. The rest is refused by a closed pipe.
pub async fn answer_of(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before an error is the answer.
        let _ = pipe.take(ANSWER_MAX).read_to_end(&mut bytes).await;
    }
    bytes
}

/// Finds a program by its name as a shell would; `None` if it isn't there.
pub fn find(program: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let runs = |path: &PathBuf| {
        path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if program.components().count() > 1 {
        let path = program.to_owned();
        return runs(&path).then_some(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(runs)
}
