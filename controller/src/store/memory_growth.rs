//! Predictions of the memory of running attempts, their outcomes, and curves.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::PgConnection;
use tessera_control::rows::growth::{GrowthRow, OpenGrowth};
use tessera_control::rows::needs::NeedRow;
use tessera_model::AttemptId;
use tessera_predict::peak::{GrowthForecast, MemoryCurve};
use uuid::Uuid;

use super::StoreError;
use super::columns::{RowRef, batch_size, bigint, job_number, json_text};

/// Records predictions, what follows from them, and their outcomes. The first prediction and the first outcome of an
/// attempt stay.
///
/// # Errors
///
/// [`StoreError::Conflict`] if a job that is to be moved does not run; [`StoreError::Unavailable`].
pub async fn record_growths(
    connection: &mut PgConnection,
    batch: &[GrowthRow],
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record predictions of memory";
    let rows = merged(batch);
    let moved = rows.iter().filter(|row| row.at_least.is_some()).count();
    let text = json_text(&rows);
    let changed = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM json_to_recordset($1::text::json)
                AS u (job bigint, attempt uuid, capacity bigint, forecast jsonb, at_least bigint,
                      outcome text, curve jsonb, event text)
             LIMIT $2
        ), j AS (
            UPDATE jobs
               SET memory_estimate = GREATEST(jobs.memory_estimate, u.at_least)
              FROM u
             WHERE u.at_least IS NOT NULL AND jobs.job = u.job AND jobs.attempt = u.attempt
               AND jobs.state = 'running'
            RETURNING jobs.job
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, jobs.state, u.event FROM u JOIN jobs ON jobs.job = u.job
             WHERE u.event IS NOT NULL
        ), g AS (
            INSERT INTO memory_growths
                   (attempt, job, capacity, forecast, forecast_at, moved_at, outcome, curve)
            SELECT u.attempt, u.job, u.capacity, u.forecast,
                   CASE WHEN u.forecast IS NOT NULL THEN now() END,
                   CASE WHEN u.at_least IS NOT NULL THEN now() END, u.outcome, u.curve
              FROM u JOIN attempts AS a ON a.attempt = u.attempt
            ON CONFLICT (attempt) DO UPDATE
               SET forecast = COALESCE(memory_growths.forecast, EXCLUDED.forecast),
                   forecast_at = COALESCE(memory_growths.forecast_at, EXCLUDED.forecast_at),
                   moved_at = COALESCE(memory_growths.moved_at, EXCLUDED.moved_at),
                   outcome = COALESCE(memory_growths.outcome, EXCLUDED.outcome),
                   curve = COALESCE(EXCLUDED.curve, memory_growths.curve)
        )
        SELECT COUNT(*) AS "moved!" FROM j
        "#,
        text,
        batch_size(&rows),
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_changed(action, moved, super::columns::row_count(changed.moved))
}

/// Records what jobs need at least. The largest value of each stays.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_needs(
    connection: &mut PgConnection,
    batch: &[NeedRow],
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let rows: Vec<NeedRecord> = merged_needs(batch);
    sqlx::query!(
        r#"
        UPDATE jobs
           SET held_before_launch = GREATEST(jobs.held_before_launch, u.held),
               launch_multiprocessors = GREATEST(jobs.launch_multiprocessors, u.multiprocessors)
          FROM json_to_recordset($1::text::json)
            AS u (job bigint, attempt uuid, held bigint, multiprocessors integer)
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt
        "#,
        json_text(&rows),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record what jobs need at least"))?;
    Ok(())
}

/// A need, as the statement reads it.
#[derive(Clone, Copy, Debug, Serialize)]
struct NeedRecord {
    job: i64,
    attempt: Uuid,
    held: Option<i64>,
    multiprocessors: Option<u16>,
}

/// Merges needs of one attempt: a statement changes each row of the table once. The newest is the largest.
fn merged_needs(batch: &[NeedRow]) -> Vec<NeedRecord> {
    let newest: BTreeMap<AttemptId, &NeedRow> =
        batch.iter().map(|need| (need.attempt, need)).collect();
    let record = |need: &NeedRow| NeedRecord {
        job: job_number(need.job),
        attempt: need.attempt.as_uuid(),
        held: need.held.map(|held| bigint(held.get())),
        multiprocessors: need.multiprocessors,
    };
    newest.into_values().map(record).collect()
}

/// Reads the predictions about unfinished jobs whose outcome is open.
pub(super) async fn read_open_growths(
    connection: &mut PgConnection,
) -> Result<Vec<OpenGrowth>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT g.attempt, g.job, g.capacity, g.moved_at IS NOT NULL AS "moved!"
          FROM memory_growths AS g JOIN jobs AS j ON j.job = g.job
         WHERE g.outcome IS NULL AND g.forecast IS NOT NULL AND j.ended_at IS NULL
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read open predictions of memory"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("memory_growths", found.attempt);
            Ok(OpenGrowth {
                job: row.job("job", found.job)?,
                attempt: AttemptId::from_uuid(found.attempt),
                capacity: row.bytes("capacity", found.capacity)?,
                moved: found.moved,
            })
        })
        .collect()
}

/// A row, as the statement reads it.
#[derive(Clone, Copy, Debug, Serialize)]
struct GrowthRecord<'a> {
    job: i64,
    attempt: Uuid,
    capacity: i64,
    forecast: Option<&'a GrowthForecast>,
    at_least: Option<i64>,
    outcome: Option<&'static str>,
    curve: Option<&'a MemoryCurve>,
    event: Option<&'a str>,
}

/// Merges rows of one attempt: a statement changes each row of the table once.
fn merged(batch: &[GrowthRow]) -> Vec<GrowthRecord<'_>> {
    let mut rows: BTreeMap<AttemptId, GrowthRecord<'_>> = BTreeMap::new();
    for growth in batch {
        let new = GrowthRecord {
            job: job_number(growth.job),
            attempt: growth.attempt.as_uuid(),
            capacity: bigint(growth.capacity.get()),
            forecast: growth.forecast.as_ref(),
            at_least: growth.at_least.map(|bytes| bigint(bytes.get())),
            outcome: growth.outcome.map(|outcome| outcome.word()),
            curve: growth.curve.as_ref(),
            event: growth.event.as_deref(),
        };
        rows.entry(growth.attempt)
            .and_modify(|row| {
                row.forecast = row.forecast.or(new.forecast);
                row.at_least = row.at_least.or(new.at_least);
                row.outcome = row.outcome.or(new.outcome);
                row.curve = new.curve.or(row.curve);
                row.event = new.event.or(row.event);
            })
            .or_insert(new);
    }
    rows.into_values().collect()
}
