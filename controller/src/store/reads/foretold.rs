//! What was foretold of attempts, for those who look at a job.

use std::collections::HashMap;

use sqlx::PgConnection;
use tessera_api::types::{
    CompanyOutcomes, CompanyPredictionView, MemoryOutcomes, MemoryPredictionView,
    PredictionOutcomes, PredictionView, Predictions, PredictorView,
};
use tessera_model::{AttemptId, Millis};
use tessera_placement::{Basis, Prediction};
use tessera_predict::memory::Floor;

use super::row::{count, maybe_count};
use crate::core::company::STEADY;
use crate::ports::Learned;
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

/// Returns what was foretold of the memory of the attempts of a job, where anything was.
pub(super) async fn memory_of_job(
    at: &mut PgConnection,
    job: i64,
) -> Result<HashMap<String, MemoryPredictionView>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.attempt, p.memory_runs AS "runs!", p.memory_low AS "low!",
               p.memory_floor AS "floor!", p.memory_high AS "high!",
               p.memory_cautious AS "cautious!", p.ran_out_of,
               CASE WHEN p.memory_at IS NOT NULL THEN a.peak_gpu_memory END AS peak
          FROM attempts AS a JOIN predictions AS p ON p.attempt = a.attempt
         WHERE a.job = $1 AND p.memory_floor IS NOT NULL
        "#,
        job,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read what memory was foretold of a job"))?;
    rows.into_iter()
        .map(|row| {
            let id = AttemptId::from_uuid(row.attempt);
            let view = MemoryPredictionView {
                runs: count(TABLE, id, row.runs.into())?,
                low_bytes: count(TABLE, id, row.low)?,
                floor_bytes: count(TABLE, id, row.floor)?,
                high_bytes: count(TABLE, id, row.high)?,
                cautious: row.cautious,
                peak_bytes: maybe_count(TABLE, id, row.peak)?,
                ran_out_of_bytes: maybe_count(TABLE, id, row.ran_out_of)?,
            };
            Ok((id.to_string(), view))
        })
        .collect()
}

/// Shows what memory is foretold as the API does.
pub(crate) fn memory_view(floor: &Floor) -> MemoryPredictionView {
    MemoryPredictionView {
        runs: floor.runs,
        low_bytes: floor.low.get(),
        floor_bytes: floor.value.get(),
        high_bytes: floor.high.get(),
        cautious: floor.cautious,
        peak_bytes: None,
        ran_out_of_bytes: None,
    }
}

/// Newest outcomes of each kind that are looked at.
const OUTCOMES_MAX: i64 = 1_000;

/// Tells what came of predictions, by what they rested on.
pub(super) async fn all(
    at: &mut PgConnection,
    learned: Learned,
) -> Result<Predictions, StoreError> {
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
    .map_err(StoreError::while_trying_to("read what came of predictions"))?;
    let whole = |rows: i64| u64::try_from(rows).unwrap_or(0);
    let outcomes = rows.into_iter().map(|row| PredictionOutcomes {
        basis: row.basis,
        outcomes: whole(row.outcomes),
        within: whole(row.within),
        median_error: row.error,
    });
    let outcomes = outcomes.collect();
    let model = match learned.slices {
        Some((fingerprint, trusted)) => model(at, fingerprint, trusted).await?,
        None => None,
    };
    let doubted_tasks = u64::try_from(learned.doubted_tasks).unwrap_or(u64::MAX);
    let memory = MemoryOutcomes { doubted_tasks, ..memory(at).await? };
    let company_model = match learned.company {
        Some((fingerprint, trusted)) => self::model(at, fingerprint, trusted).await?,
        None => None,
    };
    let company = company(at).await?;
    Ok(Predictions { model, outcomes, memory, company_model, company })
}

async fn company(at: &mut PgConnection) -> Result<CompanyOutcomes, StoreError> {
    let row = sqlx::query!(
        r#"
        SELECT COUNT(*) AS "outcomes!",
               COUNT(*) FILTER (WHERE o.came BETWEEN o.low AND o.high) AS "within!",
               percentile_cont(0.5) WITHIN GROUP (
                   ORDER BY ABS(o.came - o.speed)::double precision
                            / GREATEST(o.speed, 1)) AS error
          FROM (SELECT came, low, speed, high
                  FROM companies
                 WHERE came_at IS NOT NULL AND speed IS NOT NULL
                   AND ABS(beside - others * 1000) <= $1
                 ORDER BY came_at DESC
                 LIMIT $2) AS o
        "#,
        i32::try_from(STEADY).unwrap_or(i32::MAX),
        OUTCOMES_MAX,
    )
    .fetch_one(at)
    .await
    .map_err(StoreError::while_trying_to("read what came of predicted company"))?;
    let whole = |rows: i64| u64::try_from(rows).unwrap_or(0);
    Ok(CompanyOutcomes {
        outcomes: whole(row.outcomes),
        within: whole(row.within),
        median_error: row.error,
    })
}

/// Returns how fast the attempts of a job were expected to be beside others, where a model said.
pub(super) async fn company_of_job(
    at: &mut PgConnection,
    job: i64,
) -> Result<HashMap<String, CompanyPredictionView>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT c.attempt, c.others, c.low AS "low!", c.speed AS "speed!", c.high AS "high!", c.came,
               c.beside
          FROM attempts AS a JOIN companies AS c ON c.attempt = a.attempt
         WHERE a.job = $1 AND c.speed IS NOT NULL
        "#,
        job,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read how a job was expected to do beside others"))?;
    let part = |thousandths: i32| f64::from(thousandths) / 1_000.0;
    rows.into_iter()
        .map(|row| {
            let id = AttemptId::from_uuid(row.attempt);
            let view = CompanyPredictionView {
                others: count("companies", id, row.others.into())?,
                low: part(row.low),
                speed: part(row.speed),
                high: part(row.high),
                came: row.came.map(part),
                beside: row.beside.map(part),
            };
            Ok((id.to_string(), view))
        })
        .collect()
}

async fn memory(at: &mut PgConnection) -> Result<MemoryOutcomes, StoreError> {
    let row = sqlx::query!(
        r#"
        SELECT COUNT(*) AS "outcomes!",
               COUNT(*) FILTER (WHERE o.ran_out_of IS NULL
                                  AND o.peak BETWEEN o.low AND o.high) AS "within!",
               COUNT(*) FILTER (WHERE o.ran_out_of IS NOT NULL OR o.peak > o.high) AS "short!"
          FROM (SELECT p.ran_out_of, p.memory_low AS low, p.memory_high AS high,
                       a.peak_gpu_memory AS peak
                  FROM predictions AS p JOIN attempts AS a ON a.attempt = p.attempt
                 WHERE p.memory_at IS NOT NULL AND p.memory_floor IS NOT NULL
                 ORDER BY p.memory_at DESC
                 LIMIT $1) AS o
        "#,
        OUTCOMES_MAX,
    )
    .fetch_one(at)
    .await
    .map_err(StoreError::while_trying_to("read what came of predictions of memory"))?;
    let whole = |rows: i64| u64::try_from(rows).unwrap_or(0);
    Ok(MemoryOutcomes {
        outcomes: whole(row.outcomes),
        within: whole(row.within),
        short: whole(row.short),
        doubted_tasks: 0,
    })
}

async fn model(
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
    let whole = |rows: i64| u64::try_from(rows).unwrap_or(0);
    Ok(row.map(|row| PredictorView {
        version: format!("{fingerprint:016x}"),
        learner: row.learner,
        trusted,
        rows: whole(row.rows),
        held_out_rows: whole(row.held_out_rows),
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
