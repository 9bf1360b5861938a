//! Which jobs a name means.

use std::collections::{BTreeMap, HashSet};

use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_model::batch::ArrayRules;
use tessera_model::share::SharingMode;
use tessera_model::spec::{ARRAY_TASKS_MAX, JobProgram};
use tessera_model::{GangMember, GangShape, JobId, JobRef};

use crate::principal::JobScope;
use crate::store::StoreError;
use crate::store::columns::{RowRef, bigint, job_number};

/// How far the number of an array's last task may lie above the array's own.
pub(super) const ARRAY_SPAN: i64 = ARRAY_TASKS_MAX as i64 - 1;

/// The jobs that a command addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// One job, in whatever state it is.
    One(JobId),
    /// The unfinished tasks of a whole array, by number; maybe none. Naming one member of a gang
    /// means the whole gang.
    Tasks {
        /// The first task, whose number is that of the array.
        array: JobId,
        /// How far the number of its last task may lie above that of the first.
        span: i64,
        /// Its tasks that are not final.
        unfinished: Vec<JobId>,
    },
}

/// Returns which jobs a command on `job` addresses; `None` if there is no such job.
pub(super) async fn of(
    at: &mut PgConnection,
    job: JobRef,
    scope: &JobScope,
) -> Result<Option<Targets>, StoreError> {
    if let JobRef::Job(array) = job
        && is_array(at, array, scope).await?
    {
        let unfinished = unfinished_tasks(at, array, ARRAY_SPAN).await?;
        return Ok(Some(Targets::Tasks { array, span: ARRAY_SPAN, unfinished }));
    }
    let number = number_of(at, job, scope).await?;
    if let Some(GangMember { gang, shape, .. }) = gang_of(at, number).await? {
        let span = i64::from(shape.members()) - 1;
        let unfinished = unfinished_tasks(at, gang, span).await?;
        return Ok(Some(Targets::Tasks { array: gang, span, unfinished }));
    }
    number
        .map(|number| Ok(Targets::One(RowRef::new("jobs", number).job("job", number)?)))
        .transpose()
}

/// Returns a job's number, if there is such a job.
pub(super) async fn number_of(
    at: &mut PgConnection,
    job: JobRef,
    scope: &JobScope,
) -> Result<Option<i64>, StoreError> {
    match job {
        JobRef::Job(job) => existing(at, job, scope).await,
        JobRef::Task { array, index } => task(at, array, index, scope).await,
    }
}

async fn existing(
    at: &mut PgConnection,
    job: JobId,
    scope: &JobScope,
) -> Result<Option<i64>, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT j.job
          FROM jobs AS j
         WHERE j.job = $1
           AND ($2::text[] IS NULL OR EXISTS (
                   SELECT FROM submissions AS s
                    WHERE s.first_job = j.submission AND s.user_name = ANY ($2)))
        "#,
        job_number(job),
        scope.users() as Option<&[String]>,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("find a job"))
}

/// Tasks have consecutive numbers in the order of their indexes. Of a gang in an array it is the first member.
async fn task(
    at: &mut PgConnection,
    array: JobId,
    index: u32,
    scope: &JobScope,
) -> Result<Option<i64>, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT j.job
          FROM submissions AS s
         CROSS JOIN LATERAL (
                   SELECT CASE
                          WHEN s.spec -> 'array' -> 'indexes' IS NULL THEN $2::bigint - s.array_first
                          ELSE (SELECT (p.place - 1) * COALESCE((s.spec -> 'gang' ->> 'nodes')::bigint
                                                                * (s.spec -> 'gang' ->> 'per_node')::bigint, 1)
                                  FROM json_array_elements_text((s.spec -> 'array' -> 'indexes')::json)
                                  WITH ORDINALITY AS p (index, place)
                                 WHERE p.index = ($2::bigint)::text) END AS place) AS t
          JOIN jobs AS j ON j.job = s.first_job + t.place AND j.submission = s.first_job
         WHERE s.first_job = $1 AND ($3::text[] IS NULL OR s.user_name = ANY ($3))
        "#,
        job_number(array),
        i64::from(index),
        scope.users() as Option<&[String]>,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("find a task of an array"))
}

async fn is_array(at: &mut PgConnection, job: JobId, scope: &JobScope) -> Result<bool, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM submissions
             WHERE first_job = $1 AND array_first IS NOT NULL
               AND ($2::text[] IS NULL OR user_name = ANY ($2))) AS "is!"
        "#,
        job_number(job),
        scope.users() as Option<&[String]>,
    )
    .fetch_one(at)
    .await
    .map_err(StoreError::while_trying_to("find an array"))
}

/// Returns a job's place in its gang, if it has one.
async fn gang_of(
    at: &mut PgConnection,
    job: Option<i64>,
) -> Result<Option<GangMember>, StoreError> {
    let found = sqlx::query!(
        r#"
        SELECT j.submission, s.spec -> 'gang' AS "gang: Json<GangShape>"
          FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job = $1 AND s.spec -> 'gang' IS NOT NULL
        "#,
        job,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("find a job's gang"))?;
    let Some(found) = found else { return Ok(None) };
    let row = RowRef::new("jobs", found.submission);
    let first = row.job("submission", found.submission)?;
    let job = job.map(|job| row.job("job", job)).transpose()?;
    Ok(job.zip(found.gang).and_then(|(job, shape)| GangMember::of(job, first, shape.0)))
}

