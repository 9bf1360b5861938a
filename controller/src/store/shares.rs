//! What users have had, by their attempts.

use sqlx::PgConnection;
use tessera_model::Millis;

use super::StoreError;

/// How many half-lives back attempts are looked at: of what is older less than a thousandth counts.
const HALF_LIVES: f64 = 10.0;
/// Most attempts that are looked at, the newest: more take longer than a leader may take to begin.
const ATTEMPTS_MAX: i64 = 500_000;

/// Returns what each user has had until now, in time on one compute slice, of which half counts no more
/// after each half-life; `None` if all counts for ever. A sharer counts by its part, as
/// `Cluster::worth` has it; what runs counts until now.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn had(
    connection: &mut PgConnection,
    half_life: Option<Millis>,
) -> Result<Vec<(String, Millis)>, StoreError> {
    let half_secs = half_life.map(|half| half.duration().as_secs_f64().max(0.001));
    // The part of what is known that decays within a second.
    let decay = half_secs.map_or(0.0, |half| std::f64::consts::LN_2 / half);
    let back = half_secs.map(|half| half * HALF_LIVES);
    let rows = sqlx::query!(
        r#"
        SELECT s.user_name,
               SUM(n.slices * n.part * CASE WHEN $1::float8 = 0 THEN n.began - n.over
                   ELSE (exp(-$1 * n.over) - exp(-$1 * n.began)) / $1 END) AS "secs!"
          FROM (SELECT job, gpu, profile, sm_percent, share_bytes, compute_slices, placed_at, ended_at
                  FROM attempts
                 WHERE live OR $2::float8 IS NULL
                    OR ended_at > now() - make_interval(secs => $2)
                 ORDER BY ended_at DESC NULLS FIRST
                 LIMIT $3) AS a
          JOIN jobs AS j ON j.job = a.job
          JOIN submissions AS s ON s.first_job = j.submission
          LEFT JOIN gpus AS g ON g.gpu = a.gpu
         CROSS JOIN LATERAL (
               SELECT COALESCE(a.compute_slices::float8,
                               substring(a.profile FROM '^([0-9]+)g')::float8, 7) AS slices,
                      CASE WHEN a.compute_slices IS NOT NULL OR a.share_bytes IS NULL THEN 1.0
                           WHEN a.sm_percent IS NOT NULL THEN a.sm_percent / 100.0
                           ELSE LEAST(1.0, a.share_bytes / GREATEST(1.0, COALESCE(
                                substring(a.profile FROM '[.]([0-9]+)gb')::float8 * 1073741824,
                                (g.report ->> 'memory')::float8, a.share_bytes))) END::float8 AS part,
                      GREATEST(0, EXTRACT(EPOCH FROM now() - COALESCE(a.ended_at, now())))::float8
                          AS over,
                      GREATEST(0, EXTRACT(EPOCH FROM now() - a.placed_at))::float8 AS began) AS n
         GROUP BY s.user_name
        "#,
        decay,
        back,
        ATTEMPTS_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what users have had"))?;
    Ok(rows.into_iter().map(|row| (row.user_name, time(row.secs))).collect())
}

fn time(secs: f64) -> Millis {
    let had = std::time::Duration::try_from_secs_f64(secs.max(0.0));
    let had = had.map_or(u128::MAX, |had| had.as_millis());
    Millis::new(u64::try_from(had).unwrap_or(u64::MAX))
}
