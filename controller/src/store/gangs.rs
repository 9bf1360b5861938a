//! Gangs: all of their members have live attempts, or none has.

use std::collections::BTreeSet;

use sqlx::PgConnection;
use tessera_model::JobId;

use super::StoreError;
use super::columns::{job_number, row_count};

/// Makes sure, at the end of a round, that each of these gangs is whole.
///
/// # Errors
///
/// [`StoreError::Conflict`] if only a part of one has live attempts: the round must not be committed.
/// [`StoreError::Unavailable`].
pub async fn check_whole(
    connection: &mut PgConnection,
    gangs: &BTreeSet<JobId>,
) -> Result<(), StoreError> {
    if gangs.is_empty() {
        return Ok(());
    }
    let action = "keep gangs whole";
    let numbers: Vec<_> = gangs.iter().copied().map(job_number).collect();
    // Members have consecutive numbers.
    let whole = sqlx::query_scalar!(
        r#"
        SELECT COUNT(*) AS "whole!"
          FROM UNNEST($1::bigint[]) AS g (gang)
          JOIN jobs AS f ON f.job = g.gang
          JOIN submissions AS s ON s.first_job = f.submission
         CROSS JOIN LATERAL (
                   SELECT COUNT(*) AS members, COUNT(j.attempt) AS live
                     FROM jobs AS j
                    WHERE j.job BETWEEN g.gang
                                    AND g.gang - 1 + (s.spec -> 'gang' ->> 'nodes')::bigint
                                                     * (s.spec -> 'gang' ->> 'per_node')::bigint) AS n
         WHERE n.live IN (0, n.members)
        "#,
        &numbers,
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_changed(action, gangs.len(), row_count(whole))
}
