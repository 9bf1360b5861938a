//! The energy and GPU memory that attempts used.

use sqlx::PgConnection;
use tessera_frames::cluster::AttemptUsage;
use tessera_model::NodeId;

use super::StoreError;
use super::columns::bigint;

/// Records what attempts used. Of two reports the larger figure counts: a node that lost its records
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
            RETURNING attempts.attempt, attempts.state, attempts.peak_gpu_memory
        )
        UPDATE predictions
           SET memory_outcome_at = now()
          FROM a
         WHERE predictions.attempt = a.attempt AND predictions.memory_outcome_at IS NULL
           AND a.state = 'succeeded' AND a.peak_gpu_memory > 0
        "#,
        &attempts,
        &nodes,
        &energy as &[Option<i64>],
        &memory as &[Option<i64>],
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record what attempts used"))?;
    Ok(())
}
