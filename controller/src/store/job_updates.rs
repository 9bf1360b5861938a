//! Updates of jobs that have live attempts: another priority, another time limit.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::PgConnection;
use tessera_model::JobId;
use tessera_model::spec::Priority;
use uuid::Uuid;

use super::StoreError;
use super::columns::{bigint, job_number, json_text};
use tessera_control::commands::{JobUpdate, TimeLimitUpdate};
use tessera_control::rows::updates::UpdatedJob;

/// Returns an update as columns: the priority, and the time limit in milliseconds. No limit is 0.
pub(super) fn update_columns(terms: JobUpdate) -> (Option<u8>, Option<i64>) {
    let limit = |limit: TimeLimitUpdate| limit.time().map_or(0, |time| bigint(time.get()));
    (terms.priority.map(Priority::get), terms.limit.map(limit))
}

/// Records updates of jobs that have live attempts, with an event for their users.
///
/// # Errors
///
/// [`StoreError::Conflict`] if a job has another attempt, or is stopping;
/// [`StoreError::Unavailable`].
pub async fn update_jobs(
    connection: &mut PgConnection,
    batch: &[UpdatedJob],
) -> Result<(), StoreError> {
    // One statement changes a row only once: the updates of one job are combined.
    let mut combined: BTreeMap<JobId, UpdatedJob> = BTreeMap::new();
    for amended in batch {
        let earlier = combined.entry(amended.job).or_insert(*amended);
        earlier.terms = JobUpdate {
            priority: amended.terms.priority.or(earlier.terms.priority),
            limit: amended.terms.limit.or(earlier.terms.limit),
        };
    }
    if combined.is_empty() {
        return Ok(());
    }
    let action = "record updates of jobs";
    let rows: Vec<_> = combined.values().map(UpdateRecord::of).collect();
    let changed = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM json_to_recordset($1::text::json)
                AS u (job bigint, attempt uuid, priority smallint, time_limit_ms bigint, text text)
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, j.state, u.text FROM u JOIN jobs AS j ON j.job = u.job
        )
        UPDATE jobs
           SET priority = COALESCE(u.priority, jobs.priority),
               time_limit_ms = COALESCE(u.time_limit_ms, jobs.time_limit_ms)
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt
           AND jobs.state IN ('placing', 'starting', 'running')
        "#,
        json_text(&rows),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_changed(action, combined.len(), changed.rows_affected())
}

/// An update of a job, as the statement reads it; what stays as it is is NULL.
#[derive(Debug, Serialize)]
struct UpdateRecord {
    job: i64,
    attempt: Uuid,
    priority: Option<u8>,
    time_limit_ms: Option<i64>,
    text: String,
}

impl UpdateRecord {
    fn of(amended: &UpdatedJob) -> Self {
        let (priority, time_limit_ms) = update_columns(amended.terms);
        Self {
            job: job_number(amended.job),
            attempt: amended.attempt.as_uuid(),
            priority,
            time_limit_ms,
            text: amended.terms.words(),
        }
    }
}
