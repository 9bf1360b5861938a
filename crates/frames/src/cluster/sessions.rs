//! Interactive sessions in running attempts, each over its own stream: a program with or without a terminal,
//! or a connection to a port.
//!
//! A session outlives its stream. Both directions count their bytes from the session's start, and each side reports
//! up to which byte it has taken the other's. A client that connects again goes on exactly there.

use serde::{Deserialize, Serialize};
use tessera_model::AttemptId;
use tessera_model::batch::TerminalSize;
use tessera_model::life::ProgramExit;
use uuid::Uuid;

use super::logs::{LogRequest, LogStream};

/// Maximum number of bytes in one [`ToSession::Input`] or [`FromSession::Output`].
pub const SESSION_CHUNK_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of bytes that either side sends before the other has taken them.
pub const SESSION_WINDOW_BYTES: u64 = 256 * 1024;
/// Maximum number of bytes of a session's program, arguments and environment together: so small
/// that the frame fits.
pub const SESSION_START_BYTES_MAX: usize = 48 * 1024;

/// First frame on a stream that a controller opens to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StreamRequest {
    /// Read an attempt's output.
    Log(LogRequest),
    /// Join a session. [`ToSession`] follows, and [`FromSession`] comes back.
    Session(SessionRequest),
}

/// How a client takes part in a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionRequest {
    /// In which attempt.
    pub attempt: AttemptId,
    /// The name of the session that is joined or made.
    pub session: SessionName,
    /// How it is started if it is not there yet; without it the session must be there.
    pub start: Option<SessionStart>,
    /// The first byte of output that the client lacks; without it, the oldest that is kept.
    pub offset: Option<u64>,
    /// The size of the client's terminal, if it has one.
    pub size: Option<TerminalSize>,
}

/// Names a session of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SessionName {
    /// The attempt's own program.
    Main,
    /// Another one, by the id that its client drew.
    Other(Uuid),
}

/// What a session is started from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionStart {
    /// What runs.
    pub program: SessionProgram,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Variables that are set in addition to those of the attempt.
    pub env: Vec<(String, String)>,
}

/// What runs in a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SessionProgram {
    /// A program and its arguments.
    Command(Vec<String>),
    /// A connection to this port of the job's host.
    Connect(u16),
}

/// From a client to a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToSession {
    /// A piece of the input.
    Input {
        /// Where it begins. What the session has already is skipped.
        offset: u64,
        /// At most [`SESSION_CHUNK_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// There is no more input.
    EndOfInput {
        /// How much there was.
        length: u64,
    },
    /// The client's terminal has another size.
    Resize(TerminalSize),
    /// Signal the program and its process group.
    Signal(SessionSignal),
    /// The client has all output before this byte.
    Taken {
        /// The first byte that it lacks.
        total: u64,
    },
    /// The client does not return: end the session.
    HangUp,
}

/// A signal that clients may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionSignal {
    /// `SIGHUP`.
    Hup,
    /// `SIGINT`.
    Int,
    /// `SIGQUIT`.
    Quit,
    /// `SIGTERM`.
    Term,
    /// `SIGUSR1`.
    Usr1,
    /// `SIGUSR2`.
    Usr2,
    /// `SIGKILL`.
    Kill,
}

/// From a session to its client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromSession {
    /// The client has joined. Always first, but for [`Self::Refused`].
    Joined {
        /// Where the output begins that follows.
        offset: u64,
        /// How much input the session has.
        input: u64,
        /// Whether it has a terminal.
        terminal: bool,
    },
    /// A piece of the output.
    Output {
        /// Which output; a terminal has only the first.
        stream: LogStream,
        /// Where it begins, over both outputs.
        offset: u64,
        /// At most [`SESSION_CHUNK_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// The program has all input before this byte.
    Taken {
        /// The first byte that it lacks.
        total: u64,
    },
    /// The program has ended, and all its output was sent. Always last.
    Ended {
        /// How it ended; `None` if it could not be started.
        exit: Option<ProgramExit>,
        /// Why it could not be started, or empty.
        detail: String,
    },
    /// There is no such session, or it takes nobody. Always last.
    Refused {
        /// The reason, for people.
        reason: String,
        /// Whether it may be there a little later.
        retry: bool,
    },
    /// Another client has taken the session over. Always last.
    Replaced,
}
