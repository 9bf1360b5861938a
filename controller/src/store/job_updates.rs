//! Updates of jobs that have live attempts: another priority, another time limit.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::PgConnection;
use tessera_model::JobId;
use tessera_model::spec::JobUpdate;
use uuid::Uuid;

use super::columns::{batch_size, job_number, json_text};
use super::{StoreError, change_rows};
use tessera_control::rows::updates::UpdatedJob;

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
    for updated in batch {
        let earlier = combined.entry(updated.job).or_insert_with(|| updated.clone());
        earlier.update = updated.update.clone().after(std::mem::take(&mut earlier.update));
    }
    if combined.is_empty() {
        return Ok(());
    }
    let action = "record updates of jobs";
    let rows: Vec<_> = combined.values().map(UpdateRecord::of).collect();
    let statement = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM json_to_recordset($1::text::json)
                AS u (job bigint, attempt uuid, updates jsonb, text text) LIMIT $2
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, j.state, u.text FROM u JOIN jobs AS j ON j.job = u.job
        )
        UPDATE jobs
           SET updates = COALESCE(jobs.updates, '{}') || u.updates
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt
           AND jobs.state IN ('placing', 'starting', 'running')
        "#,
        json_text(&rows),
        batch_size(&rows),
    );
    change_rows(action, combined.len(), statement.execute(connection)).await
}

/// An update of a job, as the statement reads it.
#[derive(Debug, Serialize)]
struct UpdateRecord {
    job: i64,
    attempt: Uuid,
    updates: JobUpdate,
    text: String,
}

impl UpdateRecord {
    fn of(updated: &UpdatedJob) -> Self {
        Self {
            job: job_number(updated.job),
            attempt: updated.attempt.as_uuid(),
            updates: updated.update.clone(),
            text: updated.update.text(),
        }
    }
}
