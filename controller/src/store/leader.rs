//! The leader: one row, a lease on the database's clock, and the guard of every state change.
//!
//! A state change holds the advisory lock shared, then reads the epoch. A takeover holds it
//! exclusively, then raises the epoch. So a takeover waits for changes that are under way, and later
//! changes of the old leader find that it is deposed (rule F2). `FOR KEY SHARE` on the row would let the
//! takeover pass, `FOR SHARE` would starve it.

use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres, Transaction};
use tessera_model::{ControllerId, Millis};

use super::StoreError;
use super::columns::{RowRef, bigint};
use tessera_control::rollback::{
    DatabaseRollback, Lineage, Remembered, StoreNow, generation_min_after,
};

/// The advisory lock's key: `tessera` as bytes.
const GUARD: i64 = 0x0074_6573_7365_7261;

/// How long a leader's lease lasts without renewal.
pub const TTL_SECS: f64 = 15.0;
/// How often it is renewed.
pub const RENEW_EVERY: std::time::Duration = std::time::Duration::from_secs(5);
/// How much earlier than the database a leader stops trusting itself.
pub const TRUST_MARGIN: std::time::Duration = std::time::Duration::from_secs(1);

/// Begins the transaction of a state change: takes the guard, and checks that `epoch` leads.
///
/// The check is not sent together with `BEGIN`: after an error nothing would end the transaction, and the connection
/// could not be used again.
///
/// The epoch is read by its own statement, after the wait for the lock: a statement sees
/// the database as it was when it began.
///
/// # Errors
///
/// [`StoreError::Deposed`] if another controller leads, [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn begin_guarded(
    connection: &mut PgConnection,
    epoch: u64,
) -> Result<Transaction<'_, Postgres>, StoreError> {
    let action = "begin a state change";
    let mut transaction = connection.begin().await.map_err(StoreError::while_trying_to(action))?;
    // Both are numbers. A simple statement needs no preparation on a new connection.
    let statement = format!("SELECT check_epoch({GUARD}, {})", bigint(epoch));
    let checked = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction).await;
    checked.map_err(|cause| match newest_epoch(&cause) {
        Some(newest) => match ROW.number("epoch", newest) {
            Ok(newest) => StoreError::Deposed { ours: epoch, newest },
            Err(corrupt) => corrupt,
        },
        None => StoreError::Unavailable { action, cause },
    })?;
    Ok(transaction)
}

/// What `check_epoch` fails with if another epoch leads; the error's detail is that epoch.
const OTHER_EPOCH_LEADS: &str = "TS001";

/// Returns the epoch that leads, if a statement failed because another one does.
fn newest_epoch(error: &sqlx::Error) -> Option<i64> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    (error.code() == OTHER_EPOCH_LEADS).then(|| error.detail()?.parse().ok()).flatten()
}

/// Reads which server and timeline this is, to find out whether the database was rolled back.
///
/// # Errors
///
/// [`StoreError::Unavailable`], also while the server is a replica; [`StoreError::Corrupt`].
pub async fn read_lineage(connection: &mut PgConnection) -> Result<StoreNow, StoreError> {
    let found = sqlx::query!(
        r#"
        SELECT c.system_identifier AS "system!",
               pg_walfile_name(pg_current_wal_insert_lsn()) AS "file!",
               (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS "log_end!",
               l.epoch, l.system AS led_system, l.timeline AS led_timeline, l.rollback_epoch
          FROM leader AS l, pg_control_system() AS c
        "#
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("read the server's identity"))?;
    // The name of a log file begins with eight hexadecimal digits of timeline.
    let timeline = found.file.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let timeline = timeline
        .ok_or_else(|| ROW.error("timeline", format!("the log file is called {:?}", found.file)))?;
    let led = found.led_system.zip(found.led_timeline).map(|(system, timeline)| {
        Ok::<_, StoreError>(Lineage { system, timeline: ROW.number("timeline", timeline)? })
    });
    Ok(StoreNow {
        lineage: Lineage { system: found.system, timeline },
        log_end: ROW.number("log_end", found.log_end)?,
        epoch: ROW.number("epoch", found.epoch)?,
        led: led.transpose()?,
        rollback_epoch: ROW.number("rollback_epoch", found.rollback_epoch)?,
    })
}

/// The only row of its table.
const ROW: RowRef<&str> = RowRef::new("leader", "one");

/// Makes sure that a new connection leads to the store that is remembered, and not to an earlier
/// state of it.
///
/// # Errors
///
/// [`StoreError::RolledBack`]; those of [`read_lineage`].
pub async fn check_lineage(
    connection: &mut PgConnection,
    remembered: Option<Remembered>,
) -> Result<StoreNow, StoreError> {
    let now = read_lineage(connection).await?;
    match now.rollback_since(remembered.as_ref()) {
        Some(how) => Err(StoreError::RolledBack { how }),
        None => Ok(now),
    }
}

/// The result of an election.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Election {
    /// This controller leads, under this epoch.
    Won {
        /// The new epoch.
        epoch: u64,
        /// What to remember of the store from now on.
        remember: Remembered,
        /// How the database was rolled back, if it was; the leader's row answers for it now.
        rolled_back: Option<DatabaseRollback>,
    },
    /// Another controller's lease still runs.
    Waits {
        /// The controller that leads.
        leader: ControllerId,
        /// How long its lease still runs, in seconds.
        seconds_left: f64,
    },
}

