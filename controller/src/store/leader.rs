//! Who leads: one row, a lease on the database's clock, and the guard of every move.
//!
//! A move holds the advisory lock shared, then reads the epoch; a takeover holds it exclusively,
//! then raises the epoch. So a takeover waits for moves that are under way, and later moves of
//! the old leader see that they are deposed (rule F2). `FOR KEY SHARE` on the row would let the
//! takeover pass, `FOR SHARE` would starve it.

use sqlx::PgConnection;
use tessera_model::ControllerId;

use super::StoreError;

/// The advisory lock's key: `tessera` as bytes.
const GUARD: i64 = 0x0074_6573_7365_7261;

/// How long a leader's lease lasts without renewal.
pub const TTL_SECS: f64 = 15.0;
/// How often it is renewed.
pub const RENEW_EVERY: std::time::Duration = std::time::Duration::from_secs(5);
/// How much earlier than the database a leader stops trusting itself.
pub const TRUST_MARGIN: std::time::Duration = std::time::Duration::from_secs(1);

/// Begins a move: takes the guard for the caller's transaction, and checks that `epoch` leads.
///
/// The epoch is read by a statement of its own, behind the wait for the lock: a statement sees
/// the database as it was when it began.
///
/// # Errors
///
/// [`StoreError::Deposed`] if another controller leads, [`StoreError::Unavailable`].
pub async fn guard(connection: &mut PgConnection, epoch: u64) -> Result<(), StoreError> {
    let newest = sqlx::query_scalar!(r#"SELECT guarded_epoch($1) AS "epoch!""#, GUARD)
        .fetch_one(connection)
        .await
        .map_err(StoreError::while_trying_to("take the guard"))?;
    match u64::try_from(newest) {
        Ok(newest) if newest == epoch => Ok(()),
        newest => Err(StoreError::Deposed { ours: epoch, newest: newest.unwrap_or(u64::MAX) }),
    }
}

/// What came of an attempt to lead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Election {
    /// This controller leads, under this epoch.
    Won {
        /// The new epoch.
        epoch: u64,
    },
    /// Another controller's lease still runs.
    Waits {
        /// Which controller.
        leader: ControllerId,
        /// For how long.
        seconds_left: f64,
    },
}

/// Tries to lead: succeeds if the lease has run out on the database's clock, or was this
/// controller's own (its data folder's lock proves that its former process is dead).
///
/// The new epoch is above the stored one and above `seen`, the highest that any agent obeyed.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn elect(
    connection: &mut PgConnection,
    me: ControllerId,
    seen: u64,
) -> Result<Election, StoreError> {
    let action = "elect a leader";
    let mut transaction =
        sqlx::Connection::begin(connection).await.map_err(StoreError::while_trying_to(action))?;
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", GUARD)
        .execute(&mut *transaction)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    let row = sqlx::query!(
        r#"
        SELECT controller,
               GREATEST(0, EXTRACT(EPOCH FROM expires_at - clock_timestamp()))::float8
                   AS "seconds_left!"
          FROM leader
        "#
    )
    .fetch_one(&mut *transaction)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    let leader = ControllerId::from_uuid(row.controller);
    if leader != me && row.seconds_left > 0.0 {
        return Ok(Election::Waits { leader, seconds_left: row.seconds_left });
    }
    let epoch = sqlx::query_scalar!(
        r#"
        UPDATE leader
           SET epoch = GREATEST(epoch, $2) + 1,
               controller = $1,
               expires_at = clock_timestamp() + make_interval(secs => $3)
        RETURNING epoch
        "#,
        me.as_uuid(),
        i64::try_from(seen).unwrap_or(i64::MAX - 1),
        TTL_SECS,
    )
    .fetch_one(&mut *transaction)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    transaction.commit().await.map_err(StoreError::while_trying_to(action))?;
    Ok(Election::Won { epoch: u64::try_from(epoch).unwrap_or(0) })
}

/// Renews the leader's lease, even one that ran out while nobody else wanted it.
///
/// # Errors
///
/// [`StoreError::Deposed`] if another controller leads, [`StoreError::Unavailable`].
pub async fn renew(
    connection: &mut PgConnection,
    me: ControllerId,
    epoch: u64,
) -> Result<(), StoreError> {
    let renewed = sqlx::query!(
        r#"
        UPDATE leader SET expires_at = clock_timestamp() + make_interval(secs => $3)
         WHERE controller = $1 AND epoch = $2
        "#,
        me.as_uuid(),
        i64::try_from(epoch).unwrap_or(i64::MAX),
        TTL_SECS,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("renew the leader's lease"))?;
    match renewed.rows_affected() {
        0 => Err(StoreError::Deposed { ours: epoch, newest: epoch + 1 }),
        _ => Ok(()),
    }
}
