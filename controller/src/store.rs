//! Every SQL statement of the controller. Functions that change something take the connection of
//! the caller's transaction; reads go through [`Reads`].

pub mod admin_overrides;
pub mod audit;
pub mod colocations;
mod columns;
pub mod commit;
pub mod connect;
pub mod database;
mod dependencies;
mod gangs;
mod idle_jobs;
pub mod job_updates;
pub mod kernel_profiles;
pub mod layout_plans;
pub mod leader;
pub mod memory_growth;
pub mod node_certificates;
pub mod nodes;
pub mod notifications;
pub mod predictions;
pub mod preemptions;
pub mod private;
pub mod reads;
pub mod recent_usage;
pub mod retention;
pub mod rounds;
pub mod snapshot;
pub mod steps;
pub mod submit;
mod tenancies;
pub mod tokens;
pub mod transitions;
pub mod usage;

pub use connect::{ConnectOptions, Connection, Pool, acquire, connect};
pub use reads::Reads;

use sqlx::postgres::PgQueryResult;
use tessera_control::rollback::DatabaseRollback;

/// Executes a statement, and checks that it changed as many rows as its caller named.
async fn change_rows(
    action: &'static str,
    expected: usize,
    statement: impl Future<Output = Result<PgQueryResult, sqlx::Error>>,
) -> Result<(), StoreError> {
    let changed = statement.await.map_err(StoreError::while_trying_to(action))?;
    StoreError::check_changed(action, expected, changed.rows_affected())
}

/// What went wrong with the store: one variant for each thing that a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Rows are not in the state that the caller expects: read the snapshot again, then decide again.
    #[error("could not {action}: {changed} of {expected} rows were in the expected state")]
    Conflict {
        /// What was tried.
        action: &'static str,
        /// How many rows should have changed.
        expected: usize,
        /// How many did, before the transaction was rolled back.
        changed: u64,
    },
    /// Another controller leads: stop acting.
    #[error("this leader was deposed: its epoch is {ours}, the newest is {newest}")]
    Deposed {
        /// The caller's epoch.
        ours: u64,
        /// The epoch in the database.
        newest: u64,
    },
    /// The database was rolled back to an earlier state: handle that before anything else (rule F14).
    #[error("the database was rolled back: {how}")]
    RolledBack {
        /// How it was noticed.
        how: DatabaseRollback,
    },
    /// A row breaks a rule that this version relies on: an administrator must look.
    #[error("row {key} of table {table} is corrupt, column {column}: {problem}")]
    Corrupt {
        /// The table that has the row.
        table: &'static str,
        /// The row's key.
        key: String,
        /// The column, or the value that was computed of it.
        column: &'static str,
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
        /// The database's error.
        #[source]
        cause: sqlx::Error,
    },
}

impl StoreError {
    /// Returns the error for a statement whose runtime shuts down.
    pub(crate) const fn stopping() -> Self {
        Self::Unavailable { action: "reach the database", cause: sqlx::Error::PoolClosed }
    }

    pub(crate) fn while_trying_to(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |cause| Self::Unavailable { action, cause }
    }

    /// Returns whether the store contradicts the leader's state: it answered, and its rows or
    /// constraints did not allow what was decided.
    pub fn is_contradiction(&self) -> bool {
        match self {
            Self::Conflict { .. } => true,
            Self::Unavailable { cause, .. } => {
                cause.as_database_error().is_some_and(|error| error.constraint().is_some())
            }
            Self::Deposed { .. }
            | Self::RolledBack { .. }
            | Self::Corrupt { .. }
            | Self::KeyReused => false,
        }
    }

    /// Checks that a batch changed exactly the rows that it named.
    pub(crate) fn check_changed(
        action: &'static str,
        expected: usize,
        changed: u64,
    ) -> Result<(), Self> {
        if u64::try_from(expected).is_ok_and(|expected| expected == changed) {
            Ok(())
        } else {
            Err(Self::Conflict { action, expected, changed })
        }
    }
}
