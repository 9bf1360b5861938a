//! Connections: the settings that each must have, the migrations, and what is refused.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};

use super::StoreError;

/// A set of connections.
pub type Pool = PgPool;
/// How to connect.
pub type ConnectOptions = PgConnectOptions;

/// A dedicated connection.
pub type Connection = PgConnection;

/// Opens a dedicated connection: for writers that commit one transaction after another, a pool
/// would only add a check of the connection before each.
///
/// # Errors
///
/// [`StoreError::Unavailable`] if the database doesn't answer.
pub async fn connect(options: &ConnectOptions) -> Result<Connection, StoreError> {
    // Their few statements take batches of any length and always go by keys: planning each call
    // again costs more than running it. A plan that is made while the tables are small, or before
    // they were ever analysed, would read them whole for the rest of the connection's life.
    let options = with_limits(options.clone()).options([
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
    ]);
    Connection::connect_with(&options)
        .await
        .map_err(StoreError::while_trying_to("reach the database"))
}

/// Takes a connection from a pool, opening one if none is free.
///
/// # Errors
///
/// [`StoreError::Unavailable`] if the database doesn't answer.
pub async fn acquire(pool: &Pool) -> Result<PoolConnection<Postgres>, StoreError> {
    pool.acquire().await.map_err(StoreError::while_trying_to("reach the database"))
}

/// The migrations that this build knows.
pub static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("../migrations");

/// Longest time of one statement, so that a stuck one can't hold a request forever.
const STATEMENT_TIMEOUT_MS: &str = "5000";
/// Longest wait for a lock of another session.
const LOCK_TIMEOUT_MS: &str = "2000";
/// A session that forgot its transaction is ended.
const IDLE_IN_TRANSACTION_TIMEOUT_MS: &str = "10000";

/// A database that this controller can't work with.
#[derive(Debug, thiserror::Error)]
pub enum UnfitDatabase {
    /// It does not respond.
    #[error("can't reach the database")]
    Unreachable(#[source] sqlx::Error),
    /// It is older than the statements require.
    #[error("PostgreSQL {version} is too old: 15 or newer is needed")]
    TooOld {
        /// The version that the server reports.
        version: String,
    },
    /// A setting would lose acknowledged work.
    #[error("the database's {name} is {value}: accepted jobs could be lost; set it to {expected}")]
    Unsafe {
        /// The setting.
        name: &'static str,
        /// The value that the server has.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// Its schema can't be brought to this version.
    #[error("can't bring the database's schema to this version")]
    Migration(#[from] sqlx::migrate::MigrateError),
}

/// Whether the database may be set up to lose data on a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// No: refuse to start.
    Required,
    /// Yes, as tests and experiments state explicitly.
    Waived,
}

/// Adds the settings that every connection must have.
pub fn with_limits(options: PgConnectOptions) -> PgConnectOptions {
    options.options([
        ("statement_timeout", STATEMENT_TIMEOUT_MS),
        ("lock_timeout", LOCK_TIMEOUT_MS),
        ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT_MS),
        // Long lists are read once: to compile their statements takes longer than to run them.
        ("jit", "off"),
        // The rollback after each release would be warned about each time.
        ("client_min_messages", "error"),
    ])
}

/// Opens a pool of at most `size` connections; none is opened yet.
pub fn pool(options: PgConnectOptions, size: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(size)
        .min_connections(0)
        .acquire_timeout(Duration::from_secs(5))
        // A future that was dropped in the middle of `BEGIN` leaves its session inside a
        // transaction, which the next user's acknowledged work would be rolled back with.
        .after_release(|connection, _| {
            Box::pin(async move {
                sqlx::raw_sql("ROLLBACK").execute(connection).await?;
                Ok(true)
            })
        })
        .connect_lazy_with(with_limits(options))
}

/// Checks the server and brings its schema to this version.
///
/// # Errors
///
/// [`UnfitDatabase`] states what to change.
pub async fn prepare(
    options: &PgConnectOptions,
    durability: Durability,
) -> Result<(), UnfitDatabase> {
    let mut connection =
        PgConnection::connect_with(options).await.map_err(UnfitDatabase::Unreachable)?;
    check_server(&mut connection, durability).await?;
    MIGRATOR.run(&mut connection).await?;
    connection.close().await.map_err(UnfitDatabase::Unreachable)
}

async fn check_server(
    connection: &mut PgConnection,
    durability: Durability,
) -> Result<(), UnfitDatabase> {
    let version = setting(connection, "server_version_num").await?;
    if version.parse::<u32>().is_ok_and(|number| number < 150_000) {
        return Err(UnfitDatabase::TooOld {
            version: setting(connection, "server_version").await?,
        });
    }
    if durability == Durability::Waived {
        return Ok(());
    }
    for (name, expected) in [("fsync", "on"), ("full_page_writes", "on")] {
        let value = setting(connection, name).await?;
        if value != expected {
            return Err(UnfitDatabase::Unsafe { name, value, expected });
        }
    }
    let value = setting(connection, "synchronous_commit").await?;
    if value == "off" {
        return Err(UnfitDatabase::Unsafe { name: "synchronous_commit", value, expected: "on" });
    }
    Ok(())
}

async fn setting(connection: &mut PgConnection, name: &str) -> Result<String, UnfitDatabase> {
    sqlx::query_scalar!(r#"SELECT current_setting($1) AS "value!""#, name)
        .fetch_one(connection)
        .await
        .map_err(UnfitDatabase::Unreachable)
}