/// Lists the unfinished jobs of one submission, from `first` through the `span` numbers after it.
async fn unfinished_tasks(
    at: &mut PgConnection,
    first: JobId,
    span: i64,
) -> Result<Vec<JobId>, StoreError> {
    let numbers = sqlx::query_scalar!(
        r#"
        SELECT job
          FROM jobs
         WHERE ended_at IS NULL AND job BETWEEN $1 AND $2
           AND submission = (SELECT f.submission FROM jobs AS f WHERE f.job = $1)
         ORDER BY job
        "#,
        job_number(first),
        job_number(first).saturating_add(span),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the unfinished tasks of an array"))?;
    numbers.into_iter().map(|number| RowRef::new("jobs", number).job("job", number)).collect()
}

/// Lists the jobs of one submission that have ended, from `first` through the `span` numbers after it.
pub(super) async fn ended_tasks(
    at: &mut PgConnection,
    first: JobId,
    span: i64,
) -> Result<Vec<JobId>, StoreError> {
    let numbers = sqlx::query_scalar!(
        r#"
        SELECT job
          FROM jobs
         WHERE ended_at IS NOT NULL AND job BETWEEN $1 AND $2
           AND submission = (SELECT f.submission FROM jobs AS f WHERE f.job = $1)
         ORDER BY job
        "#,
        job_number(first),
        job_number(first).saturating_add(span),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the ended tasks of an array"))?;
    numbers.into_iter().map(|number| RowRef::new("jobs", number).job("job", number)).collect()
}

/// Returns the text of a job's script; `None` if there is no such job, and an empty one for a command.
pub(super) async fn script(
    at: &mut PgConnection,
    job: JobRef,
    scope: &JobScope,
) -> Result<Option<String>, StoreError> {
    let Some(number) = number_of(at, job, scope).await? else { return Ok(None) };
    let spec = sqlx::query_scalar!(
        r#"
        SELECT s.spec -> 'program' AS "program: Json<JobProgram>"
          FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job = $1
        "#,
        number,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("read a job's script"))?;
    Ok(spec.map(|program| match program {
        Some(Json(JobProgram::Script(text))) => text,
        Some(Json(JobProgram::Command(_))) | None => String::new(),
    }))
}

/// Returns what share of a slice a job requested; `None` if there is no such job.
pub(super) async fn share(
    at: &mut PgConnection,
    job: JobRef,
    scope: &JobScope,
) -> Result<Option<SharingMode>, StoreError> {
    let Some(number) = number_of(at, job, scope).await? else { return Ok(None) };
    let share = sqlx::query_scalar!(
        r#"
        SELECT s.spec -> 'share' AS "share: Json<SharingMode>"
          FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job = $1
        "#,
        number,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("read a job's share"))?;
    Ok(share.map(|share| share.map_or(SharingMode::Exclusive, |share| share.0)))
}

/// Returns whether a submit was accepted under this caller's key.
pub(super) async fn key_is_used(
    at: &mut PgConnection,
    principal: &str,
    key: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM submissions
             WHERE COALESCE(principal, user_name) = $1 AND idempotency_key = $2) AS "is!"
        "#,
        principal,
        key,
    )
    .fetch_one(at)
    .await
    .map_err(StoreError::while_trying_to("find an idempotency key"))
}

/// Returns which of some jobs exist within a scope.
pub(super) async fn within(
    at: &mut PgConnection,
    jobs: &[JobId],
    scope: &JobScope,
) -> Result<HashSet<JobId>, StoreError> {
    let numbers: Vec<i64> = jobs.iter().map(|job| bigint(job.number())).collect();
    let found = sqlx::query_scalar!(
        r#"
        SELECT j.job
          FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job = ANY($1) AND ($2::text[] IS NULL OR s.user_name = ANY($2))
        "#,
        &numbers,
        scope.users(),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("find whose jobs these are"))?;
    Ok(jobs.iter().filter(|job| found.contains(&bigint(job.number()))).copied().collect())
}

/// The tasks of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmissionShape {
    /// Number of its first job.
    pub first: JobId,
    /// How many jobs it has.
    pub tasks: u32,
    /// Index of the first task, if it is an array.
    pub array_first: Option<u32>,
    /// Its indexes, if there are gaps, or if its tasks are gangs.
    pub rules: ArrayRules,
    /// How many jobs each gang has; 1 without gangs.
    pub members: u32,
}

/// Returns the submissions of jobs, by the numbers of the jobs. Jobs outside of the scope are left out.
pub(super) async fn submissions_of(
    at: &mut PgConnection,
    jobs: &[JobId],
    scope: &JobScope,
) -> Result<BTreeMap<JobId, SubmissionShape>, StoreError> {
    let numbers: Vec<i64> = jobs.iter().copied().map(job_number).collect();
    let rows = sqlx::query!(
        r#"
        SELECT j.job, s.first_job, s.tasks, s.array_first,
               s.spec -> 'array' AS "array: Json<ArrayRules>", s.spec -> 'gang' AS "gang: Json<GangShape>"
          FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job = ANY($1) AND ($2::text[] IS NULL OR s.user_name = ANY($2))
        "#,
        &numbers,
        scope.users() as Option<&[String]>,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("find the submissions of jobs"))?;
    let shape = rows.into_iter().map(|found| {
        let row = RowRef::new("submissions", found.first_job);
        let shape = SubmissionShape {
            first: row.job("first_job", found.first_job)?,
            tasks: row.number("tasks", found.tasks)?,
            array_first: row.optional_number("array_first", found.array_first)?,
            rules: found.array.map(|rules| rules.0).unwrap_or_default(),
            members: found.gang.map_or(1, |shape| shape.0.members()),
        };
        Ok((row.job("job", found.job)?, shape))
    });
    shape.collect()
}
