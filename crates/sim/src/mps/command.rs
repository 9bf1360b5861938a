//! The program as people and agents use it: commands in, answers out.

use std::io::{self, BufRead as _};

use super::Folders;
use super::wire::Lines;

/// Why the program ends with status 1.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The words of NVIDIA's program.
    #[error("Cannot find MPS control daemon process")]
    NoDaemon,
    /// Another daemon has the folder.
    #[error("An instance of this daemon is already running")]
    Running,
    /// A fault that somebody asked for, or a fault list that can't be read.
    #[error("{0}")]
    Refused(String),
    /// Arguments that the stand-in doesn't have.
    #[error("usage: nvidia-cuda-mps-control [-d | -f]; commands are read from standard input")]
    Usage,
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Hands each line of standard input to the daemon and prints its answers.
pub fn from_stdin(folders: &Folders) -> Result<(), Failure> {
    let mut lines = Lines::connect(&folders.control()).map_err(|_| Failure::NoDaemon)?;
    let mut failed = None;
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let answer = lines.ask_all(&line).map_err(|_| Failure::NoDaemon)?;
        for text in answer {
            match text.strip_prefix("!") {
                Some(refusal) => failed = Some(refusal.to_owned()),
                None => println!("{text}"),
            }
        }
    }
    failed.map_or(Ok(()), |refusal| Err(Failure::Refused(refusal)))
}
