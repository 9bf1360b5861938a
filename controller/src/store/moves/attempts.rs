//! Attempts go on and end.

use sqlx::PgConnection;
use tessera_model::life::Outcome;
use tessera_model::{Bytes, Millis};
use tessera_wire::frames::ExitRecord;
use time::OffsetDateTime;

use super::{Ended, Moving, Ready, Started, Stopping, json, moment, number, signed};
use crate::core::foresight::Lasted;
use crate::store::{StoreError, tenancies};

/// Moves jobs whose slice stands now from placing to starting.
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn launch(connection: &mut PgConnection, batch: &[Ready]) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "launch on ready slices";
    let jobs: Vec<_> = batch.iter().map(|r| number(r.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|r| r.attempt.as_uuid()).collect();
    let slices: Vec<_> = batch.iter().map(|r| r.slice.as_str().to_owned()).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT * FROM UNNEST($1::bigint[], $2::uuid[], $3::text[]) AS u (job, attempt, slice)
        ), a AS (
            UPDATE attempts SET state = 'starting', slice = u.slice
              FROM u
             WHERE attempts.attempt = u.attempt AND attempts.state = 'placing'
        )
        UPDATE jobs SET state = 'starting'
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt AND jobs.state = 'placing'
        "#,
        &jobs,
        &attempts,
        &slices,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, batch.len(), moved.rows_affected())
}

/// Moves jobs whose programs run from starting to running.
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn start(connection: &mut PgConnection, batch: &[Started]) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record starts";
    let jobs: Vec<_> = batch.iter().map(|s| number(s.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|s| s.attempt.as_uuid()).collect();
    let moments: Vec<_> = batch.iter().map(|s| moment(s.started_unix)).collect();
    let took: Vec<_> = batch.iter().map(|s| s.moved.map(|took| signed(took.get()))).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT * FROM UNNEST($1::bigint[], $2::uuid[], $3::timestamptz[], $4::bigint[])
                AS u (job, attempt, started_at, moved_ms)
        ), p AS (
            UPDATE predictions SET moved_ms = u.moved_ms
              FROM u
             WHERE predictions.attempt = u.attempt AND u.moved_ms IS NOT NULL
        ), a AS (
            UPDATE attempts SET state = 'running', started_at = u.started_at
              FROM u
             WHERE attempts.attempt = u.attempt AND attempts.state = 'starting'
        )
        UPDATE jobs SET state = 'running'
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt AND jobs.state = 'starting'
        "#,
        &jobs,
        &attempts,
        &moments as &[Option<OffsetDateTime>],
        &took as &[Option<i64>],
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, batch.len(), moved.rows_affected())
}

/// Moves jobs with live attempts to stopping; those that are stopping already stay so.
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn stop(connection: &mut PgConnection, batch: &[Stopping]) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record stops";
    let jobs: Vec<_> = batch.iter().map(|s| number(s.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|s| s.attempt.as_uuid()).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT * FROM UNNEST($1::bigint[], $2::uuid[]) AS u (job, attempt)
        ), a AS (
            UPDATE attempts SET state = 'stopping' FROM u
             WHERE attempts.attempt = u.attempt AND attempts.live
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, 'stopping', 'cancelled by its user: its attempt is being ended' FROM u
        )
        UPDATE jobs SET state = 'stopping'
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt
           AND jobs.state IN ('placing', 'starting', 'running', 'stopping')
        "#,
        &jobs,
        &attempts,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, batch.len(), moved.rows_affected())
}

