//! Jobs that are sent back to the queue in favour of jobs of a higher class.

use serde::Serialize;
use sqlx::PgConnection;
use tessera_control::rows::preemptions::{
    OpenPreemption, PreemptionRow, RequestedPreemption, SentBackJob,
};
use tessera_model::AttemptId;
use tessera_placement::{Explanation, JobPlacement};
use uuid::Uuid;

use super::StoreError;
use super::columns::{RowRef, batch_size, bigint, elapsed, job_number, json_text, row_count};

/// Records the requests to running jobs to leave: the decisions, and events for their users.
///
/// # Errors
///
/// [`StoreError::Conflict`] if one no longer runs; [`StoreError::Unavailable`].
pub async fn record_requests(
    connection: &mut PgConnection,
    batch: &[PreemptionRow],
    policy: &str,
    epoch: u64,
) -> Result<(), StoreError> {
    let rows: Vec<RequestRecord<'_>> = batch.iter().filter_map(RequestRecord::of).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let action = "record pre-emptions";
    let changed = sqlx::query!(
        r#"
        WITH u AS (
            SELECT u.*
              FROM (SELECT *
                      FROM json_to_recordset($1::text::json)
                        AS u (job bigint, attempt uuid, by_job bigint, saves boolean,
                              decision uuid, placement jsonb, explanation jsonb)
                     LIMIT $4) AS u
              JOIN jobs AS j ON j.job = u.job AND j.attempt = u.attempt AND j.state = 'running'
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, 'running', u.explanation ->> 'summary' FROM u
        ), d AS (
            INSERT INTO decisions (decision, job, outcome, policy, epoch, placement, explanation)
            SELECT u.decision, u.job, 'preempt', $2, $3, u.placement, u.explanation FROM u
        ), p AS (
            INSERT INTO preemptions (attempt, job, by_job, saves, placement)
            SELECT u.attempt, u.job, u.by_job, u.saves, u.placement FROM u
            RETURNING 1
        )
        SELECT COUNT(*) AS "requested!" FROM p
        "#,
        json_text(&rows),
        policy,
        bigint(epoch),
        batch_size(&rows),
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_changed(action, rows.len(), row_count(changed.requested))
}

/// Records how pre-emptions ended, and the time that no account is charged for. The ends of the attempts are
/// recorded before.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_ends(
    connection: &mut PgConnection,
    batch: &[PreemptionRow],
) -> Result<(), StoreError> {
    let rows: Vec<EndRecord> = batch.iter().filter_map(EndRecord::of).collect();
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM json_to_recordset($1::text::json)
                AS u (attempt uuid, outcome text, start_ms bigint, end_ms bigint)
             LIMIT $2
        ), p AS (
            UPDATE preemptions SET outcome = u.outcome, ended_at = now()
              FROM u
             WHERE preemptions.attempt = u.attempt AND u.outcome IS NOT NULL
        )
        UPDATE attempts
           SET uncharged_start_ms = GREATEST(attempts.uncharged_start_ms, u.start_ms),
               uncharged_end_ms = GREATEST(attempts.uncharged_end_ms, u.end_ms)
          FROM u
         WHERE attempts.attempt = u.attempt
        "#,
        json_text(&rows),
        batch_size(&rows),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record the ends of pre-emptions"))?;
    Ok(())
}

/// Reads the pre-emptions whose attempts have not ended.
pub(super) async fn read_open(
    connection: &mut PgConnection,
) -> Result<Vec<OpenPreemption>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.attempt, p.by_job, p.saves, p.placement,
               (extract(epoch FROM now() - p.requested_at) * 1000)::bigint AS "ago!"
          FROM preemptions AS p JOIN attempts AS a ON a.attempt = p.attempt
         WHERE p.outcome IS NULL AND a.live
         ORDER BY p.attempt
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read open pre-emptions"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("preemptions", found.attempt);
            let place: JobPlacement =
                serde_json::from_value(found.placement).map_err(row.corrupt("placement"))?;
            Ok(OpenPreemption {
                attempt: AttemptId::from_uuid(found.attempt),
                by: row.job("by_job", found.by_job)?,
                saves: found.saves,
                place,
                ago: elapsed(found.ago),
            })
        })
        .collect()
}

/// Reads how often unfinished jobs were sent back, and which of them have not run since.
pub(super) async fn read_sent_back(
    connection: &mut PgConnection,
) -> Result<Vec<SentBackJob>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT s.job, s.times AS "times!", s.by_job AS "by_job!",
               CASE WHEN NOT EXISTS (
                        SELECT FROM attempts AS a
                         WHERE a.job = s.job AND a.started_at IS NOT NULL
                           AND a.number > s.number)
                    THEN (extract(epoch FROM now() - s.last_at) * 1000)::bigint END AS waits_ms
          FROM (SELECT p.job, COUNT(*)::integer AS times, MAX(p.ended_at) AS last_at,
                       (array_agg(p.by_job ORDER BY p.ended_at DESC))[1] AS by_job,
                       MAX(a.number) AS number
                  FROM preemptions AS p
                  JOIN jobs AS j ON j.job = p.job
                  JOIN attempts AS a ON a.attempt = p.attempt
                 WHERE p.outcome = 'sent_back' AND j.ended_at IS NULL
                 GROUP BY p.job) AS s
         ORDER BY s.job
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the jobs that were sent back"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("preemptions", found.job);
            Ok(SentBackJob {
                job: row.job("job", found.job)?,
                times: row.number("times", found.times)?,
                by: row.job("by_job", found.by_job)?,
                waits_since: found.waits_ms.map(elapsed),
            })
        })
        .collect()
}

/// A request, as the statement reads it.
#[derive(Debug, Serialize)]
struct RequestRecord<'a> {
    job: i64,
    attempt: Uuid,
    by_job: i64,
    saves: bool,
    decision: Uuid,
    placement: &'a JobPlacement,
    explanation: &'a Explanation,
}

impl<'a> RequestRecord<'a> {
    fn of(row: &'a PreemptionRow) -> Option<Self> {
        let PreemptionRow::Requested(request) = row else { return None };
        let RequestedPreemption { job, attempt, by, saves, place, decision, why } = &**request;
        Some(Self {
            job: job_number(*job),
            attempt: attempt.as_uuid(),
            by_job: job_number(*by),
            saves: *saves,
            decision: decision.as_uuid(),
            placement: place,
            explanation: why,
        })
    }
}

/// An end or a new start, as the statement reads it.
#[derive(Clone, Copy, Debug, Serialize)]
struct EndRecord {
    attempt: Uuid,
    outcome: Option<&'static str>,
    start_ms: i64,
    end_ms: i64,
}

impl EndRecord {
    fn of(row: &PreemptionRow) -> Option<Self> {
        match row {
            PreemptionRow::Requested(_) => None,
            PreemptionRow::Ended { attempt, outcome, uncharged } => Some(Self {
                attempt: attempt.as_uuid(),
                outcome: Some(outcome.word()),
                start_ms: 0,
                end_ms: bigint(uncharged.get()),
            }),
            PreemptionRow::Resumed { attempt, uncharged } => Some(Self {
                attempt: attempt.as_uuid(),
                outcome: None,
                start_ms: bigint(uncharged.get()),
                end_ms: 0,
            }),
        }
    }
}
