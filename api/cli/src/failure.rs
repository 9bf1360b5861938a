//! Errors of verbs, and their exit codes.

use std::error::Error;
use std::io;

use tessera_client::ClientError;

/// The fault: a sentence, or an error that has its own type.
pub type FailureCause = Box<dyn Error + Send + Sync>;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandFailure {
    /// The command line is invalid.
    #[error(transparent)]
    Usage(FailureCause),
    /// The request can't be carried out.
    #[error(transparent)]
    Refused(FailureCause),
    /// The controller refused, or can't be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Our own output can't be written.
    #[error("failed to write the output: {0}")]
    Output(#[from] io::Error),
}

impl CommandFailure {
    /// Returns the failure for an invalid command line.
    pub fn usage(cause: impl Into<FailureCause>) -> Self {
        Self::Usage(cause.into())
    }

    /// Returns the failure of a request that can't be carried out.
    pub fn refused(cause: impl Into<FailureCause>) -> Self {
        Self::Refused(cause.into())
    }

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
