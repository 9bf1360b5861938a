//! Why a verb failed, and the exit code that says so.

use std::io;

use crate::client::ClientError;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// It makes sense, but can't be done.
    #[error("{0}")]
    Refused(String),
    /// The controller refused, or can't be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Our own output can't be written.
    #[error("failed to write the output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// Returns the exit code: 2 for a wrong command line, 1 for everything else.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Refused(_) | Self::Client(_) | Self::Output(_) => 1,
        }
    }

    /// Tells whether whoever read our output has closed it.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(cause) if cause.kind() == io::ErrorKind::BrokenPipe)
    }
}