/// Ends attempts: frees the memory slices that they hold, and moves their jobs on. A job is
/// moved only by its current attempt (rule F10).
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn end(connection: &mut PgConnection, batch: &[Ended]) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record ends";
    let jobs: Vec<_> = batch.iter().map(|e| number(e.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|e| e.attempt.as_uuid()).collect();
    let from: Vec<_> = batch.iter().map(|e| e.from.word().to_owned()).collect();
    let to: Vec<_> = batch.iter().map(|e| e.to.word().to_owned()).collect();
    let charged: Vec<_> = batch.iter().map(|e| i32::from(e.charged)).collect();
    let uncharged: Vec<_> = batch.iter().map(|e| i32::from(e.uncharged)).collect();
    let reasons: Vec<_> = batch.iter().map(restart_reason).collect();
    let records = || batch.iter().map(|e| &e.record);
    let outcomes: Vec<_> = records().map(|r| r.outcome.word().to_owned()).collect();
    let started: Vec<_> = records().map(|r| moment(r.started_unix)).collect();
    let ended: Vec<_> = records().map(|r| moment(r.ended_unix)).collect();
    let exits: Vec<_> = records().map(|r| r.exit.map(|e| e.to_string())).collect();
    let details: Vec<_> =
        records().map(|r| (!r.detail.is_empty()).then(|| r.detail.clone())).collect();
    let ran = |r: &ExitRecord| r.started_unix != Millis::ZERO;
    let user: Vec<_> = records().map(|r| ran(r).then(|| signed(r.user_time.get()))).collect();
    let system: Vec<_> = records().map(|r| ran(r).then(|| signed(r.system_time.get()))).collect();
    let rss: Vec<_> = records().map(|r| ran(r).then(|| signed(r.max_rss.get()))).collect();
    let lasted = |of: fn(&Lasted) -> Option<Millis>| {
        let column = batch.iter().map(|e| of(&e.lasted).map(|time| signed(time.get())));
        column.collect::<Vec<_>>()
    };
    let whole = lasted(|lasted| lasted.ran);
    let aside = lasted(|lasted| lasted.aside);
    let useful = lasted(|lasted| lasted.useful);
    let done: Vec<_> = batch.iter().map(|e| i32::try_from(e.done).unwrap_or(0)).collect();
    let out_of: Vec<_> =
        batch.iter().map(|e| e.ran_out_of.map(|slice| signed(slice.get()))).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM UNNEST($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::integer[],
                          $6::integer[], $7::text[], $8::text[], $9::timestamptz[],
                          $10::timestamptz[], $11::text[], $12::text[], $13::bigint[],
                          $14::bigint[], $15::bigint[], $16::bigint[], $17::integer[],
                          $18::bigint[], $19::bigint[], $20::bigint[])
                AS u (job, attempt, from_state, to_state, charged, uncharged, reason, outcome,
                      started_at, ended_at, exit, detail, user_ms, system_ms, max_rss, ran_ms,
                      done_ppm, aside_ms, useful_ms, ran_out_of)
        ), a AS (
            UPDATE attempts
               SET live = false, state = u.outcome,
                   started_at = COALESCE(attempts.started_at, u.started_at),
                   ended_at = COALESCE(u.ended_at, now()),
                   exit_code = u.exit, detail = u.detail,
                   user_ms = u.user_ms, system_ms = u.system_ms, max_rss = u.max_rss
              FROM u
             WHERE attempts.attempt = u.attempt AND attempts.live
            RETURNING attempts.attempt
        ), s AS (
            DELETE FROM attempt_slots USING u WHERE attempt_slots.attempt = u.attempt
        ), p AS (
            UPDATE predictions
               SET ran_ms = u.ran_ms, useful_ms = u.useful_ms, aside_ms = u.aside_ms,
                   ended_at = CASE WHEN u.ran_ms IS NOT NULL THEN now() END,
                   ran_out_of = u.ran_out_of,
                   memory_at = CASE WHEN u.ran_out_of IS NOT NULL
                                      OR (u.outcome = 'succeeded' AND b.peak_gpu_memory > 0)
                                    THEN now() END
              FROM u JOIN attempts AS b ON b.attempt = u.attempt
             WHERE predictions.attempt = u.attempt
               AND (u.ran_ms IS NOT NULL OR u.aside_ms IS NOT NULL OR u.ran_out_of IS NOT NULL
                    OR u.outcome = 'succeeded')
        ), j AS (
            UPDATE jobs
               SET state = u.to_state, attempt = NULL,
                   charged = jobs.charged + u.charged,
                   uncharged = jobs.uncharged + u.uncharged,
                   done_ppm = u.done_ppm,
                   restart_reason = COALESCE(u.reason, jobs.restart_reason),
                   ended_at = CASE WHEN u.to_state IN ('queued', 'held') THEN NULL ELSE now() END
              FROM u
             WHERE jobs.job = u.job AND jobs.attempt = u.attempt AND jobs.state = u.from_state
            RETURNING jobs.job
        )
        SELECT (SELECT COUNT(*) FROM a) AS "attempts!", (SELECT COUNT(*) FROM j) AS "jobs!"
        "#,
        &jobs,
        &attempts,
        &from,
        &to,
        &charged,
        &uncharged,
        &reasons as &[Option<String>],
        &outcomes,
        &started as &[Option<OffsetDateTime>],
        &ended as &[Option<OffsetDateTime>],
        &exits as &[Option<String>],
        &details as &[Option<String>],
        &user as &[Option<i64>],
        &system as &[Option<i64>],
        &rss as &[Option<i64>],
        &whole as &[Option<i64>],
        &done,
        &aside as &[Option<i64>],
        &useful as &[Option<i64>],
        &out_of as &[Option<i64>],
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    let rows = |count: i64| u64::try_from(count).unwrap_or(0);
    StoreError::check_moved(action, batch.len(), rows(moved.jobs))?;
    StoreError::check_moved(action, batch.len(), rows(moved.attempts))?;
    tenancies::leave(connection, batch).await
}

