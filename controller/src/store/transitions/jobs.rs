//! Changes of waiting jobs: their shares, and their users' commands.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;
use sqlx::PgConnection;
use tessera_model::JobId;
use tessera_model::dependency::Dependency;
use tessera_model::ids::BadId;
use tessera_model::life::JobState;
use tessera_model::share::SmPercent;
use tessera_model::spec::{DependencyUpdate, JobUpdate};

use crate::store::columns::{RowRef, attempt_keys, batch_size, job_number, json_text};
use crate::store::{StoreError, change_rows};
use tessera_control::rows::transitions::{ResharedJob, WaitingJobChange, WaitingJobCommand};

/// Records what share of its slice each job's next attempt gets.
///
/// # Errors
///
/// [`StoreError::Conflict`] if a job has another attempt, or is stopping;
/// [`StoreError::Unavailable`].
pub async fn change_shares(
    connection: &mut PgConnection,
    batch: &[ResharedJob],
) -> Result<(), StoreError> {
    // One statement changes a row only once: the newest share of each job counts.
    let newest: BTreeMap<JobId, &ResharedJob> = batch.iter().map(|r| (r.job, r)).collect();
    if newest.is_empty() {
        return Ok(());
    }
    let action = "record new shares";
    let (jobs, attempts) = attempt_keys(newest.values().map(|r| (r.job, r.attempt)));
    let percents: Vec<_> = newest.values().map(|r| i16::from(r.sm.get())).collect();
    let statement = sqlx::query!(
        r#"
        WITH u AS (
            SELECT * FROM UNNEST($1::bigint[], $2::uuid[], $3::smallint[]) AS u (job, attempt, sm)
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, j.state, 'its share becomes ' || u.sm || ' %: it is started again'
              FROM u JOIN jobs AS j ON j.job = u.job
        )
        UPDATE jobs SET sm_percent = u.sm
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt
           AND jobs.state IN ('placing', 'starting', 'running')
        "#,
        &jobs,
        &attempts,
        &percents,
    );
    change_rows(action, newest.len(), statement.execute(connection)).await
}

/// Carries out users' commands on waiting jobs. Returns the jobs that changed with their new states:
/// a job in another state, or none at all, is left out. A job that has ended takes only the command to run again, with
/// all of its retries, and all sizes are open to it again. Otherwise one that failed on the largest slice would wait
/// forever. A release resets the count of ends that were
/// not the job's fault, since its user looked at it.
///
/// # Errors
///
/// [`StoreError::Unavailable`], [`StoreError::Corrupt`].
pub async fn command_waiting_jobs(
    connection: &mut PgConnection,
    batch: &[WaitingJobCommand],
) -> Result<HashMap<JobId, JobState>, StoreError> {
    if batch.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<_> = batch.iter().map(CommandRecord::of).collect();
    let changed = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM json_to_recordset($1::text::json)
                AS u (job bigint, to_state text, sm_percent smallint, text text,
                      updates jsonb, again boolean)
             LIMIT $2
        ), m AS (
            UPDATE jobs
               SET state = COALESCE(u.to_state, jobs.state),
                   sm_percent = COALESCE(u.sm_percent, jobs.sm_percent),
                   updates = CASE WHEN u.updates IS NULL THEN jobs.updates
                                  ELSE COALESCE(jobs.updates, '{}') || u.updates END,
                   done_ppm = CASE WHEN u.again THEN 0 ELSE jobs.done_ppm END,
                   charged = CASE WHEN u.again THEN 0 ELSE jobs.charged END,
                   out_of_memory = CASE WHEN u.again THEN 0 ELSE jobs.out_of_memory END,
                   memory_estimate = CASE WHEN u.again THEN NULL ELSE jobs.memory_estimate END,
                   uncharged = CASE WHEN u.again OR (jobs.state = 'held' AND u.to_state = 'queued')
                                    THEN 0 ELSE jobs.uncharged END,
                   ended_at = CASE WHEN u.to_state = 'cancelled' THEN now() END
              FROM u
             WHERE jobs.job = u.job
               AND CASE WHEN u.again THEN jobs.ended_at IS NOT NULL
                        ELSE jobs.state IN ('queued', 'held') END
            RETURNING jobs.job, jobs.state, u.text
        ), e AS (
            INSERT INTO job_events (job, state, text) SELECT m.job, m.state, m.text FROM m
        )
        SELECT m.job, m.state FROM m
        "#,
        json_text(&rows),
        batch_size(&rows),
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to("carry out commands on waiting jobs"))?;
    keep_dependencies(connection, batch).await?;
    let states = changed.into_iter().map(|changed| {
        let row = RowRef::new("jobs", changed.job);
        let state = changed.state.parse().map_err(row.corrupt::<BadId>("state"))?;
        Ok((row.job("job", changed.job)?, state))
    });
    states.collect()
}

/// Lets retention keep the jobs that others wait for since an update. Those of earlier updates stay as well: which of
/// an array's tasks still wait for them is not known here.
async fn keep_dependencies(
    connection: &mut PgConnection,
    batch: &[WaitingJobCommand],
) -> Result<(), StoreError> {
    let mut before: Option<&Arc<Dependency>> = None;
    let (mut jobs, mut named) = (Vec::new(), Vec::new());
    for command in batch {
        let Some(DependencyUpdate::To(dependency)) =
            command.change.update().and_then(|update| update.dependency.as_ref())
        else {
            continue;
        };
        // One update shares its dependency among the jobs that it changes, which are of one submission.
        if before.is_some_and(|before| Arc::ptr_eq(before, dependency)) {
            continue;
        }
        before = Some(dependency);
        for on in dependency.jobs() {
            jobs.push(job_number(command.job));
            named.push(job_number(on));
        }
    }
    if jobs.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        UPDATE submissions AS s
           SET depends_on = COALESCE(s.depends_on, '{}') || n.named
          FROM (SELECT j.submission, array_agg(DISTINCT u.named) AS named
                  FROM UNNEST($1::bigint[], $2::bigint[]) AS u (job, named)
                  JOIN jobs AS j ON j.job = u.job
                 GROUP BY j.submission) AS n
         WHERE s.first_job = n.submission
        "#,
        &jobs,
        &named,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("keep the jobs that others wait for"))?;
    Ok(())
}

/// A user's command on a waiting job, as the statement reads it; unchanged values are NULL.
#[derive(Debug, Serialize)]
struct CommandRecord {
    job: i64,
    to_state: Option<&'static str>,
    sm_percent: Option<u8>,
    text: String,
    updates: Option<JobUpdate>,
    /// Whether it is for a job that has ended.
    again: bool,
}

impl CommandRecord {
    fn of(command: &WaitingJobCommand) -> Self {
        Self {
            job: job_number(command.job),
            to_state: command.change.to().map(JobState::word),
            sm_percent: command.change.sm().map(SmPercent::get),
            text: command.change.text(),
            updates: command.change.update().cloned(),
            again: command.change == WaitingJobChange::RunAgain,
        }
    }
}
