//! What the delivery of notifications reads and writes.

use serde_json::Value;
use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_control::notifications::Channel;
use tessera_model::mail::MailType;
use tessera_model::spec::{JobSpec, JobUpdate};
use tessera_model::{JobId, Millis};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::columns::{RowRef, bigint, elapsed, row_count};

/// A notification that is being delivered.
#[derive(Clone, Debug)]
pub struct ClaimedNotification {
    /// Its id, which stays the same when it is tried again.
    pub id: Uuid,
    /// Its place in the order in which notifications were written.
    pub sequence: i64,
    /// The job that the notification is about.
    pub job: JobId,
    /// The attempt that has to run, if it is about a part of a time limit.
    pub attempt: Option<Uuid>,
    /// Name of the event, as in the job's notification settings.
    pub event: String,
    /// What it states.
    pub body: Value,
    /// The number of this try, from 1.
    pub tries: u32,
    /// When it was written, or was due first.
    pub created_at: OffsetDateTime,
    /// How long ago that was.
    pub age: Millis,
}

/// A delivery that failed, or is not due yet.
#[derive(Clone, Debug)]
pub struct FailedDelivery {
    /// The notification.
    pub id: Uuid,
    /// After how much time it is tried again.
    pub retry_in: Millis,
    /// Why it failed.
    pub problem: Option<String>,
}

/// The running attempt that a mail about a time limit is about.
#[derive(Clone, Copy, Debug)]
pub struct RunningMark {
    /// When it started, in milliseconds since 1970.
    pub started: Millis,
    /// Its time limit now.
    pub limit: Option<Millis>,
}

/// Returns notifications that a former leader was delivering to their queue.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn release_claims(
    connection: &mut PgConnection,
    channel: Channel,
) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE notifications SET claimed = false WHERE channel = $1 AND claimed",
        channel.word(),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("take back notifications"))
    .map(drop)
}

/// Takes notifications that are due, the earliest first.
///
/// # Errors
///
/// [`StoreError::Unavailable`], [`StoreError::Corrupt`].
pub async fn claim_due(
    connection: &mut PgConnection,
    channel: Channel,
    most: i64,
) -> Result<Vec<ClaimedNotification>, StoreError> {
    let rows = sqlx::query!(
        r#"
        UPDATE notifications AS n SET claimed = true, tries = n.tries + 1
          FROM (SELECT notification
                  FROM notifications
                 WHERE channel = $1 AND due_at <= now() AND NOT claimed
                 ORDER BY due_at, sequence
                 LIMIT $2
                   FOR UPDATE SKIP LOCKED) AS u
         WHERE n.notification = u.notification
        RETURNING n.notification, n.sequence, n.job, n.attempt, n.event, n.body, n.tries, n.created_at,
                  ms(now() - n.created_at) AS "age_ms!"
        "#,
        channel.word(),
        most,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("take notifications that are due"))?;
    let claimed = rows.into_iter().map(|found| {
        let row = RowRef::new("notifications", found.notification);
        Ok(ClaimedNotification {
            id: found.notification,
            sequence: found.sequence,
            job: row.job("job", found.job)?,
            attempt: found.attempt,
            event: found.event,
            body: found.body,
            tries: row.number("tries", found.tries)?,
            created_at: found.created_at,
            age: elapsed(found.age_ms),
        })
    });
    let mut claimed = claimed.collect::<Result<Vec<_>, _>>()?;
    claimed.sort_unstable_by_key(|one| one.sequence);
    Ok(claimed)
}

/// Returns how long it takes until the next notification is due; `None` if none waits.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn wait_until_due(
    connection: &mut PgConnection,
    channel: Channel,
) -> Result<Option<Millis>, StoreError> {
    let ms = sqlx::query_scalar!(
        "SELECT ms(MIN(due_at) - now()) FROM notifications WHERE channel = $1 AND NOT claimed",
        channel.word(),
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("find the next notification"))?;
    Ok(ms.map(elapsed))
}

/// Returns how many notifications wait.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn waiting(connection: &mut PgConnection, channel: Channel) -> Result<u64, StoreError> {
    let count = sqlx::query_scalar!(
        r#"SELECT COUNT(*) AS "count!" FROM notifications WHERE channel = $1"#,
        channel.word(),
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("count notifications"))?;
    Ok(row_count(count))
}

/// Removes notifications that were delivered, or are not needed any more.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn remove_delivered(
    connection: &mut PgConnection,
    ids: &[Uuid],
) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query!("DELETE FROM notifications WHERE notification = ANY ($1)", ids)
        .execute(connection)
        .await
        .map_err(StoreError::while_trying_to("remove delivered notifications"))
        .map(drop)
}

