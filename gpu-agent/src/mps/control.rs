//! NVIDIA's control program: one command a run, on its standard input.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// How long one command may take: its pipes block for ever when the daemon hangs (M5).
pub const COMMAND_WITHIN: Duration = Duration::from_secs(5);

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The program can't be run.
    #[error("{} can't be run: {cause}", program.display())]
    NoProgram {
        /// The program.
        program: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// It did not end in time.
    #[error("no answer to `{command}` within {} s", within.as_secs())]
    Silent {
        /// The request.
        command: String,
        /// How long was waited.
        within: Duration,
    },
    /// It refused.
    #[error("`{command}`: {answer}")]
    Refused {
        /// The request.
        command: String,
        /// The system's error.
        answer: String,
    },
}

/// A daemon's control program.
#[derive(Clone, Debug)]
pub struct ControlClient {
    /// The program.
    pub program: PathBuf,
    /// The daemon's folder of pipes.
    pub pipes: PathBuf,
    /// Its folder of logs.
    pub logs: PathBuf,
}

impl ControlClient {
    /// Makes the program's command with the folders in its environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipes)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.logs)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Sends the daemon one command.
    ///
    /// # Errors
    ///
    /// [`ControlError`]; a daemon that doesn't answer is given up.
    pub async fn request(&self, line: &str) -> Result<String, ControlError> {
        let mut command = self.command();
        command.stdin(Stdio::piped());
        self.finish(command, Some(line), line, COMMAND_WITHIN).await
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
        let no_program = |cause| ControlError::NoProgram { program: self.program.clone(), cause };
        let what = what.to_owned();
        let run = async {
            let mut child = command.spawn().map_err(no_program)?;
            if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
                // A program that ended already gives its reason in its answer.
                let _ = pipe.write_all(format!("{input}\n").as_bytes()).await;
            }
            child.wait_with_output().await.map_err(no_program)
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