/// Why the job runs again, if it does.
fn restart_reason(ended: &Ended) -> Option<String> {
    (!ended.to.is_final()).then(|| ended.reason.word().to_owned())
}

/// Records that running jobs are asked to move: the decisions, and what their users read.
///
/// # Errors
///
/// [`StoreError::Moved`] if one doesn't run any more, [`StoreError::Unavailable`].
pub async fn record_moving(
    connection: &mut PgConnection,
    batch: &[Moving],
    policy: &str,
    epoch: u64,
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record moves";
    let jobs: Vec<_> = batch.iter().map(|m| number(m.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|m| m.attempt.as_uuid()).collect();
    let decisions: Vec<_> = batch.iter().map(|m| m.decision.as_uuid()).collect();
    let places: Vec<_> = batch.iter().map(|m| json(&m.place)).collect();
    let whys: Vec<_> = batch.iter().map(|m| json(&m.why)).collect();
    let texts: Vec<_> = batch.iter().map(|m| m.why.summary.clone()).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT u.*
              FROM UNNEST($1::bigint[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[])
                AS u (job, attempt, decision, place, why, text)
              JOIN jobs AS j ON j.job = u.job AND j.attempt = u.attempt AND j.state = 'running'
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, 'running', 'asked to put its work aside: ' || u.text FROM u
        )
        INSERT INTO decisions (decision, job, outcome, policy, epoch, place, why)
        SELECT u.decision, u.job, 'move', $7, $8, u.place::json, u.why::json FROM u
        "#,
        &jobs,
        &attempts,
        &decisions,
        &places,
        &whys,
        &texts,
        policy,
        signed(epoch),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, batch.len(), moved.rows_affected())
}

/// Returns the record of an attempt that ended without its shepherd's word.
pub fn record_without_exit(outcome: Outcome, detail: String) -> ExitRecord {
    ExitRecord {
        outcome,
        exit: None,
        detail,
        started_unix: Millis::ZERO,
        ended_unix: Millis::ZERO,
        user_time: Millis::ZERO,
        system_time: Millis::ZERO,
        max_rss: Bytes::ZERO,
    }
}
