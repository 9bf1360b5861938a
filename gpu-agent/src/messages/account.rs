//! Answers of the machine's name service.

use std::io;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

use crate::shepherd::protocol::AccountNumbers;

/// An account of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalAccount {
    /// The user's number and those of its groups.
    pub numbers: AccountNumbers,
    /// Its home folder.
    pub home: String,
    /// Path of the login shell.
    pub shell: String,
}

/// Why an account could not be looked up.
#[derive(Debug, thiserror::Error)]
pub enum AccountLookupError {
    /// The program that looks it up can't be run.
    #[error(transparent)]
    Run(io::Error),
    /// The lookup program ended with this status.
    #[error("the lookup failed: {0}")]
    Failed(ExitStatus),
    /// It wrote something else.
    #[error(transparent)]
    Answer(serde_json::Error),
    /// No answer is known.
    #[error("there was no answer")]
    None,
    /// It didn't end in time.
    #[error("the name service doesn't answer")]
    Late,
}

/// An answer of the name service; `Ok(None)` if there is no such account.
pub type LookupResult = Result<Option<LocalAccount>, AccountLookupError>;
