//! Attempts start, get requests to migrate, stop and end.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::PgConnection;
use tessera_model::life::JobState;
use tessera_model::{AttemptId, Millis};
use tessera_placement::{Explanation, JobPlacement};
use uuid::Uuid;

use crate::store::columns::{
    attempt_keys, batch_size, bigint, integer, job_number, json_text, moment_ms, row_count,
};
use crate::store::{StoreError, change_rows, tenancies};
use tessera_control::rows::transitions::{
    EndedAttempt, MigrationRow, ReadyAttempt, StartedAttempt, StoppingAttempt,
};

/// Moves jobs whose slice now exists from placing to starting.
///
/// # Errors
///
/// [`StoreError::Conflict`], [`StoreError::Unavailable`].
pub async fn launch_attempts(
    connection: &mut PgConnection,
    batch: &[ReadyAttempt],
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "launch on ready slices";
    let (jobs, attempts) = attempt_keys(batch.iter().map(|r| (r.job, r.attempt)));
    let slices: Vec<_> = batch.iter().map(|r| r.slice.as_str().to_owned()).collect();
    let statement = sqlx::query!(
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
    );
    change_rows(action, batch.len(), statement.execute(connection)).await
}

/// Moves jobs with live attempts to stopping; those that are stopping already stay so.
///
/// # Errors
///
/// [`StoreError::Conflict`], [`StoreError::Unavailable`].
pub async fn record_stops(
    connection: &mut PgConnection,
    batch: &[StoppingAttempt],
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record stops";
    let (jobs, attempts) = attempt_keys(batch.iter().map(|s| (s.job, s.attempt)));
    let statement = sqlx::query!(
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
    );
    change_rows(action, batch.len(), statement.execute(connection)).await
}

/// An end of an attempt, with its start if the same round recorded it.
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnd<'r> {
    /// The outcome with the job's new state.
    pub end: &'r EndedAttempt,
    /// The start, unless it is recorded before.
    pub start: Option<&'r StartedAttempt>,
}

/// Pairs ends with the starts of the same attempts, so that one statement records both. The first part of the result has
/// the starts of attempts that don't end.
///
/// `None` if that is not possible: a statement changes a row only once, and some starts change more than their ends.
pub fn pair_starts_with_ends<'r>(
    starts: &'r [StartedAttempt],
    ends: &'r [EndedAttempt],
) -> Option<(Vec<&'r StartedAttempt>, Vec<AttemptEnd<'r>>)> {
    let mut left: BTreeMap<AttemptId, &StartedAttempt> =
        starts.iter().map(|start| (start.attempt, start)).collect();
    let pair = |end: &'r EndedAttempt| {
        let start = left.remove(&end.attempt);
        let fits = |start: &StartedAttempt| start.moved.is_none() && end.from == JobState::Running;
        start.is_none_or(fits).then_some(AttemptEnd { end, start })
    };
    let ends: Option<Vec<_>> = ends.iter().map(pair).collect();
    Some((left.into_values().collect(), ends?))
}

