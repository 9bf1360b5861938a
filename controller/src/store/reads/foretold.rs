//! What was foretold of attempts, for those who look at a job.

use std::collections::HashMap;

use sqlx::PgConnection;
use tessera_api::types::PredictionView;
use tessera_model::{AttemptId, Millis};
use tessera_placement::Prediction;

use super::row::{count, maybe_count};
use crate::store::StoreError;

const TABLE: &str = "predictions";

/// Returns what was foretold of the attempts of a job, where anything was.
pub(super) async fn of_job(
    at: &mut PgConnection,
    job: i64,
) -> Result<HashMap<String, PredictionView>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.attempt, p.basis AS "basis!", p.runs AS "runs!", p.low_ms AS "low!",
               p.expected_ms AS "expected!", p.high_ms AS "high!", p.ran_ms
          FROM attempts AS a JOIN predictions AS p ON p.attempt = a.attempt
         WHERE a.job = $1 AND p.basis IS NOT NULL
        "#,
        job,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read what was foretold of a job"))?;
    rows.into_iter()
        .map(|row| {
            let id = AttemptId::from_uuid(row.attempt);
            let millis = |value| Ok(Millis::new(count::<u64>(TABLE, id, value)?));
            let ran: Option<u64> = maybe_count(TABLE, id, row.ran_ms)?;
            let view = PredictionView {
                basis: row.basis,
                runs: count(TABLE, id, row.runs.into())?,
                low_secs: secs(millis(row.low)?),
                expected_secs: secs(millis(row.expected)?),
                high_secs: secs(millis(row.high)?),
                ran_secs: ran.map(Millis::new).map(secs),
            };
            Ok((id.to_string(), view))
        })
        .collect()
}

/// Shows a prediction as the API does.
pub(crate) fn prediction_view(known: &Prediction) -> PredictionView {
    PredictionView {
        basis: known.basis.word().to_owned(),
        runs: known.runs,
        low_secs: secs(known.low),
        expected_secs: secs(known.expected),
        high_secs: secs(known.high),
        ran_secs: None,
    }
}

fn secs(time: Millis) -> f64 {
    time.duration().as_secs_f64()
}
