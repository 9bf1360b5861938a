//! Recent usage of users, by their attempts.

use sqlx::{Connection as _, PgConnection};
use tessera_model::Millis;
use tessera_model::number::clamped;

use super::StoreError;

/// How many half-lives back attempts are looked at: older usage has less than a thousandth of its weight.
const HALF_LIVES: f64 = 10.0;
/// Maximum number of attempts that are looked at, the newest: more take longer than a leader may
/// take to begin.
const ATTEMPTS_MAX: i64 = 500_000;
/// Memory for each step of that: enough for as many attempts.
const MEMORY: &str = "128MB";

/// Returns each user's recent usage, in time on one compute slice. Past usage is weighted by half for
/// each half-life of age; it keeps its full weight where the half-life is `None`. A sharer counts by
/// its part of the slice, and a running attempt until now. What a job lost to one of a higher class doesn't count.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn read_recent_usage(
    connection: &mut PgConnection,
    half_life: Option<Millis>,
) -> Result<Vec<(String, Millis)>, StoreError> {
    let half_secs = half_life.map(|half| half.duration().as_secs_f64().max(0.001));
    // The part of what is known that decays within a second.
    let decay = half_secs.map_or(0.0, |half| std::f64::consts::LN_2 / half);
    let back = half_secs.map(|half| half * HALF_LIVES);
    let action = "read the recent usage of users";
    let failed = || StoreError::while_trying_to(action);
    let mut step = connection.begin().await.map_err(failed())?;
    // Without this a leader could never begin where reading takes longer than a request may.
    sqlx::query!("SET LOCAL statement_timeout = '120s'")
        .execute(&mut *step)
        .await
        .map_err(failed())?;
    // What is sorted and joined would go through files in the few megabytes that are usual.
    sqlx::query!("SELECT set_config('work_mem', $1, true) AS set", MEMORY)
        .fetch_one(&mut *step)
        .await
        .map_err(failed())?;
    // Attempts are added up by user and kind of slice first, so that the weight of a slice is computed once
    // for each kind. Parsing the names of profiles takes longer than all the rest.
    let rows = sqlx::query!(
        r#"
        SELECT h.user_name, SUM(h.secs * n.slices * n.part) AS "secs!"
          FROM (SELECT s.user_name, a.profile, a.compute_slices, a.sm_percent, a.share_bytes,
                       a.shared_on,
                       SUM(CASE WHEN $1::float8 = 0 THEN t.began - t.over
                           ELSE (exp(-$1 * t.over) - exp(-$1 * t.began)) / $1 END) AS secs
                  FROM (SELECT job, CASE WHEN share_bytes IS NOT NULL THEN gpu END AS shared_on,
                               profile, sm_percent, share_bytes, compute_slices, ended_at,
                               placed_at + uncharged_start_ms * interval '1 millisecond' AS from_at,
                               ended_at - uncharged_end_ms * interval '1 millisecond' AS until_at
                          FROM attempts
                         WHERE live OR $2::float8 IS NULL
                            OR ended_at > now() - make_interval(secs => $2)
                         ORDER BY ended_at DESC NULLS FIRST
                         LIMIT $3) AS a
                  JOIN jobs AS j ON j.job = a.job
                  JOIN submissions AS s ON s.first_job = j.submission
                 CROSS JOIN LATERAL (
                       SELECT GREATEST(0, date_part('epoch', now() - u.until)) AS over,
                              GREATEST(0, date_part('epoch', now() - LEAST(u.until, a.from_at)))
                                  AS began
                         FROM (SELECT COALESCE(a.until_at, now()) AS until) AS u) AS t
                 GROUP BY s.user_name, a.profile, a.compute_slices, a.sm_percent, a.share_bytes,
                          a.shared_on) AS h
          LEFT JOIN gpus AS g ON g.gpu = h.shared_on
         CROSS JOIN LATERAL (
               SELECT COALESCE(h.compute_slices::float8,
                               substring(h.profile FROM '^([0-9]+)g')::float8, 7) AS slices,
                      CASE WHEN h.compute_slices IS NOT NULL OR h.share_bytes IS NULL THEN 1.0
                           WHEN h.sm_percent IS NOT NULL THEN h.sm_percent / 100.0
                           ELSE LEAST(1.0, h.share_bytes / GREATEST(1.0, COALESCE(
                                substring(h.profile FROM '[.]([0-9]+)gb')::float8 * 1073741824,
                                (g.report ->> 'memory')::float8, h.share_bytes))) END::float8
                          AS part) AS n
         GROUP BY h.user_name
        "#,
        decay,
        back,
        ATTEMPTS_MAX,
    )
    .fetch_all(&mut *step)
    .await
    .map_err(failed())?;
    step.commit().await.map_err(failed())?;
    Ok(rows.into_iter().map(|row| (row.user_name, time(row.secs))).collect())
}

fn time(secs: f64) -> Millis {
    let had = std::time::Duration::try_from_secs_f64(secs.max(0.0));
    let had = had.map_or(u128::MAX, |had| had.as_millis());
    Millis::new(clamped(had))
}
