//! Errors of verbs, and their exit codes.

use std::io;

use tessera_client::ClientError;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandFailure {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The request can't be carried out.
    #[error("{0}")]
    Refused(String),
    /// The controller refused, or can't be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Our own output can't be written.
    #[error("failed to write the output: {0}")]
    Output(#[from] io::Error),
}

impl CommandFailure {
    /// Returns the exit code: 2 for a wrong command line, 1 for everything else.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Refused(_) | Self::Client(_) | Self::Output(_) => 1,
        }
    }

    /// Returns whether the reader of our output has closed it.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(cause) if cause.kind() == io::ErrorKind::BrokenPipe)
    }
}