/// Schedules notifications to be tried again later.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn retry_later(
    connection: &mut PgConnection,
    failed: &[FailedDelivery],
) -> Result<(), StoreError> {
    if failed.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = failed.iter().map(|one| one.id).collect();
    let pauses: Vec<_> = failed.iter().map(|one| bigint(one.retry_in.get())).collect();
    let problems: Vec<_> = failed.iter().map(|one| one.problem.clone()).collect();
    sqlx::query!(
        r#"
        UPDATE notifications
           SET claimed = false, due_at = now() + u.pause_ms * interval '1 millisecond',
               -- What is not due yet has not been tried.
               created_at = CASE WHEN u.problem IS NULL
                                 THEN now() + u.pause_ms * interval '1 millisecond'
                                 ELSE created_at END,
               problem = u.problem
          FROM UNNEST($1::uuid[], $2::bigint[], $3::text[]) AS u (notification, pause_ms, problem)
         WHERE notifications.notification = u.notification
        "#,
        &ids,
        &pauses,
        &problems as &[Option<String>],
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("schedule notifications again"))
    .map(drop)
}

/// Removes notifications that are given up. Users find lost mail among the events of their jobs.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn give_up(connection: &mut PgConnection, ids: &[Uuid]) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        WITH g AS (
            DELETE FROM notifications WHERE notification = ANY ($1) RETURNING job, channel, event
        )
        INSERT INTO job_events (job, state, text)
        SELECT j.job, j.state, 'its mail about ' || g.event || ' could not be delivered'
          FROM g JOIN jobs AS j ON j.job = g.job
         WHERE g.channel = 'mail'
        "#,
        ids,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("give notifications up"))
    .map(drop)
}

/// Removes the oldest notifications of a channel; returns how many.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn remove_oldest(
    connection: &mut PgConnection,
    channel: Channel,
    count: u64,
) -> Result<u64, StoreError> {
    let removed = sqlx::query!(
        r#"
        DELETE FROM notifications
         WHERE notification IN (
                   SELECT notification
                     FROM notifications
                    WHERE channel = $1 AND NOT claimed
                    ORDER BY sequence
                    LIMIT $2)
        "#,
        channel.word(),
        bigint(count),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("remove the oldest notifications"))?;
    Ok(removed.rows_affected())
}

/// Removes notifications of a channel that was switched off longer ago than they are kept; returns how many.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn expire(
    connection: &mut PgConnection,
    channel: Channel,
    age: Millis,
) -> Result<u64, StoreError> {
    let removed = sqlx::query!(
        "DELETE FROM notifications
          WHERE channel = $1 AND created_at < now() - make_interval(secs => $2)",
        channel.word(),
        age.duration().as_secs_f64(),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("remove notifications that nobody sends"))?;
    Ok(removed.rows_affected())
}

/// Reads the attempt that a mail about a time limit is about; `None` if it does not run any more.
///
/// # Errors
///
/// [`StoreError::Unavailable`], [`StoreError::Corrupt`].
pub async fn read_mark(
    connection: &mut PgConnection,
    attempt: Uuid,
) -> Result<Option<RunningMark>, StoreError> {
    let found = sqlx::query!(
        r#"
        SELECT a.job, ms(a.started_at - timestamptz 'epoch') AS started_ms,
               s.spec AS "spec: Json<JobSpec>", j.updates AS "updates: Json<JobUpdate>"
          FROM attempts AS a
          JOIN jobs AS j ON j.job = a.job
          JOIN submissions AS s ON s.first_job = j.submission
         WHERE a.attempt = $1 AND a.state = 'running'
        "#,
        attempt,
    )
    .fetch_optional(connection)
    .await
    .map_err(StoreError::while_trying_to("read the attempt of a mail"))?;
    let Some(found) = found else { return Ok(None) };
    let Some(started) = found.started_ms else { return Ok(None) };
    let row = RowRef::new("attempts", attempt);
    let mut spec = found.spec.0;
    found.updates.map(|update| update.0).unwrap_or_default().apply_to(&mut spec);
    Ok(Some(RunningMark {
        started: row.millis("started_at", started)?,
        limit: spec.run.time_limit,
    }))
}

impl ClaimedNotification {
    /// Returns the percentage of a time limit that the notification is about, if it is about one.
    pub fn limit_percent(&self) -> Option<u8> {
        self.event.parse::<MailType>().ok()?.limit_percent()
    }
}