/// Moves jobs whose programs run from starting to running, and ends attempts: frees the memory slices that they
/// hold, and moves their jobs on. A job is moved only by its current attempt (rule F10). No attempt may be in both lists.
///
/// # Errors
///
/// [`StoreError::Conflict`], [`StoreError::Unavailable`].
pub async fn record_starts_and_ends(
    connection: &mut PgConnection,
    starts: &[&StartedAttempt],
    ends: &[AttemptEnd<'_>],
) -> Result<(), StoreError> {
    if starts.is_empty() && ends.is_empty() {
        return Ok(());
    }
    let action = "record starts and ends";
    let (jobs, attempts) = attempt_keys(starts.iter().map(|s| (s.job, s.attempt)));
    let times: Vec<_> = starts.iter().map(|s| moment_ms(s.started_unix)).collect();
    let moves: Vec<_> = starts.iter().map(|s| s.moved.map(|took| bigint(took.get()))).collect();
    let rows: Vec<_> = ends.iter().map(EndRecord::of).collect();
    let changed = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM json_to_recordset($1::text::json)
                AS u (job bigint, attempt uuid, from_state text, to_state text, charged integer,
                      uncharged integer, restart_reason text, outcome text, started_ms bigint,
                      ended_ms bigint, exit_code text, detail text, user_ms bigint,
                      system_ms bigint, max_rss bigint, ran_ms bigint, checkpoint_ms bigint,
                      useful_ms bigint, done_ppm integer, ran_out_of bigint,
                      out_of_memory integer, memory_estimate bigint)
             LIMIT $2
        ), a AS (
            UPDATE attempts
               SET live = false, state = u.outcome,
                   started_at = COALESCE(
                       attempts.started_at,
                       timestamptz 'epoch' + u.started_ms * interval '1 millisecond'),
                   ended_at = COALESCE(
                       timestamptz 'epoch' + u.ended_ms * interval '1 millisecond', now()),
                   exit_code = u.exit_code, detail = u.detail,
                   user_ms = u.user_ms, system_ms = u.system_ms, max_rss = u.max_rss
              FROM u
             WHERE attempts.attempt = u.attempt AND attempts.live
            RETURNING attempts.attempt
        ), s AS (
            DELETE FROM attempt_slots USING u WHERE attempt_slots.attempt = u.attempt
        ), p AS (
            UPDATE predictions
               SET ran_ms = u.ran_ms, useful_ms = u.useful_ms, checkpoint_ms = u.checkpoint_ms,
                   ended_at = CASE WHEN u.ran_ms IS NOT NULL THEN now() END,
                   ran_out_of = u.ran_out_of,
                   memory_outcome_at = CASE WHEN u.ran_out_of IS NOT NULL
                                              OR u.outcome = 'succeeded'
                                            THEN now() END
              FROM u
             WHERE predictions.attempt = u.attempt
               AND (u.ran_ms IS NOT NULL OR u.checkpoint_ms IS NOT NULL
                    OR u.ran_out_of IS NOT NULL OR u.outcome = 'succeeded')
        ), j AS (
            UPDATE jobs
               SET state = u.to_state, attempt = NULL,
                   charged = jobs.charged + u.charged,
                   uncharged = jobs.uncharged + u.uncharged,
                   out_of_memory = jobs.out_of_memory + u.out_of_memory,
                   memory_estimate = GREATEST(jobs.memory_estimate, u.memory_estimate),
                   done_ppm = u.done_ppm,
                   restart_reason = COALESCE(u.restart_reason, jobs.restart_reason),
                   ended_at = CASE WHEN u.to_state IN ('queued', 'held') THEN NULL ELSE now() END
              FROM u
             WHERE jobs.job = u.job AND jobs.attempt = u.attempt AND jobs.state = u.from_state
            RETURNING jobs.job
        ), v AS (
            SELECT * FROM UNNEST($3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[])
                AS v (job, attempt, started_ms, migration_ms)
        ), vp AS (
            UPDATE predictions SET migration_ms = v.migration_ms
              FROM v
             WHERE predictions.attempt = v.attempt AND v.migration_ms IS NOT NULL
        ), va AS (
            UPDATE attempts
               SET state = 'running',
                   started_at = timestamptz 'epoch' + v.started_ms * interval '1 millisecond'
              FROM v
             WHERE attempts.attempt = v.attempt AND attempts.state = 'starting'
        ), vj AS (
            UPDATE jobs SET state = 'running'
              FROM v
             WHERE jobs.job = v.job AND jobs.attempt = v.attempt AND jobs.state = 'starting'
            RETURNING jobs.job
        )
        SELECT (SELECT COUNT(*) FROM a) AS "attempts!", (SELECT COUNT(*) FROM j) AS "jobs!",
               (SELECT COUNT(*) FROM vj) AS "started!"
        "#,
        json_text(&rows),
        batch_size(&rows),
        &jobs,
        &attempts,
        &times as &[Option<i64>],
        &moves as &[Option<i64>],
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_changed(action, starts.len(), row_count(changed.started))?;
    StoreError::check_changed(action, ends.len(), row_count(changed.jobs))?;
    StoreError::check_changed(action, ends.len(), row_count(changed.attempts))?;
    tenancies::leave_tenancies(connection, ends.iter().map(|ended| ended.end)).await
}

