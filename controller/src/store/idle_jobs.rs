//! What was decided about jobs whose GPUs do nothing.

use sqlx::PgConnection;
use tessera_control::rows::idle::IdleRow;

use super::StoreError;
use super::columns::job_number;

/// Records decisions about idle jobs among their events.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_idle(
    connection: &mut PgConnection,
    batch: &[IdleRow],
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let jobs: Vec<i64> = batch.iter().map(|row| job_number(row.job)).collect();
    let events: Vec<String> = batch.iter().map(|row| row.event.clone()).collect();
    sqlx::query!(
        r#"
        INSERT INTO job_events (job, state, text)
        SELECT u.job, jobs.state, u.event
          FROM unnest($1::bigint[], $2::text[]) AS u (job, event) JOIN jobs ON jobs.job = u.job
        "#,
        &jobs,
        &events,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record decisions about idle jobs"))?;
    Ok(())
}
