//! Predictions of attempts and their outcomes, as the API shows them.

use std::collections::HashMap;

use sqlx::PgConnection;
use tessera_api_types::{
    ColocationOutcomes, ColocationPredictionView, MemoryOutcomes, MemoryPredictionView,
    PredictionOutcomes, PredictionReport, PredictionView, PredictorView,
};
use tessera_model::{AttemptId, Millis};
use tessera_placement::{Basis, Prediction};
use tessera_predict::memory::MemoryEstimate;

use crate::store::StoreError;
use crate::store::columns::{RowRef, integer, row_count};
use tessera_control::answers::ModelStatus;
use tessera_control::colocation::STEADY;

const TABLE: &str = "predictions";

/// Returns the predicted run times of a job's attempts, where anything was predicted.
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
    .map_err(StoreError::while_trying_to("read the predictions of a job"))?;
    rows.into_iter()
        .map(|row| {
            let at = RowRef::new(TABLE, AttemptId::from_uuid(row.attempt));
            let ran = row.ran_ms.map(|ran| at.millis("ran_ms", ran)).transpose()?;
            let view = PredictionView {
                basis: row.basis,
                runs: at.number("runs", row.runs)?,
                low_secs: secs(at.millis("low_ms", row.low)?),
                expected_secs: secs(at.millis("expected_ms", row.expected)?),
                high_secs: secs(at.millis("high_ms", row.high)?),
                ran_secs: ran.map(secs),
            };
            Ok((at.key().to_string(), view))
        })
        .collect()
}

/// Returns the predicted memory of a job's attempts, where anything was predicted.
pub(super) async fn memory_of_job(
    at: &mut PgConnection,
    job: i64,
) -> Result<HashMap<String, MemoryPredictionView>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.attempt, p.memory_runs AS "runs!", p.memory_low AS "low!",
               p.memory_estimate AS "estimate!", p.memory_high AS "high!",
               p.memory_cautious AS "cautious!", p.ran_out_of,
               CASE WHEN p.memory_outcome_at IS NOT NULL THEN a.peak_gpu_memory END AS peak
          FROM attempts AS a JOIN predictions AS p ON p.attempt = a.attempt
         WHERE a.job = $1 AND p.memory_estimate IS NOT NULL
        "#,
        job,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read the memory predictions of a job"))?;
    rows.into_iter()
        .map(|row| {
            let at = RowRef::new(TABLE, AttemptId::from_uuid(row.attempt));
            let view = MemoryPredictionView {
                runs: at.number("memory_runs", row.runs)?,
                low_bytes: at.number("memory_low", row.low)?,
                estimate_bytes: at.number("memory_estimate", row.estimate)?,
                high_bytes: at.number("memory_high", row.high)?,
                cautious: row.cautious,
                peak_bytes: at.optional_number("peak_gpu_memory", row.peak)?,
                ran_out_of_bytes: at.optional_number("ran_out_of", row.ran_out_of)?,
            };
            Ok((at.key().to_string(), view))
        })
        .collect()
}

/// Shows a memory estimate as the API does.
pub(crate) fn memory_view(estimate: &MemoryEstimate) -> MemoryPredictionView {
    MemoryPredictionView {
        runs: estimate.runs,
        low_bytes: estimate.low.get(),
        estimate_bytes: estimate.value.get(),
        high_bytes: estimate.high.get(),
        cautious: estimate.cautious,
        peak_bytes: None,
        ran_out_of_bytes: None,
    }
}

/// Newest outcomes of each kind that are looked at.
const OUTCOMES_MAX: i64 = 1_000;

/// Returns how accurate predictions were, by their basis.
pub(super) async fn outcomes(
    at: &mut PgConnection,
    models: ModelStatus,
) -> Result<PredictionReport, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT k.basis AS "basis!", COUNT(*) AS "outcomes!",
               COUNT(*) FILTER (WHERE o.ran_ms BETWEEN o.low_ms AND o.high_ms) AS "within!",
               percentile_cont(0.5) WITHIN GROUP (
                   ORDER BY ABS(o.ran_ms - o.expected_ms)::double precision
                            / GREATEST(o.expected_ms, 1)) AS "error!"
          FROM UNNEST($1::text[]) WITH ORDINALITY AS k (basis, place)
          CROSS JOIN LATERAL (
                   SELECT p.ran_ms, p.low_ms, p.expected_ms, p.high_ms
                     FROM predictions AS p
                    WHERE p.basis = k.basis AND p.ended_at IS NOT NULL
                    ORDER BY p.ended_at DESC
                    LIMIT $2) AS o
         GROUP BY k.basis, k.place
         ORDER BY k.place
        "#,
        &Basis::ALL.map(|basis| basis.word().to_owned()),
        OUTCOMES_MAX,
    )
    .fetch_all(&mut *at)
    .await
    .map_err(StoreError::while_trying_to("read the outcomes of predictions"))?;
    let outcomes = rows.into_iter().map(|row| PredictionOutcomes {
        basis: row.basis,
        outcomes: row_count(row.outcomes),
        within: row_count(row.within),
        median_error: row.error,
    });
    let outcomes = outcomes.collect();
    let model = match models.slices {
        Some((fingerprint, trusted)) => read_model(at, fingerprint, trusted).await?,
        None => None,
    };
    let low_confidence_tasks = models.low_confidence_tasks as u64;
    let memory = MemoryOutcomes { low_confidence_tasks, ..memory_outcomes(at).await? };
    let colocation_model = match models.colocation {
        Some((fingerprint, trusted)) => read_model(at, fingerprint, trusted).await?,
        None => None,
    };
    let colocation = colocation_outcomes(at).await?;
    Ok(PredictionReport { model, outcomes, memory, colocation_model, colocation })
}