/// The end of an attempt, as the statement reads it.
#[derive(Debug, Serialize)]
struct EndRecord<'a> {
    job: i64,
    attempt: Uuid,
    from_state: &'static str,
    to_state: &'static str,
    charged: i32,
    uncharged: i32,
    restart_reason: Option<&'static str>,
    outcome: &'static str,
    started_ms: Option<i64>,
    ended_ms: Option<i64>,
    exit_code: Option<String>,
    detail: Option<&'a str>,
    user_ms: Option<i64>,
    system_ms: Option<i64>,
    max_rss: Option<i64>,
    ran_ms: Option<i64>,
    checkpoint_ms: Option<i64>,
    useful_ms: Option<i64>,
    done_ppm: i32,
    ran_out_of: Option<i64>,
    out_of_memory: i32,
    memory_estimate: Option<i64>,
}

impl<'a> EndRecord<'a> {
    fn of(AttemptEnd { end: ended, start }: &AttemptEnd<'a>) -> Self {
        let record = &ended.record;
        // A job whose start is recorded with its end is still starting in the store.
        let from = if start.is_some() { JobState::Starting } else { ended.from };
        let start = start.and_then(|start| moment_ms(start.started_unix));
        let ran = record.started_unix != Millis::ZERO;
        let at_least = ended.out_of_memory.and_then(|event| event.at_least);
        let millis = |time: Option<Millis>| time.map(|time| bigint(time.get()));
        Self {
            job: job_number(ended.job),
            attempt: ended.attempt.as_uuid(),
            from_state: from.word(),
            to_state: ended.to.word(),
            charged: ended.charged.into(),
            uncharged: ended.uncharged.into(),
            restart_reason: (!ended.to.is_final()).then(|| ended.reason.word()),
            outcome: record.outcome.word(),
            started_ms: start.or_else(|| moment_ms(record.started_unix)),
            ended_ms: moment_ms(record.ended_unix),
            exit_code: record.exit.map(|exit| exit.to_string()),
            detail: Some(record.detail.as_str()).filter(|detail| !detail.is_empty()),
            user_ms: millis(ran.then_some(record.user_time)),
            system_ms: millis(ran.then_some(record.system_time)),
            max_rss: ran.then(|| bigint(record.max_rss.get())),
            ran_ms: millis(ended.run_times.ran),
            checkpoint_ms: millis(ended.run_times.checkpointed),
            useful_ms: millis(ended.run_times.useful),
            done_ppm: integer(ended.done),
            ran_out_of: ended.ran_out_of.map(|slice| bigint(slice.get())),
            out_of_memory: ended.out_of_memory.is_some().into(),
            memory_estimate: at_least.map(|bytes| bigint(bytes.get())),
        }
    }
}

/// Records the requests to running jobs to migrate: the decisions, and events for their users.
///
/// # Errors
///
/// [`StoreError::Conflict`] if one no longer runs, [`StoreError::Unavailable`].
pub async fn record_migrations(
    connection: &mut PgConnection,
    batch: &[MigrationRow],
    policy: &str,
    epoch: u64,
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record migrations";
    let rows: Vec<_> = batch.iter().map(MigrationRecord::of).collect();
    let statement = sqlx::query!(
        r#"
        WITH u AS (
            SELECT u.*
              FROM (SELECT *
                      FROM json_to_recordset($1::text::json)
                        AS u (job bigint, attempt uuid, decision uuid, placement jsonb,
                              explanation jsonb)
                     LIMIT $4) AS u
              JOIN jobs AS j ON j.job = u.job AND j.attempt = u.attempt AND j.state = 'running'
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, 'running',
                   'asked to write a checkpoint and migrate: ' || (u.explanation ->> 'summary')
              FROM u
        )
        INSERT INTO decisions (decision, job, outcome, policy, epoch, placement, explanation)
        SELECT u.decision, u.job, 'migrate', $2, $3, u.placement, u.explanation FROM u
        "#,
        json_text(&rows),
        policy,
        bigint(epoch),
        batch_size(&rows),
    );
    change_rows(action, batch.len(), statement.execute(connection)).await
}

/// A running job's migration, as the statement reads it.
#[derive(Debug, Serialize)]
struct MigrationRecord<'a> {
    job: i64,
    attempt: Uuid,
    decision: Uuid,
    placement: &'a JobPlacement,
    explanation: &'a Explanation,
}

impl<'a> MigrationRecord<'a> {
    fn of(moving: &'a MigrationRow) -> Self {
        Self {
            job: job_number(moving.job),
            attempt: moving.attempt.as_uuid(),
            decision: moving.decision.as_uuid(),
            placement: &moving.place,
            explanation: &moving.why,
        }
    }
}
