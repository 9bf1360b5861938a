//! The memory of attempts over time, and how well tasks used theirs.

use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_api_types::{
    AttemptMemoryView, GrowthView, MemoryBandView, MemoryPointView, TaskEfficiency,
};
use tessera_model::{AttemptId, Bytes};
use tessera_predict::peak::watch::BandPoint;
use tessera_predict::peak::{GrowthForecast, MemoryCurve};
use time::OffsetDateTime;

use crate::store::StoreError;
use crate::store::columns::{RowRef, bigint};

/// Tasks in one report.
const TASKS_MAX: i64 = 1_000;

/// Lists the attempts of a job whose memory was recorded, oldest first.
pub(super) async fn of_job(
    at: &mut PgConnection,
    job: u64,
) -> Result<Vec<AttemptMemoryView>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT g.attempt, a.number, g.capacity, g.moved_at IS NOT NULL AS "moved!", g.outcome,
               g.forecast AS "forecast: Json<GrowthForecast>",
               g.curve AS "curve: Json<MemoryCurve>"
          FROM memory_growths AS g JOIN attempts AS a ON a.attempt = g.attempt
         WHERE g.job = $1
         ORDER BY a.number
        "#,
        bigint(job),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the memory of a job"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("memory_growths", found.attempt);
            let forecast = found.forecast.map(|forecast| forecast.0);
            let curve = found.curve.map(|curve| curve.0);
            let unit = curve.as_ref().map(|curve| curve.unit).or(forecast.map(|f| f.unit));
            Ok(AttemptMemoryView {
                number: row.number("number", found.number)?,
                id: AttemptId::from_uuid(found.attempt).to_string(),
                capacity_bytes: row.number("capacity", found.capacity)?,
                unit: unit.map_or("", |unit| unit.word()).to_owned(),
                memory_prediction: None,
                preallocated: curve.as_ref().is_some_and(|curve| curve.preallocated),
                moved: found.moved,
                points: curve.as_ref().map(points_of).unwrap_or_default(),
                forecast: forecast.as_ref().map(growth_view),
                band: Vec::new(),
                outcome: found.outcome,
            })
        })
        .collect()
}

/// Returns the points of a curve.
pub(crate) fn points_of(curve: &MemoryCurve) -> Vec<MemoryPointView> {
    let view = |point: &tessera_predict::peak::watch::CurvePoint| MemoryPointView {
        position: point.position,
        used_bytes: point.used.get(),
    };
    curve.points.iter().map(view).collect()
}

/// Returns a prediction as the API has it.
pub(crate) fn growth_view(forecast: &GrowthForecast) -> GrowthView {
    GrowthView {
        position: forecast.position,
        used_bytes: forecast.used.get(),
        crossing: forecast.crossing,
        earliest: forecast.earliest,
        after_secs: forecast.after.duration().as_secs_f64(),
        peak: forecast.peak.as_ref().map(band_view),
    }
}

/// Returns a point of a band as the API has it.
pub(crate) fn band_view(point: &BandPoint) -> MemoryBandView {
    MemoryBandView {
        position: point.position,
        low_bytes: point.low.get(),
        value_bytes: point.value.get(),
        high_bytes: point.high.get(),
    }
}

/// Returns how well tasks used their resources, those with the most unused memory first.
pub(super) async fn efficiency(
    at: &mut PgConnection,
    since: OffsetDateTime,
    users: Option<&[String]>,
) -> Result<Vec<TaskEfficiency>, StoreError> {
    let rows = sqlx::query!(
        r#"
        WITH runs AS (
            SELECT s.user_name, s.facts ->> 'task' AS task, s.spec ->> 'name' AS name, a.gpu_memory,
                   NULLIF(a.peak_gpu_memory, 0) AS peak, (s.spec ->> 'time_limit')::bigint AS time_limit,
                   ms(a.ended_at - a.started_at) AS ran, a.ended_at
              FROM attempts AS a
              JOIN jobs AS j ON j.job = a.job
              JOIN submissions AS s ON s.first_job = j.submission
             WHERE NOT a.live AND a.state = 'succeeded' AND a.ended_at >= $1
               AND a.started_at IS NOT NULL AND a.gpu_memory IS NOT NULL
               AND ($2::text[] IS NULL OR s.user_name = ANY ($2))
        )
        SELECT user_name AS "user!",
               (array_agg(name ORDER BY ended_at DESC))[1] AS "name",
               COUNT(*) AS "runs!", COUNT(peak) AS "measured!",
               (array_agg(gpu_memory ORDER BY ended_at DESC))[1] AS "given!",
               percentile_disc(0.95) WITHIN GROUP (ORDER BY peak) AS "used: i64",
               COALESCE(SUM(GREATEST(0, gpu_memory - peak)::float8 / 1073741824 * ran / 3600000)
                   FILTER (WHERE peak IS NOT NULL), 0)::float8 AS "unused!",
               (array_agg(time_limit ORDER BY ended_at DESC))[1] AS "time_limit",
               percentile_disc(0.95) WITHIN GROUP (ORDER BY ran) AS "ran!: i64"
          FROM runs
         GROUP BY user_name, COALESCE(task, name)
         ORDER BY 7 DESC, 1, 2
         LIMIT $3
        "#,
        since,
        users as Option<&[String]>,
        TASKS_MAX,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("compare what tasks requested and used"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("attempts", &found.user);
            let runs: u64 = row.number("runs", found.runs)?;
            let measured: u64 = row.number("measured", found.measured)?;
            let used: Option<u64> = row.optional_number("peak_gpu_memory", found.used)?;
            let ran_secs = row.number::<u64>("ran", found.ran)?.div_ceil(1_000);
            let limit: Option<u64> = row.optional_number("time_limit", found.time_limit)?;
            Ok(TaskEfficiency {
                name: found.name.unwrap_or_default(),
                runs,
                measured,
                given_bytes: row.number("gpu_memory", found.given)?,
                used_bytes: used,
                unused_gib_hours: found.unused,
                limit_secs: limit.map(|limit| limit / 1_000),
                ran_secs,
                request_bytes: used
                    .filter(|_| measured >= KNOWN_MIN)
                    .map(|used| with_headroom(Bytes::new(used)).get()),
                request_limit_secs: (runs >= KNOWN_MIN).then(|| limit_for(ran_secs)),
                user: found.user,
            })
        })
        .collect()
}

/// Runs from which something is advised: with fewer, one run would decide.
const KNOWN_MIN: u64 = 5;

/// Returns what to request by a peak: a fifth more, in whole steps of 256 MiB.
fn with_headroom(peak: Bytes) -> Bytes {
    const STEP_MIB: u64 = 256;
    let mib = (peak.get() + peak.get() / 5).div_ceil(1 << 20);
    Bytes::from_mib(mib.div_ceil(STEP_MIB) * STEP_MIB)
}

/// Returns the time limit to request by a run time: half as much again, in whole minutes.
const fn limit_for(ran_secs: u64) -> u64 {
    (ran_secs + ran_secs / 2).div_ceil(60) * 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_has_headroom_and_round_numbers() {
        assert_eq!(with_headroom(Bytes::from_mib(1_000)), Bytes::from_mib(1_280));
        assert_eq!(with_headroom(Bytes::from_mib(4_000)), Bytes::from_mib(4_864));
        assert_eq!((limit_for(1), limit_for(40), limit_for(600)), (60, 60, 900));
    }
}
