//! What administrators did, and when running jobs are expected to end.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use tessera_api_types::{ClusterEvent, ClusterEvents};
use tessera_model::number::clamped;
use tessera_model::{JobId, Millis};

use super::page::PageSize;
use crate::store::StoreError;
use crate::store::columns::{RowRef, elapsed};

/// Lists what administrators did, newest first.
pub(super) async fn events(
    at: &mut PgConnection,
    node: Option<String>,
    before: Option<u64>,
    size: PageSize,
) -> Result<ClusterEvents, StoreError> {
    let mut rows = sqlx::query!(
        r#"
        SELECT event, at, kind, node, gpu, by_user, text FROM cluster_events
         WHERE ($1::text IS NULL OR node = $1)
           AND event < $2
         ORDER BY event DESC
         LIMIT $3
        "#,
        node,
        before.map_or(i64::MAX, clamped),
        size.rows(),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list what administrators did"))?;
    let more = size.cut(&mut rows);
    let next_cursor = rows.last().filter(|_| more).map(|row| row.event.to_string());
    let items = rows.into_iter().map(|row| {
        Ok(ClusterEvent {
            id: RowRef::new("cluster_events", row.event).number("event", row.event)?,
            at: row.at,
            kind: row.kind,
            node: row.node,
            gpu: row.gpu,
            by: row.by_user,
            text: row.text,
        })
    });
    Ok(ClusterEvents { items: items.collect::<Result<_, StoreError>>()?, next_cursor })
}

/// Estimates when running jobs end, milliseconds since 1970: by how long the tasks of their
/// array took that succeeded (the median), and at the latest by their time limits. Jobs of which
/// neither is known are left out.
pub(super) async fn expected_ends(
    at: &mut PgConnection,
    jobs: &[u64],
) -> Result<BTreeMap<JobId, Millis>, StoreError> {
    let numbers: Vec<_> = jobs.iter().filter_map(|job| i64::try_from(*job).ok()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT j.job, (EXTRACT(EPOCH FROM a.started_at) * 1000)::bigint AS "started!",
               (CASE WHEN j.updates ? 'time_limit' THEN j.updates ->> 'time_limit'
                     ELSE s.spec ->> 'time_limit' END)::bigint AS time_limit,
               (SELECT (percentile_cont(0.5) WITHIN GROUP (
                            ORDER BY EXTRACT(EPOCH FROM d.ended_at - d.started_at)) * 1000)::bigint
                  FROM jobs AS k JOIN attempts AS d ON d.attempt = k.last_attempt
                 WHERE s.tasks > 1 AND k.job >= s.first_job AND k.job < s.first_job + s.tasks
                   AND d.state = 'succeeded') AS typical
          FROM jobs AS j
          JOIN attempts AS a ON a.attempt = j.attempt
          JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job = ANY($1) AND a.started_at IS NOT NULL
        "#,
        &numbers,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("estimate when jobs end"))?;
    let ends = rows.into_iter().filter_map(|found| {
        let row = RowRef::new("jobs", found.job);
        let span = match (found.typical, found.time_limit) {
            (Some(typical), Some(limit)) => typical.min(limit),
            (Some(known), None) | (None, Some(known)) => known,
            (None, None) => return None,
        };
        // The node's clock may have gone backwards between the start and the end of a task.
        let end = |started: Millis| started.plus(elapsed(span));
        let job = row.job("job", found.job);
        Some(job.and_then(|job| Ok((job, row.millis("started_at", found.started).map(end)?))))
    });
    ends.collect()
}
