//! What the store knows about jobs that others wait for.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use tessera_model::dependency::{DependencyFacts, DependencyQuestion, JobRange};
use tessera_model::{JobId, Millis};

use super::StoreError;
use super::columns::{RowRef, integer, job_number};

/// Answers questions about jobs. Jobs that no longer exist have ended and met their conditions, as
/// in Slurm: only jobs for which no job waits are removed.
///
/// # Errors
///
/// [`StoreError::Unavailable`], [`StoreError::Corrupt`].
pub(super) async fn answer_questions(
    connection: &mut PgConnection,
    questions: &[DependencyQuestion],
) -> Result<Vec<(DependencyQuestion, DependencyFacts)>, StoreError> {
    let (mut ends, mut starts, mut earlier) = (Vec::new(), Vec::new(), Vec::new());
    for question in questions {
        match question {
            DependencyQuestion::Ends(range) => ends.push(*range),
            DependencyQuestion::Starts(range) => starts.push(*range),
            DependencyQuestion::Earlier(job) => earlier.push(*job),
        }
    }
    let ends = read_ends(connection, &ends).await?.into_iter();
    let mut answers: Vec<_> =
        ends.map(|(range, facts)| (DependencyQuestion::Ends(range), facts)).collect();
    let starts = read_starts(connection, &starts).await?.into_iter();
    answers.extend(starts.map(|(range, facts)| (DependencyQuestion::Starts(range), facts)));
    let earlier = read_earlier(connection, &earlier).await?.into_iter();
    answers.extend(
        earlier.map(|(job, found)| {
            (DependencyQuestion::Earlier(job), DependencyFacts::Earlier(found))
        }),
    );
    Ok(answers)
}

/// Returns the first numbers and the counts of ranges.
fn columns(ranges: &[JobRange]) -> (Vec<i64>, Vec<i32>) {
    ranges.iter().map(|range| (job_number(range.first), integer(range.jobs))).unzip()
}

fn range(row: RowRef<i64>, first: i64, jobs: i32) -> Result<JobRange, StoreError> {
    Ok(JobRange { first: row.job("job", first)?, jobs: row.number("jobs", jobs)? })
}

async fn read_ends(
    connection: &mut PgConnection,
    ranges: &[JobRange],
) -> Result<Vec<(JobRange, DependencyFacts)>, StoreError> {
    if ranges.is_empty() {
        return Ok(Vec::new());
    }
    let (first, jobs) = columns(ranges);
    let rows = sqlx::query!(
        r#"
        SELECT u.first AS "first!", u.jobs AS "jobs!",
               count(*) FILTER (WHERE j.job IS NOT NULL AND j.ended_at IS NULL) AS "unfinished!",
               count(*) FILTER (WHERE j.ended_at IS NOT NULL AND j.state <> 'succeeded') AS "unsuccessful!"
          FROM UNNEST($1::bigint[], $2::integer[]) AS u (first, jobs)
          LEFT JOIN jobs AS j ON j.job BETWEEN u.first AND u.first + u.jobs - 1
         GROUP BY u.first, u.jobs
        "#,
        &first,
        &jobs,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read how jobs ended that others wait for"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("jobs", found.first);
            let facts = DependencyFacts::Ends {
                unfinished: row.number("state", found.unfinished)?,
                unsuccessful: row.number("state", found.unsuccessful)?,
            };
            Ok((range(row, found.first, found.jobs)?, facts))
        })
        .collect()
}

async fn read_starts(
    connection: &mut PgConnection,
    ranges: &[JobRange],
) -> Result<Vec<(JobRange, DependencyFacts)>, StoreError> {
    if ranges.is_empty() {
        return Ok(Vec::new());
    }
    let (first, jobs) = columns(ranges);
    let rows = sqlx::query!(
        r#"
        SELECT u.first AS "first!", u.jobs AS "jobs!",
               count(*) FILTER (WHERE j.job IS NOT NULL AND j.ended_at IS NULL AND a.started IS NULL)
                   AS "waiting!",
               (EXTRACT(EPOCH FROM max(COALESCE(a.started, j.ended_at))) * 1000)::bigint AS "last"
          FROM UNNEST($1::bigint[], $2::integer[]) AS u (first, jobs)
          LEFT JOIN jobs AS j ON j.job BETWEEN u.first AND u.first + u.jobs - 1
          LEFT JOIN LATERAL (
                   SELECT min(a.started_at) AS started FROM attempts AS a WHERE a.job = j.job
               ) AS a ON true
         GROUP BY u.first, u.jobs
        "#,
        &first,
        &jobs,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read when jobs started that others wait for"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("jobs", found.first);
            let last = found.last.map(|last| row.millis("started_at", last)).transpose()?;
            let facts = DependencyFacts::Starts {
                waiting: row.number("state", found.waiting)?,
                last: last.unwrap_or(Millis::ZERO),
            };
            Ok((range(row, found.first, found.jobs)?, facts))
        })
        .collect()
}

/// Finds for each job the newest job of an earlier submission that has its name and its user, and has not ended.
async fn read_earlier(
    connection: &mut PgConnection,
    jobs: &[JobId],
) -> Result<BTreeMap<JobId, Option<JobId>>, StoreError> {
    if jobs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let numbers: Vec<_> = jobs.iter().copied().map(job_number).collect();
    let rows = sqlx::query!(
        r#"
        SELECT w.job, e.job AS "earlier?"
          FROM jobs AS w
          JOIN submissions AS s ON s.first_job = w.submission
          LEFT JOIN LATERAL (
                   SELECT j.job
                     FROM jobs AS j JOIN submissions AS t ON t.first_job = j.submission
                    WHERE j.ended_at IS NULL AND j.job < w.submission
                      AND t.job_name = s.job_name AND t.user_name = s.user_name
                    ORDER BY j.job DESC
                    LIMIT 1) AS e ON true
         WHERE w.job = ANY ($1)
        "#,
        &numbers,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("find earlier jobs of the same name"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("jobs", found.job);
            let earlier = found.earlier.map(|job| row.job("earlier", job)).transpose()?;
            Ok((row.job("job", found.job)?, earlier))
        })
        .collect()
}
