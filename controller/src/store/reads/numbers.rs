//! Which jobs are on a page: their numbers, found by indexes alone.

use sqlx::PgConnection;
use uuid::Uuid;

use super::page::JobQuery;
use super::targets::ARRAY_SPAN;
use crate::store::StoreError;
use crate::store::columns::job_number;

/// Finds the numbers of a page, newest first.
pub(super) async fn of_page(
    at: &mut PgConnection,
    query: &JobQuery,
) -> Result<Vec<i64>, StoreError> {
    let node = match &query.node {
        Some(name) => match node_named(at, name).await? {
            Some(node) => Some(node),
            None => return Ok(Vec::new()),
        },
        None => None,
    };
    walk_the_index(at).await?;
    if query.unfinished {
        of_unfinished(at, query, node).await
    } else if query.user.is_some() || query.name.is_some() {
        of_submissions(at, query, node).await
    } else {
        of_all(at, query, node).await
    }
}

async fn node_named(at: &mut PgConnection, name: &str) -> Result<Option<Uuid>, StoreError> {
    sqlx::query_scalar!("SELECT node FROM nodes WHERE name = $1", name)
        .fetch_optional(at)
        .await
        .map_err(StoreError::while_trying_to("find a node"))
}

/// Makes the rest of the transaction read jobs in the index's order. Before statistics were
/// gathered (thousands of jobs may have come in seconds), the planner would rather read them
/// all and sort.
async fn walk_the_index(at: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query!(
        r#"
        SELECT set_config('enable_sort', 'off', true) AS sort,
               set_config('enable_bitmapscan', 'off', true) AS bitmaps
        "#
    )
    .fetch_one(at)
    .await
    .map_err(StoreError::while_trying_to("prepare to list jobs"))
    .map(drop)
}

async fn of_all(
    at: &mut PgConnection,
    query: &JobQuery,
    node: Option<Uuid>,
) -> Result<Vec<i64>, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT j.job
          FROM jobs AS j
         WHERE j.job < $1
           AND j.job BETWEEN $2 AND $3
           AND ($4::bigint IS NULL OR j.submission = $4)
           AND ($5::text[] IS NULL OR j.state = ANY ($5))
           AND ($6::uuid IS NULL OR EXISTS (
                   SELECT FROM attempts AS a WHERE a.attempt = j.last_attempt AND a.node = $6))
         ORDER BY j.job DESC
         LIMIT $7
        "#,
        query.before,
        first(query),
        last(query),
        query.array.map(job_number),
        query.states.as_deref() as Option<&[String]>,
        node,
        query.size.rows(),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list jobs"))
}

/// Names of users and jobs stand with the submissions. The jobs of a submission have
/// consecutive numbers, so the order of the submissions is that of their jobs. They are looked up one
/// submission at a time, so only as many are read as fill the page.
async fn of_submissions(
    at: &mut PgConnection,
    query: &JobQuery,
    node: Option<Uuid>,
) -> Result<Vec<i64>, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT j.job
          FROM submissions AS s
         CROSS JOIN LATERAL (
                   SELECT j.job
                     FROM jobs AS j
                    WHERE j.job BETWEEN s.first_job AND s.first_job + s.tasks - 1
                      AND j.job < $1
                      AND ($6::text[] IS NULL OR j.state = ANY ($6))
                      AND ($7::uuid IS NULL OR EXISTS (
                              SELECT FROM attempts AS a
                               WHERE a.attempt = j.last_attempt AND a.node = $7))
                    ORDER BY j.job DESC
                    LIMIT s.tasks) AS j
         WHERE s.first_job < $1
           AND s.first_job BETWEEN $2 AND $3
           AND ($4::text IS NULL OR s.user_name = $4)
           AND ($5::text IS NULL OR s.job_name = $5)
         ORDER BY s.first_job DESC, j.job DESC
         LIMIT $8
        "#,
        query.before,
        first(query),
        query.array.map_or(i64::MAX, job_number),
        query.user.as_deref(),
        query.name.as_deref(),
        query.states.as_deref() as Option<&[String]>,
        node,
        query.size.rows(),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list jobs of a user or a name"))
}

/// Jobs that are not final have their own index, so that the finished ones, however many,
/// cost nothing.
async fn of_unfinished(
    at: &mut PgConnection,
    query: &JobQuery,
    node: Option<Uuid>,
) -> Result<Vec<i64>, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT j.job
          FROM jobs AS j
         WHERE j.ended_at IS NULL
           AND j.job < $1
           AND j.job BETWEEN $2 AND $3
           AND ($4::bigint IS NULL OR j.submission = $4)
           AND ($5::text[] IS NULL OR j.state = ANY ($5))
           AND ($6::uuid IS NULL OR EXISTS (
                   SELECT FROM attempts AS a WHERE a.attempt = j.last_attempt AND a.node = $6))
           AND (($7::text IS NULL AND $8::text IS NULL) OR EXISTS (
                   SELECT FROM submissions AS s
                    WHERE s.first_job = j.submission
                      AND ($7 IS NULL OR s.user_name = $7)
                      AND ($8 IS NULL OR s.job_name = $8)))
         ORDER BY j.job DESC
         LIMIT $9
        "#,
        query.before,
        first(query),
        last(query),
        query.array.map(job_number),
        query.states.as_deref() as Option<&[String]>,
        node,
        query.user.as_deref(),
        query.name.as_deref(),
        query.size.rows(),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list unfinished jobs"))
}

/// Tasks of an array have consecutive numbers: their range spares a search through all jobs.
fn first(query: &JobQuery) -> i64 {
    query.array.map_or(0, job_number)
}

fn last(query: &JobQuery) -> i64 {
    query.array.map_or(i64::MAX, |array| job_number(array).saturating_add(ARRAY_SPAN))
}