/// What a controller knows when it stands for election.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The controller that claims the lease.
    pub controller: ControllerId,
    /// What its data folder remembers of the store.
    pub remembered: Option<Remembered>,
    /// A rollback that was found before.
    pub rolled_back: Option<DatabaseRollback>,
    /// How long after a renewal it gives a node up. After a rollback nothing is placed for this long,
    /// until every lease that was granted since has run out on its node.
    pub lease: Millis,
}

/// Tries to lead: succeeds if the lease has run out on the database's clock, or was this
/// controller's own (its data folder's lock proves that its former process is dead).
///
/// The new epoch is above every known one. After a rollback, the same transaction holds placement and
/// raises the generations, so that a crash neither loses nor repeats either (rule F14).
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn elect_leader(
    connection: &mut PgConnection,
    claim: &Claim,
) -> Result<Election, StoreError> {
    let action = "elect a leader";
    let mut transaction = connection.begin().await.map_err(StoreError::while_trying_to(action))?;
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
    if leader != claim.controller && row.seconds_left > 0.0 {
        return Ok(Election::Waits { leader, seconds_left: row.seconds_left });
    }
    let now = read_lineage(&mut transaction).await?;
    let rolled_back = claim.rolled_back.or_else(|| now.rollback_since(claim.remembered.as_ref()));
    let known = [
        now.epoch,
        claim.remembered.map_or(0, |remembered| remembered.epoch),
        rolled_back.map_or(0, |rolled_back| rolled_back.highest_epoch()),
    ];
    let epoch = known.into_iter().max().unwrap_or(0) + 1;
    take_lead(&mut transaction, claim, epoch, now.lineage).await?;
    if let Some(rolled_back) = &rolled_back {
        record_rollback(&mut transaction, epoch, rolled_back, claim.lease).await?;
    }
    transaction.commit().await.map_err(StoreError::while_trying_to(action))?;
    Ok(Election::Won { epoch, remember: now.remembered_under(epoch), rolled_back })
}

async fn take_lead(
    connection: &mut PgConnection,
    claim: &Claim,
    epoch: u64,
    lineage: Lineage,
) -> Result<(), StoreError> {
    // The right sides are the values of the former leader.
    sqlx::query!(
        r#"
        UPDATE leader
           SET epoch = $2, controller = $1, system = $4, timeline = $5,
               expires_at = clock_timestamp() + make_interval(secs => $3),
               granted_until = GREATEST(granted_until,
                                        clock_timestamp() + lease_ms * interval '1 millisecond'),
               lease_ms = $6
        "#,
        claim.controller.as_uuid(),
        ROW.number::<i64>("epoch", epoch)?,
        TTL_SECS,
        lineage.system,
        i64::from(lineage.timeline),
        ROW.number::<i64>("lease_ms", claim.lease.get())?,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("take the lead"))
    .map(drop)
}

/// How far job numbers are raised after a rollback: a number that a client received since must not
/// become another user's job.
const JOB_NUMBER_LEAP: i64 = 1_000_000;

async fn record_rollback(
    connection: &mut PgConnection,
    epoch: u64,
    rolled_back: &DatabaseRollback,
    lease: Millis,
) -> Result<(), StoreError> {
    let action = "record a rollback of the database";
    let highest = sqlx::query_scalar!(r#"SELECT COALESCE(max(generation), 0) AS "g!" FROM nodes"#)
        .fetch_one(&mut *connection)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    let highest =
        ROW.number::<u64>("generation_min", highest)?.max(rolled_back.highest_generation());
    sqlx::query!(
        r#"
        UPDATE leader
           SET rollback_epoch = epoch,
               generation_min = GREATEST(generation_min, $1),
               hold_until = GREATEST(hold_until, granted_until,
                                     clock_timestamp() + make_interval(secs => $2))
        "#,
        ROW.number::<i64>("generation_min", generation_min_after(highest, epoch))?,
        lease.duration().as_secs_f64(),
    )
    .execute(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    sqlx::query_scalar!("SELECT setval('job_number', nextval('job_number') + $1)", JOB_NUMBER_LEAP)
        .fetch_one(connection)
        .await
        .map_err(StoreError::while_trying_to(action))
        .map(drop)
}

/// What a leader takes over: how long earlier leaders' grants may last, how long placement is held,
/// and which nodes are lost since the database was rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// How long nothing may be placed yet; zero if placement goes on.
    pub left: Millis,
    /// How long a node may still run under earlier leaders' grants without contact.
    pub granted: Millis,
    /// Nodes of lower generations are lost.
    pub generation_min: u64,
}

/// Reads the hold.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn read_hold(connection: &mut PgConnection) -> Result<Hold, StoreError> {
    let found = sqlx::query!(
        r#"
        SELECT CEIL(GREATEST(0, EXTRACT(EPOCH FROM hold_until - clock_timestamp())) * 1000)::bigint
                   AS "left_ms!",
               CEIL(GREATEST(0, EXTRACT(EPOCH FROM granted_until - clock_timestamp())) * 1000)::bigint
                   AS "granted_ms!",
               generation_min
          FROM leader
        "#
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("read the placement hold"))?;
    Ok(Hold {
        left: ROW.millis("hold_until", found.left_ms)?,
        granted: ROW.millis("granted_until", found.granted_ms)?,
        generation_min: ROW.number("generation_min", found.generation_min)?,
    })
}

/// Renews the leader's lease, even one that ran out if no other controller took it.
///
/// # Errors
///
/// [`StoreError::Deposed`] if another controller leads, [`StoreError::Unavailable`].
pub async fn renew_lease(
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
        bigint(epoch),
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
