//! Answers of the machine's name service.

use serde::{Deserialize, Serialize};

use crate::shepherd::protocol::AccountNumbers;

/// An account of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalAccount {
    /// Its numbers.
    pub numbers: AccountNumbers,
    /// Its home folder.
    pub home: String,
    /// Its shell.
    pub shell: String,
}

/// An answer of the name service; `Ok(None)` if there is no such account.
pub type LookupResult = Result<Option<LocalAccount>, String>;
