//! New terms of jobs that have live attempts.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use tessera_model::{AttemptId, JobId};

use super::StoreError;
use crate::ports::{Limit, Terms};

/// A job with a live attempt gets other terms.
#[derive(Clone, Copy, Debug)]
pub struct Amended {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// What changes.
    pub terms: Terms,
}

/// Returns terms as columns: ranks, and limits in milliseconds, of which zero is none.
pub(super) fn columns(terms: impl Iterator<Item = Terms>) -> (Vec<Option<i16>>, Vec<Option<i64>>) {
    let limit =
        |limit: Limit| limit.time().map_or(0, |time| i64::try_from(time.get()).unwrap_or(i64::MAX));
    terms
        .map(|terms| (terms.priority.map(|rank| i16::from(rank.get())), terms.limit.map(limit)))
        .unzip()
}

/// Notes new terms, and tells the jobs' users.
///
/// # Errors
///
/// [`StoreError::Moved`] if a job has another attempt, or is stopping; [`StoreError::Unavailable`].
pub async fn amend(connection: &mut PgConnection, batch: &[Amended]) -> Result<(), StoreError> {
    // One statement changes a row only once: what was said of a job is laid together.
    let mut last: BTreeMap<JobId, Amended> = BTreeMap::new();
    for amended in batch {
        let known = last.entry(amended.job).or_insert(*amended);
        known.terms = Terms {
            priority: amended.terms.priority.or(known.terms.priority),
            limit: amended.terms.limit.or(known.terms.limit),
        };
    }
    if last.is_empty() {
        return Ok(());
    }
    let action = "record new terms";
    let number = |job: JobId| i64::try_from(job.number()).unwrap_or(i64::MAX);
    let jobs: Vec<_> = last.values().map(|a| number(a.job)).collect();
    let attempts: Vec<_> = last.values().map(|a| a.attempt.as_uuid()).collect();
    let (priorities, limits) = columns(last.values().map(|a| a.terms));
    let texts: Vec<_> = last.values().map(|a| a.terms.words()).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM UNNEST($1::bigint[], $2::uuid[], $3::smallint[], $4::bigint[], $5::text[])
                AS u (job, attempt, priority, limit_ms, text)
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, j.state, u.text FROM u JOIN jobs AS j ON j.job = u.job
        )
        UPDATE jobs
           SET priority = COALESCE(u.priority, jobs.priority),
               time_limit_ms = COALESCE(u.limit_ms, jobs.time_limit_ms)
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt
           AND jobs.state IN ('placing', 'starting', 'running')
        "#,
        &jobs,
        &attempts,
        &priorities as &[Option<i16>],
        &limits as &[Option<i64>],
        &texts,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, last.len(), moved.rows_affected())
}
