//! Every SQL statement of the controller. Functions that move something take the connection of
//! the caller's transaction; reads go through [`Reads`].

pub mod commit;
pub mod company;
pub mod connect;
pub mod database;
pub mod foresight;
mod gangs;
pub mod history;
pub mod kernels;
pub mod leader;
pub mod load;
pub mod moves;
pub mod nodes;
pub mod operator;
pub mod private;
pub mod reads;
pub mod rounds;
pub mod shares;
pub mod submit;
mod tenancies;
pub mod terms;
pub mod usage;

pub use connect::{ConnectOptions, Connection, Pool, acquire, connect};
pub use reads::Reads;

use crate::core::setback::SetBack;

/// What went wrong with the store: one variant for each thing that a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The row is not in the state that the caller's picture has: read again, decide again.
    #[error("{moved} of {expected} rows moved while trying to {action}")]
    Moved {
        /// What was tried.
        action: &'static str,
        /// How many rows should have moved.
        expected: usize,
        /// How many did, before the transaction was given up.
        moved: u64,
    },
    /// Another controller leads: stop acting.
    #[error("epoch {ours} was deposed: the leader's epoch is {newest}")]
    Deposed {
        /// Ours.
        ours: u64,
        /// The one in the database.
        newest: u64,
    },
    /// The database was set back to an earlier state: take stock before anything else (rule F14).
    #[error("the database was set back: {how}")]
    SetBack {
        /// What tells.
        how: SetBack,
    },
    /// A row breaks a rule that this version relies on: a person must look.
    #[error("row {row} of table {table} can't be understood: {problem}")]
    Corrupt {
        /// Which table.
        table: &'static str,
        /// Which row.
        row: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The key was used before for another request.
    #[error("the idempotency key was used before for a different request")]
    KeyReused,
    /// PostgreSQL refused or went away: retry after a pause.
    #[error("failed to {action}")]
    Unavailable {
        /// What was tried.
        action: &'static str,
        /// What sqlx said.
        #[source]
        cause: sqlx::Error,
    },
}

impl StoreError {
    pub(crate) fn while_trying_to(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |cause| Self::Unavailable { action, cause }
    }

    /// Tells whether the store contradicts the caller's picture: it answered, and had other rows
    /// than the picture, or a constraint against what was decided by it.
    pub fn is_contradiction(&self) -> bool {
        match self {
            Self::Moved { .. } => true,
            Self::Unavailable { cause, .. } => {
                cause.as_database_error().is_some_and(|error| error.constraint().is_some())
            }
            Self::Deposed { .. }
            | Self::SetBack { .. }
            | Self::Corrupt { .. }
            | Self::KeyReused => false,
        }
    }

    /// Checks that a batch moved exactly the rows that it named.
    pub(crate) fn check_moved(
        action: &'static str,
        expected: usize,
        moved: u64,
    ) -> Result<(), Self> {
        if u64::try_from(expected).is_ok_and(|expected| expected == moved) {
            Ok(())
        } else {
            Err(Self::Moved { action, expected, moved })
        }
    }
}
