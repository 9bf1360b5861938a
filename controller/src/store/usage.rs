//! The energy and GPU memory that attempts used.

use sqlx::PgConnection;
use tessera_frames::cluster::{AttemptUsage, HOST_MEMORY_DETAIL};
use tessera_model::NodeId;

use super::StoreError;
use super::columns::bigint;

/// Records what attempts used. A late peak near its slice supports that an attempt ran out of it, as
/// `memory_requests` of the control core decides. Of two reports the larger figure counts: a node that lost its records
/// knows less than was committed before. Unknown attempts are left out.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_usage(
    connection: &mut PgConnection,
    batch: &[(NodeId, AttemptUsage)],
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let nodes: Vec<_> = batch.iter().map(|(node, _)| node.as_uuid()).collect();
    let attempts: Vec<_> = batch.iter().map(|(_, usage)| usage.attempt.as_uuid()).collect();
    let energy: Vec<_> = batch.iter().map(|(_, u)| u.energy_mj.map(bigint)).collect();
    let memory: Vec<_> =
        batch.iter().map(|(_, u)| u.peak_memory.map(|bytes| bigint(bytes.get()))).collect();
    sqlx::query!(
        r#"
        WITH u AS (
            SELECT attempt, node, MAX(energy) AS energy, MAX(memory) AS memory
              FROM UNNEST($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[])
                AS u (attempt, node, energy, memory)
             GROUP BY attempt, node
        ), a AS (
            UPDATE attempts
               SET energy_mj = GREATEST(attempts.energy_mj, u.energy),
                   peak_gpu_memory = GREATEST(attempts.peak_gpu_memory, u.memory)
              FROM u
             WHERE attempts.attempt = u.attempt AND attempts.node = u.node
            RETURNING attempts.attempt, attempts.state, attempts.peak_gpu_memory,
                      attempts.gpu_memory, attempts.exit_code, attempts.detail
        )
        UPDATE predictions
           SET memory_outcome_at = now(), ran_out_of = a.gpu_memory
          FROM a
         WHERE predictions.attempt = a.attempt AND predictions.memory_outcome_at IS NULL
           AND a.state = 'out_of_memory' AND a.peak_gpu_memory >= a.gpu_memory / 2
           AND a.exit_code <> '0:9' AND NOT starts_with(COALESCE(a.detail, ''), $5)
        "#,
        &attempts,
        &nodes,
        &energy as &[Option<i64>],
        &memory as &[Option<i64>],
        HOST_MEMORY_DETAIL,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record what attempts used"))?;
    Ok(())
}
