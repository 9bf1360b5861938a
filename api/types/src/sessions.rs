//! Messages of interactive sessions, which are WebSocket connections.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_model::batch::TerminalSize;
use tessera_model::spec::BadField;
use utoipa::ToSchema;

/// The first message of a client, as text: which program the session is started with, if it does
/// not exist yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionOpening {
    /// A program on the node, and its arguments. Absent for `main`, and for a session that exists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<String>,
    /// Instead of a program: a port of the job's host to connect to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The client's terminal. A program that is started gets one if this is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalView>,
    /// Environment variables in addition to those of the job, such as `TERM`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The first byte of output that the client lacks; by default the oldest that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

/// The size of a terminal in characters, 1 to 4096 of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalView {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl TerminalView {
    /// Checks the size.
    ///
    /// # Errors
    ///
    /// [`BadField`] names what is wrong.
    pub fn size(self) -> Result<TerminalSize, BadField> {
        TerminalSize::parse("terminal", self.rows, self.columns)
    }
}

/// Makes a job interactive: its program's input and output are those of the session `main`, and it ends when its
/// client is gone for a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InteractiveRequest {
    /// The terminal that the program gets; without one it gets pipes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalView>,
}

/// A text message of a client after the first one. Its binary messages are input, from the byte on that `joined` names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionCommand {
    /// There is no more input.
    EndOfInput,
    /// The client's terminal has another size.
    Resize {
        /// Lines.
        rows: u16,
        /// Characters in a line.
        columns: u16,
    },
    /// Signal the program and its process group.
    Signal {
        /// `HUP`, `INT`, `QUIT`, `TERM`, `USR1`, `USR2` or `KILL`.
        signal: String,
    },
    /// The client has all output before this byte. At most 256 KiB are sent beyond it.
    Taken {
        /// The first byte that it lacks.
        total: u64,
    },
}

/// A text message to a client. Binary messages are output: one byte that is 1 for standard output or 2 for standard
/// error, and then the output itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionEvent {
    /// Always first, except for `refused`.
    Joined {
        /// The byte at which the output begins that follows, over both outputs.
        offset: u64,
        /// The byte at which the client's input is to continue.
        input: u64,
        /// Whether the session has a terminal.
        terminal: bool,
    },
    /// The program has all input before this byte. The client may send at most 256 KiB beyond it.
    Taken {
        /// The first byte that it lacks.
        total: u64,
    },
    /// The program has ended, and all its output was sent. Always last.
    Ended {
        /// Exit code of the session's program; none if a signal ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<u8>,
        /// The signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<u8>,
        /// Why it could not be started, or empty.
        detail: String,
    },
    /// There is no such session, or it accepts no client. Always last.
    Refused {
        /// The reason, for people.
        reason: String,
        /// Whether it may exist a little later.
        retry: bool,
    },
    /// Another client has taken the session over. Always last.
    Replaced,
}
