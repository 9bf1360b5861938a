//! Who leads: one row, a lease on the database's clock, and the guard of every move.
//!
//! A move holds the advisory lock shared, then reads the epoch; a takeover holds it exclusively,
//! then raises the epoch. So a takeover waits for moves that are under way, and later moves of
//! the old leader see that they are deposed (rule F2). `FOR KEY SHARE` on the row would let the
//! takeover pass, `FOR SHARE` would starve it.

use sqlx::PgConnection;
use tessera_model::{ControllerId, Millis};

use super::StoreError;
use crate::core::setback::{Lineage, Remembered, SetBack, StoreNow, generation_floor};

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

/// Reads what tells whether the store was set back.
///
/// # Errors
///
/// [`StoreError::Unavailable`], also while the server is a replica; [`StoreError::Corrupt`].
pub async fn now(connection: &mut PgConnection) -> Result<StoreNow, StoreError> {
    let row = sqlx::query!(
        r#"
        SELECT c.system_identifier AS "system!",
               pg_walfile_name(pg_current_wal_insert_lsn()) AS "file!",
               (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS "log_end!",
               l.epoch, l.system AS led_system, l.timeline AS led_timeline, l.set_back_epoch
          FROM leader AS l, pg_control_system() AS c
        "#
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("ask the server which one it is"))?;
    // Eight hexadecimal digits of timeline begin the name of a file of the log.
    let timeline = row.file.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let timeline = timeline.ok_or_else(|| corrupt(format!("a log file is {:?}", row.file)))?;
    let led = row.led_system.zip(row.led_timeline).map(|(system, timeline)| {
        let timeline = u32::try_from(timeline).map_err(corrupt)?;
        Ok(Lineage { system, timeline })
    });
    Ok(StoreNow {
        lineage: Lineage { system: row.system, timeline },
        log_end: u64::try_from(row.log_end).map_err(corrupt)?,
        epoch: u64::try_from(row.epoch).map_err(corrupt)?,
        led: led.transpose()?,
        set_back_epoch: u64::try_from(row.set_back_epoch).map_err(corrupt)?,
    })
}

fn corrupt(problem: impl ToString) -> StoreError {
    StoreError::Corrupt { table: "leader", row: "one".to_owned(), problem: problem.to_string() }
}

/// Makes sure that a new connection leads to the store that is remembered, and not to an earlier
/// state of it.
///
/// # Errors
///
/// [`StoreError::SetBack`]; those of [`now`].
pub async fn recognise(
    connection: &mut PgConnection,
    remembered: Option<Remembered>,
) -> Result<StoreNow, StoreError> {
    let now = now(connection).await?;
    match now.set_back_since(remembered.as_ref()) {
        Some(how) => Err(StoreError::SetBack { how }),
        None => Ok(now),
    }
}

/// What came of an attempt to lead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Election {
    /// This controller leads, under this epoch.
    Won {
        /// The new epoch.
        epoch: u64,
        /// What is to be remembered of the store from now on.
        remember: Remembered,
        /// How the store was set back, if that came to light: it has been taken stock of.
        set_back: Option<SetBack>,
    },
    /// Another controller's lease still runs.
    Waits {
        /// Which controller.
        leader: ControllerId,
        /// For how long.
        seconds_left: f64,
    },
}

/// What a controller knows when it wants to lead.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Which controller.
    pub controller: ControllerId,
    /// What its data folder remembers of the store.
    pub remembered: Option<Remembered>,
    /// What was found out already.
    pub set_back: Option<SetBack>,
    /// How long after a renewal it gives a node up. After a set-back nothing may be placed for so
    /// long: until every lease that was granted since has run out on its node.
    pub lease: Millis,
}

