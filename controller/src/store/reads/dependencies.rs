//! What unfinished jobs wait for.

use sqlx::PgConnection;
use tessera_model::JobId;
use tessera_model::dependency::JobRange;

use crate::store::StoreError;
use crate::store::columns::{integer, job_number};

/// What has to be known of jobs before they wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DependencyOrigin {
    /// Whether the other jobs wait for one of these, directly or not.
    pub is_circular: bool,
    /// Whether these are cancelled once what they wait for can never be met.
    pub cancel_if_never: bool,
}

/// Looks at `jobs` that are to wait for those of `on`. What waits by `singleton` only is not followed: earlier jobs of a
/// name end without it.
pub(super) async fn facts_of(
    at: &mut PgConnection,
    jobs: &[JobId],
    on: &[JobRange],
) -> Result<DependencyOrigin, StoreError> {
    let own: Vec<_> = jobs.iter().copied().map(job_number).collect();
    let (first, count): (Vec<_>, Vec<_>) =
        on.iter().map(|range| (job_number(range.first), integer(range.jobs))).unzip();
    // An update may have removed what a job waited for: then it is the null of JSON.
    let found = sqlx::query!(
        r#"
        WITH RECURSIVE reached (first, jobs) AS (
            SELECT u.first, u.jobs FROM UNNEST($1::bigint[], $2::integer[]) AS u (first, jobs)
             UNION
            SELECT (c.condition -> 'on' ->> 'first')::bigint, (c.condition -> 'on' ->> 'jobs')::integer
              FROM reached AS r
              JOIN jobs AS j ON j.job BETWEEN r.first AND r.first + r.jobs - 1 AND j.ended_at IS NULL
              JOIN submissions AS s ON s.first_job = j.submission
             CROSS JOIN LATERAL jsonb_array_elements(
                       COALESCE(j.updates -> 'dependency', s.facts -> 'rules' -> 'dependency')
                       -> 'conditions') AS c (condition)
             WHERE c.condition -> 'on' IS NOT NULL
        )
        SELECT EXISTS (
                   SELECT FROM reached AS r JOIN UNNEST($3::bigint[]) AS o (job)
                     ON o.job BETWEEN r.first AND r.first + r.jobs - 1) AS "is_circular!",
               EXISTS (
                   SELECT FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
                    WHERE j.job = ANY ($3)
                      AND (COALESCE(j.updates -> 'dependency', s.facts -> 'rules' -> 'dependency')
                           ->> 'cancel_if_never')::boolean) AS "cancel_if_never!"
        "#,
        &first,
        &count,
        &own,
    )
    .fetch_one(at)
    .await
    .map_err(StoreError::while_trying_to("follow what jobs wait for"))?;
    Ok(DependencyOrigin { is_circular: found.is_circular, cancel_if_never: found.cancel_if_never })
}