async fn colocation_outcomes(at: &mut PgConnection) -> Result<ColocationOutcomes, StoreError> {
    let row = sqlx::query!(
        r#"
        SELECT COUNT(*) AS "outcomes!",
               COUNT(*) FILTER (WHERE o.speed_outcome BETWEEN o.speed_low AND o.speed_high)
                   AS "within!",
               percentile_cont(0.5) WITHIN GROUP (
                   ORDER BY ABS(o.speed_outcome - o.speed_predicted)::double precision
                            / GREATEST(o.speed_predicted, 1)) AS error
          FROM (SELECT speed_outcome, speed_low, speed_predicted, speed_high
                  FROM colocations
                 WHERE outcome_at IS NOT NULL AND speed_predicted IS NOT NULL
                   AND ABS(corunners_outcome - corunners * 1000) <= $1
                 ORDER BY outcome_at DESC
                 LIMIT $2) AS o
        "#,
        integer(STEADY),
        OUTCOMES_MAX,
    )
    .fetch_one(at)
    .await
    .map_err(StoreError::while_trying_to("read the outcomes of co-locations"))?;
    Ok(ColocationOutcomes {
        outcomes: row_count(row.outcomes),
        within: row_count(row.within),
        median_error: row.error,
    })
}

/// Returns the predicted speeds of a job's attempts next to co-runners, where a model predicted any.
pub(super) async fn colocations_of_job(
    at: &mut PgConnection,
    job: i64,
) -> Result<HashMap<String, ColocationPredictionView>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT c.attempt, c.corunners, c.speed_low AS "low!", c.speed_predicted AS "speed!",
               c.speed_high AS "high!", c.speed_outcome, c.corunners_outcome
          FROM attempts AS a JOIN colocations AS c ON c.attempt = a.attempt
         WHERE a.job = $1 AND c.speed_predicted IS NOT NULL
        "#,
        job,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read the predicted speeds of a job"))?;
    let part = |thousandths: i32| f64::from(thousandths) / 1_000.0;
    rows.into_iter()
        .map(|row| {
            let at = RowRef::new("colocations", AttemptId::from_uuid(row.attempt));
            let view = ColocationPredictionView {
                co_runners: at.number("corunners", row.corunners)?,
                low: part(row.low),
                speed: part(row.speed),
                high: part(row.high),
                measured: row.speed_outcome.map(part),
                co_runners_mean: row.corunners_outcome.map(part),
            };
            Ok((at.key().to_string(), view))
        })
        .collect()
}

async fn memory_outcomes(at: &mut PgConnection) -> Result<MemoryOutcomes, StoreError> {
    let row = sqlx::query!(
        r#"
        SELECT COUNT(*) AS "outcomes!",
               COUNT(*) FILTER (WHERE o.ran_out_of IS NULL
                                  AND o.peak BETWEEN o.low AND o.high) AS "within!",
               COUNT(*) FILTER (WHERE o.ran_out_of IS NOT NULL OR o.peak > o.high) AS "short!"
          FROM (SELECT p.ran_out_of, p.memory_low AS low, p.memory_high AS high,
                       a.peak_gpu_memory AS peak
                  FROM predictions AS p JOIN attempts AS a ON a.attempt = p.attempt
                 WHERE p.memory_outcome_at IS NOT NULL AND p.memory_estimate IS NOT NULL
                   AND (p.ran_out_of IS NOT NULL OR a.peak_gpu_memory > 0)
                 ORDER BY p.memory_outcome_at DESC
                 LIMIT $1) AS o
        "#,
        OUTCOMES_MAX,
    )
    .fetch_one(at)
    .await
    .map_err(StoreError::while_trying_to("read the outcomes of memory predictions"))?;
    Ok(MemoryOutcomes {
        outcomes: row_count(row.outcomes),
        within: row_count(row.within),
        short: row_count(row.short),
        low_confidence_tasks: 0,
    })
}

async fn read_model(
    at: &mut PgConnection,
    fingerprint: u64,
    trusted: bool,
) -> Result<Option<PredictorView>, StoreError> {
    let row = sqlx::query!(
        r#"
        SELECT learner, rows, held_out_rows, held_out_error, covered, trained_at
          FROM predictors WHERE fingerprint = $1
        "#,
        fingerprint.cast_signed(),
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("read a model"))?;
    Ok(row.map(|row| PredictorView {
        version: format!("{fingerprint:016x}"),
        learner: row.learner,
        trusted,
        rows: row_count(row.rows),
        held_out_rows: row_count(row.held_out_rows),
        held_out_error: row.held_out_error,
        held_out_covered: row.covered,
        trained_at: row.trained_at,
    }))
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
