//! The program as people and agents use it: commands in, answers out.

use std::io::{self, BufRead as _};

use super::MpsFolders;
use super::wire::LineStream;

/// Why the program ends with status 1.
#[derive(Debug, thiserror::Error)]
pub enum CommandFailure {
    /// The wording of NVIDIA's program.
    #[error("Cannot find MPS control daemon process")]
    NoDaemon,
    /// Another daemon has the folder.
    #[error("An instance of this daemon is already running")]
    Running,
    /// A fault that somebody requested, or a fault list that can't be read.
    #[error("{0}")]
    Refused(String),
    /// Arguments that the stand-in doesn't have.
    #[error("usage: nvidia-cuda-mps-control [-d | -f]; commands are read from standard input")]
    Usage,
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Sends each line of standard input to the daemon and prints its answers. What the daemon can't
/// do it prints as text; only a missing daemon is a failure.
pub fn from_stdin(folders: &MpsFolders) -> Result<(), CommandFailure> {
    let mut lines =
        LineStream::connect(&folders.privileged()).map_err(|_| CommandFailure::NoDaemon)?;
    lines.send("ui").map_err(|_| CommandFailure::NoDaemon)?;
    for line in io::stdin().lock().lines() {
        for text in lines.request_all(&line?).map_err(|_| CommandFailure::NoDaemon)? {
            println!("{text}");
        }
    }
    Ok(())
}
