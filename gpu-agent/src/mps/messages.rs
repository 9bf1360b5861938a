//! What an agent and the worker of a daemon's user exchange.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_model::{AttemptId, BootId};

use super::control::{ControlClient, ControlError};
use crate::sys::identity::ProcessIdentity;

/// Something to do with a daemon's files and processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonRequest {
    /// Which daemon. A worker is its user already, so it names no account.
    pub control: ControlClient,
    /// What to do.
    pub task: DaemonTask,
}

/// What is done where a daemon's files and processes can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonTask {
    /// Start the daemon.
    Start {
        /// Its variables.
        environment: Vec<(String, String)>,
        /// Its working folder.
        folder: PathBuf,
        /// How long it may take.
        within: Duration,
    },
    /// Send it one command.
    Command {
        /// The command's line.
        line: String,
        /// How long it may take.
        within: Duration,
    },
    /// Read a piece of one of its files.
    Read {
        /// One of the daemon's.
        file: DaemonFile,
        /// How much of it was read already.
        from: u64,
    },
    /// Empty one of its files.
    Cut(DaemonFile),
    /// Find the daemon's process.
    Find {
        /// The running boot.
        boot: BootId,
        /// What its environment holds, as `NAME=value`.
        mark: String,
    },
    /// Identify those of these processes that are its user's.
    Identify {
        /// The running boot.
        boot: BootId,
        /// The processes.
        pids: Vec<u32>,
    },
    /// Name the attempts of these processes.
    Owners(Vec<u32>),
    /// Kill these processes, and all that carry the mark.
    Kill {
        /// Those that are known.
        processes: Vec<ProcessIdentity>,
        /// What the environment of the others holds, as `NAME=value`.
        mark: String,
    },
    /// Run a small kernel as a client.
    Canary {
        /// The program and its arguments.
        command: Vec<String>,
        /// Its variables.
        environment: Vec<(String, String)>,
    },
    /// End an attempt's clients, and then the attempt.
    Terminate {
        /// The attempt, as its environment names it.
        attempt: String,
    },
    /// Remove what is in the daemon's folders.
    Clear,
}

impl DaemonTask {
    /// Returns whether a second try does no harm if the first one was carried out.
    pub const fn may_be_repeated(&self) -> bool {
        !matches!(self, Self::Start { .. })
    }

    /// Returns how long it takes at most.
    pub const fn within(&self) -> Duration {
        match self {
            Self::Start { within, .. } | Self::Command { within, .. } => *within,
            Self::Canary { .. } => super::work::CANARY_WITHIN,
            Self::Terminate { .. } => super::terminate::WITHIN,
            // They only read files and signal processes.
            Self::Read { .. }
            | Self::Cut(_)
            | Self::Find { .. }
            | Self::Identify { .. }
            | Self::Owners(_)
            | Self::Kill { .. }
            | Self::Clear => super::control::COMMAND_WITHIN,
        }
    }
}

/// A file that a daemon writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonFile {
    /// What its server writes, which names clients that fault.
    ServerLog,
    /// What it writes itself, which names the ends of servers.
    ControlLog,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonReply {
    /// The control program ended, and what it answered.
    Ran(Result<String, ControlError>),
    /// The daemon was started; or why not, with what it printed.
    Started(Result<(), (ControlError, String)>),
    /// A piece of a file; `None` if there is no such file of the user's.
    Piece(Option<LogPiece>),
    /// The processes that were found.
    Processes(Vec<ProcessIdentity>),
    /// The processes that belong to attempts.
    Owners(Vec<(u32, AttemptId)>),
    /// How the canary ended.
    Canary(Result<(), CanaryError>),
    /// Whether all of it was done.
    Done(bool),
}

/// A piece of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    /// Where it begins.
    pub from: u64,
    /// What is there, as far as it fits into one reply.
    pub bytes: Vec<u8>,
}

/// Why the canary of a slice failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CanaryError {
    /// It did not end in time.
    #[error("no answer within {} s", within.as_secs())]
    Silent {
        /// The waiting time.
        within: Duration,
    },
    /// It can't be run.
    #[error("{program}: {cause}")]
    NotRun {
        /// Path of the program that could not be started.
        program: String,
        /// The system's error.
        cause: SystemError,
    },
    /// It ran and failed; its error output.
    #[error("{0}")]
    Failed(String),
    /// The worker of its user did not run it.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// An error of the system, as it is passed between processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{0}")]
pub struct SystemError(String);

impl From<io::Error> for SystemError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Why a worker did not do what it had to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum WorkerError {
    /// It can't be started, or it ended.
    #[error("the worker of the user's MPS: {0}")]
    System(#[from] SystemError),
    /// It does not run; the launcher's reason.
    #[error("the worker of the user's MPS does not run: {0}")]
    Refused(String),
    /// It did not answer in time.
    #[error("the worker of the user's MPS gives no answer within {} s", within.as_secs())]
    Silent {
        /// The waiting time.
        within: Duration,
    },
    /// It answered something else.
    #[error("the worker of the user's MPS gave another answer than requested")]
    Answer,
}

impl From<io::Error> for WorkerError {
    fn from(error: io::Error) -> Self {
        Self::System(error.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shepherd::socket::{frame_bytes, take_frame};

    fn request(line: String, pids: Vec<u32>) -> [DaemonRequest; 2] {
        let control = ControlClient {
            program: "/usr/bin/nvidia-cuda-mps-control".into(),
            pipes: "/data/p".into(),
            logs: "/data/l".into(),
            account: None,
        };
        let task = DaemonTask::Command { line, within: Duration::from_secs(5) };
        [
            DaemonRequest { control: control.clone(), task },
            DaemonRequest { control, task: DaemonTask::Owners(pids) },
        ]
    }

    proptest! {
        #[test]
        fn whatever_a_worker_sends_is_a_reply_an_error_or_not_yet_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            length in 0_u32..80_000,
        ) {
            let mut buffer = length.to_be_bytes().to_vec();
            buffer.extend_from_slice(&bytes);
            let before = buffer.len();
            match take_frame::<DaemonReply>(&mut buffer) {
                Ok(Some(_)) => prop_assert_eq!(buffer.len(), before - 4 - length as usize),
                Ok(None) => prop_assert!(bytes.len() < length as usize),
                Err(_) => {}
            }
            let mut buffer = bytes;
            let _ = take_frame::<DaemonRequest>(&mut buffer);
        }

        #[test]
        fn requests_arrive_as_they_were_sent_also_byte_by_byte(
            line in ".{0,200}",
            pids in prop::collection::vec(any::<u32>(), 0..100),
        ) {
            for sent in request(line, pids) {
                let (mut buffer, mut arrived) = (Vec::new(), None);
                for byte in frame_bytes(&sent).unwrap() {
                    prop_assert_eq!(&arrived, &None);
                    buffer.push(byte);
                    arrived = take_frame::<DaemonRequest>(&mut buffer).unwrap();
                }
                prop_assert_eq!(arrived, Some(sent));
            }
        }

        #[test]
        fn a_changed_bit_never_ends_the_reader(
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let piece = LogPiece { from: 7, bytes: vec![b'x'; 40] };
            let mut buffer = frame_bytes(&DaemonReply::Piece(Some(piece))).unwrap();
            let at = at.index(buffer.len());
            buffer[at] ^= 1 << bit;
            let _ = take_frame::<DaemonReply>(&mut buffer);
        }
    }
}