/// Tries to lead: succeeds if the lease has run out on the database's clock, or was this
/// controller's own (its data folder's lock proves that its former process is dead).
///
/// The new epoch is above every one that is known. Where the store was set back, the same
/// transaction holds placement and lets the generations leap, so that neither is forgotten nor
/// done twice, whatever dies next (rule F14).
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn elect(connection: &mut PgConnection, claim: &Claim) -> Result<Election, StoreError> {
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
    if leader != claim.controller && row.seconds_left > 0.0 {
        return Ok(Election::Waits { leader, seconds_left: row.seconds_left });
    }
    let now = now(&mut transaction).await?;
    let set_back = claim.set_back.or_else(|| now.set_back_since(claim.remembered.as_ref()));
    let known = [
        now.epoch,
        claim.remembered.map_or(0, |remembered| remembered.epoch),
        set_back.map_or(0, |set_back| set_back.highest_epoch()),
    ];
    let epoch = known.into_iter().max().unwrap_or(0) + 1;
    take_lead(&mut transaction, claim, epoch, now.lineage).await?;
    if let Some(set_back) = &set_back {
        take_stock(&mut transaction, epoch, set_back, claim.lease).await?;
    }
    transaction.commit().await.map_err(StoreError::while_trying_to(action))?;
    Ok(Election::Won { epoch, remember: now.remembered_under(epoch), set_back })
}

async fn take_lead(
    connection: &mut PgConnection,
    claim: &Claim,
    epoch: u64,
    lineage: Lineage,
) -> Result<(), StoreError> {
    // On the right of every `=` stands what the forerunner left.
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
        i64::try_from(epoch).map_err(corrupt)?,
        TTL_SECS,
        lineage.system,
        i64::from(lineage.timeline),
        i64::try_from(claim.lease.get()).map_err(corrupt)?,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("take the lead"))
    .map(drop)
}

/// How far the numbers of jobs leap when the store was set back: a number that was answered to a
/// client since must not come to mean somebody else's job.
const JOB_NUMBER_LEAP: i64 = 1_000_000;

async fn take_stock(
    connection: &mut PgConnection,
    epoch: u64,
    set_back: &SetBack,
    lease: Millis,
) -> Result<(), StoreError> {
    let action = "take stock after the store was set back";
    let highest = sqlx::query_scalar!(r#"SELECT COALESCE(max(generation), 0) AS "g!" FROM nodes"#)
        .fetch_one(&mut *connection)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    let highest = u64::try_from(highest).map_err(corrupt)?.max(set_back.highest_generation());
    sqlx::query!(
        r#"
        UPDATE leader
           SET set_back_epoch = epoch,
               generation_floor = GREATEST(generation_floor, $1),
               hold_until = GREATEST(hold_until, granted_until,
                                     clock_timestamp() + make_interval(secs => $2))
        "#,
        i64::try_from(generation_floor(highest, epoch)).map_err(corrupt)?,
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

/// What a leader takes over: how long earlier leaders' grants may stand, how long placement is
/// held, and which nodes are lost, since the store was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// How long nothing is to be placed yet; zero if placement goes on.
    pub left: Millis,
    /// How long a node may still run under what earlier leaders granted, without a word.
    pub granted: Millis,
    /// Nodes of lower generations are lost.
    pub generation_floor: u64,
}

/// Reads the hold.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn hold(connection: &mut PgConnection) -> Result<Hold, StoreError> {
    let row = sqlx::query!(
        r#"
        SELECT CEIL(GREATEST(0, EXTRACT(EPOCH FROM hold_until - clock_timestamp())) * 1000)::bigint
                   AS "left_ms!",
               CEIL(GREATEST(0, EXTRACT(EPOCH FROM granted_until - clock_timestamp())) * 1000)::bigint
                   AS "granted_ms!",
               generation_floor
          FROM leader
        "#
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("read how long placement is held"))?;
    Ok(Hold {
        left: Millis::new(u64::try_from(row.left_ms).map_err(corrupt)?),
        granted: Millis::new(u64::try_from(row.granted_ms).map_err(corrupt)?),
        generation_floor: u64::try_from(row.generation_floor).map_err(corrupt)?,
    })
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
