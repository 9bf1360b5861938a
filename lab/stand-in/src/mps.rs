//! A stand-in for NVIDIA's Multi-Process Service: control daemon, server and clients.
//!
//! One program, `nvidia-cuda-mps-control`, is all three of NVIDIA's roles. `-d` starts a daemon for
//! the folder in `CUDA_MPS_PIPE_DIRECTORY`. Without arguments the program reads commands from
//! standard input and sends them to the daemon. The daemon starts its servers from the program
//! itself. Clients are [`client::Client`]s in separate processes.
//!
//! Sources: the manual page of `nvidia-cuda-mps-control`, the MPS document's sections on error
//! containment, client termination and logs, and its troubleshooting guide. What it obeys:
//!
//! | rule | here |
//! |---|---|
//! | a server belongs to one user, and takes 48 client contexts at most | clients past that are refused |
//! | a fatal fault of one client reaches all clients of its server | every later call of theirs fails |
//! | until those are gone the server is in `FAULT` and accepts no client |
//! `CUDA_ERROR_MPS_SERVER_NOT_READY` |
//! | then it recovers by itself | `ACTIVE` again |
//! | killing a client without `terminate_client` is undefined | with the probability of [`daemon_faults::MpsFaults::poison_percent`] every context breaks, and the status is still `ACTIVE` |
//! | a client can only narrow what its server was given | percentages and memory limits are minima |
//! | commands to a daemon that doesn't answer block forever | so they do here |
//! | every command ends with status 0, even if it fails: only its output shows that | the same
//! words |
//! | `start_server` answers before the server is there | the log shows the result later |
//!
//! Its answers to each command, its files and its logs are those of NVIDIA's own programs, as far
//! as these can be recorded without a GPU. `lab/stand-in/tests/mps_transcript` holds what they
//! printed, [`transcript`] the questions, and [`release`] the differences between releases. These
//! parts are ours, since no source states them:
//!
//! - answers about servers and clients that run (`ps`, and `0` as the last line of a
//!   `terminate_client` that succeeded);
//! - the line that names a faulting client;
//! - the probability of 30 % above.
//!
//! The first line of both logs states that they come from a stand-in.

pub mod client;
mod command;
mod control;
pub mod daemon_faults;
mod log;
mod numbers;
pub mod release;
mod server;
pub mod transcript;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

pub use command::CommandFailure;

/// Maximum number of client contexts of one server (since Volta, before CUDA 13).
pub const CLIENTS_MAX: usize = 48;

/// Where a daemon listens, by default.
const DEFAULT_PIPES: &str = "/tmp/nvidia-mps";
/// Where it logs, by default.
const DEFAULT_LOGS: &str = "/var/log/nvidia-mps";

/// Folders of one daemon.
#[derive(Clone, Debug)]
pub struct MpsFolders {
    /// Of its sockets.
    pub pipes: PathBuf,
    /// Where the daemon writes its logs.
    pub logs: PathBuf,
}

impl MpsFolders {
    /// Reads them from the environment, as NVIDIA's programs do.
    pub fn from_env() -> Self {
        let named = |name: &str, default: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map_or_else(|| PathBuf::from(default), PathBuf::from)
        };
        Self {
            pipes: named("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPES),
            logs: named("CUDA_MPS_LOG_DIRECTORY", DEFAULT_LOGS),
        }
    }

    fn control(&self) -> PathBuf {
        self.pipes.join("control")
    }

    fn privileged(&self) -> PathBuf {
        self.pipes.join("control_privileged")
    }

    fn lock(&self) -> PathBuf {
        self.pipes.join("control_lock")
    }

    fn pipe(&self) -> PathBuf {
        self.pipes.join("log")
    }

    fn pid_file(&self) -> PathBuf {
        self.pipes.join("nvidia-cuda-mps-control.pid")
    }

    fn server(&self, pid: u32) -> PathBuf {
        self.pipes.join(format!("server-{pid}"))
    }
}

/// Runs the program with these arguments, its own name left out.
pub fn run(arguments: &[String]) -> ExitCode {
    let folders = MpsFolders::from_env();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["-d"] => control::start_in_background(&folders),
        ["-f"] => control::serve(&folders),
        ["--stand-in-server", uid] => server::serve(&folders, uid.parse().unwrap_or(0)),
        [] => command::from_stdin(&folders),
        _ => Err(CommandFailure::Usage),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            match failure {
                // NVIDIA's program prints some things here and others there.
                CommandFailure::Running => println!("{failure}"),
                CommandFailure::NoDaemon
                | CommandFailure::Refused(_)
                | CommandFailure::Usage
                | CommandFailure::Io(_) => {
                    eprintln!("{failure}");
                }
            }
            ExitCode::FAILURE
        }
    }
}

/// Returns the user id of this process.
fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").map_or(0, |found| found.uid())
}
