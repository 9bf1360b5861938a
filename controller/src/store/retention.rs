//! Removal of what ended long ago: jobs with everything that was recorded about them, and layout
//! plans. In batches, each a transaction of the leader's.

use sqlx::PgConnection;

use super::{StoreError, leader};

/// Submissions that one batch looks at.
const SUBMISSIONS_MAX: i64 = 500;
/// Jobs that one batch removes, or one array: with their attempts and decisions a few times as
/// many rows, deleted well within a statement's timeout.
const JOBS_MAX: usize = 5_000;
/// Layout plans that one batch removes.
const LAYOUTS_MAX: i64 = 1_000;

/// What one batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedJobs {
    /// Number of removed jobs.
    pub jobs: u64,
    /// From which submission on the next batch has to look; `None` when all that is old enough
    /// was looked at.
    pub next: Option<i64>,
}

/// Removes jobs whose submissions ended, with all tasks, longer than `keep_secs` ago. Considers
/// submissions after number `after` for which no unfinished job waits. Their idempotency keys are
/// removed, too.
///
/// # Errors
///
/// [`StoreError::Deposed`]; [`StoreError::Unavailable`].
pub async fn remove_jobs(
    connection: &mut PgConnection,
    epoch: u64,
    keep_secs: f64,
    after: i64,
) -> Result<RemovedJobs, StoreError> {
    let action = "remove old jobs";
    let mut transaction = leader::begin_guarded(connection, epoch).await?;
    let rows = sqlx::query!(
        r#"
        SELECT s.first_job, s.tasks,
               s.accepted_at < now() - make_interval(secs => $2) AS "old!",
               NOT EXISTS (
                   SELECT FROM jobs AS j
                    WHERE j.job BETWEEN s.first_job AND s.first_job + s.tasks - 1
                      AND j.submission = s.first_job
                      AND (j.ended_at IS NULL
                           OR j.ended_at >= now() - make_interval(secs => $2)))
               AND NOT EXISTS (
                   SELECT FROM submissions AS d
                     JOIN jobs AS w ON w.job BETWEEN d.first_job AND d.first_job + d.tasks - 1
                    WHERE d.depends_on && ARRAY(SELECT generate_series(s.first_job, s.first_job + s.tasks - 1))
                      AND w.submission = d.first_job AND w.ended_at IS NULL) AS "over!"
          FROM submissions AS s
         WHERE s.first_job > $1
         ORDER BY s.first_job
         LIMIT $3
        "#,
        after,
        keep_secs,
        SUBMISSIONS_MAX,
    )
    .fetch_all(&mut *transaction)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    let full = i64::try_from(rows.len()).is_ok_and(|count| count == SUBMISSIONS_MAX);
    let (mut submissions, mut jobs, mut next) = (Vec::new(), Vec::new(), None);
    for (place, row) in rows.iter().enumerate() {
        // Numbers are given out in order: what follows is younger.
        if !row.old {
            next = None;
            break;
        }
        next = (full || place + 1 < rows.len()).then_some(row.first_job);
        if row.over {
            submissions.push(row.first_job);
            jobs.extend(row.first_job..row.first_job + i64::from(row.tasks));
        }
        if jobs.len() >= JOBS_MAX {
            break;
        }
    }
    let removed = remove_rows(&mut transaction, &submissions, &jobs).await?;
    transaction.commit().await.map_err(StoreError::while_trying_to(action))?;
    Ok(RemovedJobs { jobs: removed, next })
}

async fn remove_rows(
    connection: &mut PgConnection,
    submissions: &[i64],
    jobs: &[i64],
) -> Result<u64, StoreError> {
    let action = "remove what was recorded of old jobs";
    if jobs.is_empty() {
        return Ok(0);
    }
    sqlx::query!("DELETE FROM decisions WHERE job = ANY ($1)", jobs)
        .execute(&mut *connection)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    sqlx::query!("DELETE FROM job_events WHERE job = ANY ($1)", jobs)
        .execute(&mut *connection)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    sqlx::query!("DELETE FROM attempts WHERE job = ANY ($1)", jobs)
        .execute(&mut *connection)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    let removed = sqlx::query!("DELETE FROM jobs WHERE job = ANY ($1)", jobs)
        .execute(&mut *connection)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    sqlx::query!("DELETE FROM submissions WHERE first_job = ANY ($1)", submissions)
        .execute(connection)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    Ok(removed.rows_affected())
}

/// Removes layout plans that ended longer than `keep_secs` ago; returns how many, at most
/// one batch.
///
/// # Errors
///
/// [`StoreError::Deposed`]; [`StoreError::Unavailable`].
pub async fn remove_layout_plans(
    connection: &mut PgConnection,
    epoch: u64,
    keep_secs: f64,
) -> Result<u64, StoreError> {
    let action = "remove old layout plans";
    let mut transaction = leader::begin_guarded(connection, epoch).await?;
    let removed = sqlx::query!(
        r#"
        DELETE FROM layout_plans
         WHERE plan IN (
                   SELECT plan
                     FROM layout_plans
                    WHERE planned_at < now() - make_interval(secs => $1)
                      AND ended_at < now() - make_interval(secs => $1)
                    ORDER BY planned_at
                    LIMIT $2)
        "#,
        keep_secs,
        LAYOUTS_MAX,
    )
    .execute(&mut *transaction)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    transaction.commit().await.map_err(StoreError::while_trying_to(action))?;
    Ok(removed.rows_affected())
}
