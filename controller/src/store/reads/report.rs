//! Accounting: sums over attempts, in whole numbers.
//!
//! Each figure of an attempt is a whole number that grows with time, `f(t)`. A piece of the attempt
//! between two moments counts as `f(end) - f(begin)`. The pieces of all months therefore add up exactly
//! to the attempt, however it was rounded.

use sqlx::PgConnection;
use tessera_api_types::ReportFigures;
use time::OffsetDateTime;

use crate::store::StoreError;

/// Which attempts to add up, by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSpan {
    /// Beginning of the period.
    pub since: OffsetDateTime,
    /// End of the period; not in the future, where nothing is known.
    pub until: OffsetDateTime,
    /// Only jobs of these users.
    pub users: Option<Vec<String>>,
    /// Whether each month has separate lines.
    pub months: bool,
    /// Whether each node has.
    pub nodes: bool,
    /// Whether each profile has.
    pub profiles: bool,
}

/// The sum of one user's attempts in one month on one node and profile, as far as these are apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportRow {
    /// The user who submitted the jobs.
    pub user: String,
    /// The month, such as `2027-01`.
    pub month: Option<String>,
    /// The node, if rows are grouped by nodes.
    pub node: Option<String>,
    /// The profile, if rows are grouped by slices; none for whole GPUs.
    pub profile: Option<String>,
    /// The sums.
    pub figures: ReportFigures,
}

/// Adds up the attempts of a period.
pub(super) async fn sums(
    at: &mut PgConnection,
    span: &ReportSpan,
) -> Result<Vec<ReportRow>, StoreError> {
    let rows = sqlx::query!(
        r#"
        WITH months AS (
            SELECT GREATEST(m AT TIME ZONE 'UTC', $1::timestamptz) AS since,
                   LEAST((m + interval '1 month') AT TIME ZONE 'UTC', $2::timestamptz) AS until,
                   to_char(m, 'YYYY-MM') AS month
              FROM generate_series(date_trunc('month', $1::timestamptz AT TIME ZONE 'UTC'),
                                   $2::timestamptz AT TIME ZONE 'UTC', interval '1 month') AS m
             WHERE $3 AND m AT TIME ZONE 'UTC' < $2
             UNION ALL
            SELECT $1, $2, NULL WHERE NOT $3
        ), held AS (
            SELECT a.job, a.number, a.node, a.profile, a.state, a.live, a.placed_at, a.started_at,
                   a.ended_at, a.energy_mj, a.peak_gpu_memory, s.user_name, s.accepted_at,
                   s.spec ->> 'time_limit' AS time_limit,
                   COALESCE(a.compute_slices, substring(a.profile FROM '^([0-9]+)g')::bigint, 7)
                       * COALESCE(a.sm_percent, 100)::bigint AS slice_percents,
                   COALESCE(a.share_bytes / 1048576,
                            substring(a.profile FROM '[.]([0-9]+)gb')::bigint * 1024,
                            (g.report ->> 'memory')::bigint / 1048576) AS mib
              FROM attempts AS a
              JOIN jobs AS j ON j.job = a.job
              JOIN submissions AS s ON s.first_job = j.submission
              LEFT JOIN gpus AS g ON g.gpu = a.gpu
             WHERE a.placed_at < $2 AND (a.live OR a.ended_at >= $1)
               AND ($4::text[] IS NULL OR s.user_name = ANY ($4))
        ), pieces AS (
            SELECT h.*, m.since, m.until, m.month,
                   GREATEST(0, ms(LEAST(COALESCE(h.ended_at, m.until), m.until) - h.placed_at)) AS held_to,
                   GREATEST(0, ms(GREATEST(m.since, h.placed_at) - h.placed_at)) AS held_from,
                   GREATEST(0, ms(LEAST(COALESCE(h.ended_at, m.until), m.until) - h.started_at)) AS ran_to,
                   GREATEST(0, ms(GREATEST(m.since, h.started_at) - h.started_at)) AS ran_from,
                   GREATEST(1, ms(h.ended_at - h.placed_at)) AS whole,
                   h.placed_at >= m.since AND h.placed_at < m.until AS placed_here,
                   h.ended_at >= m.since AND h.ended_at < m.until AS ended_here
              FROM held AS h
              JOIN months AS m
                ON h.placed_at < m.until AND (h.live OR h.ended_at >= m.since)
        ), cut AS (
            -- An attempt that ended before its piece begins has nothing in it.
            SELECT p.*, LEAST(p.held_from, p.held_to) AS h0, p.held_to AS h1,
                   LEAST(p.ran_from, p.ran_to) AS r0, p.ran_to AS r1,
                   CASE WHEN p.mib IS NOT NULL AND p.peak_gpu_memory IS NOT NULL
                        THEN LEAST(p.mib, p.peak_gpu_memory / 1048576) END AS used_mib
              FROM pieces AS p
        )
        SELECT c.user_name, c.month,
               CASE WHEN $5 THEN n.name END AS node, CASE WHEN $6 THEN c.profile END AS profile,
               COUNT(*) FILTER (WHERE c.placed_here) AS "attempts!",
               COUNT(*) FILTER (WHERE c.ended_here AND c.state = 'succeeded') AS "succeeded!",
               COUNT(*) FILTER (WHERE c.ended_here AND c.state <> 'succeeded') AS "failed!",
               COALESCE(SUM(CASE WHEN c.placed_here THEN GREATEST(0, ms(c.placed_at - COALESCE(
                   (SELECT b.ended_at FROM attempts AS b
                     WHERE b.job = c.job AND b.number = c.number - 1), c.accepted_at))) END), 0)
                   ::bigint AS "waiting_ms!",
               COALESCE(SUM(c.r1 - c.r0), 0)::bigint AS "run_ms!",
               SUM(c.slice_percents * c.h1 / 100 - c.slice_percents * c.h0 / 100)::bigint
                   AS "slice_ms!",
               SUM(c.slice_percents * c.h1 / 700 - c.slice_percents * c.h0 / 700)::bigint
                   AS "gpu_ms!",
               COALESCE(SUM(c.slice_percents * c.h1 / 100 - c.slice_percents * c.h0 / 100)
                   FILTER (WHERE NOT c.live AND c.state <> 'succeeded'), 0)::bigint
                   AS "wasted_slice_ms!",
               COALESCE(SUM(CASE WHEN NOT c.live THEN
                   div(c.energy_mj::numeric * c.h1, c.whole) - div(c.energy_mj::numeric * c.h0, c.whole)
                   END), 0)::bigint AS "energy_mj!",
               COALESCE(SUM(c.time_limit::bigint) FILTER (WHERE c.ended_here), 0)::bigint
                   AS "requested_ms!",
               COALESCE(SUM(ms(c.ended_at - c.started_at))
                   FILTER (WHERE c.ended_here AND c.time_limit IS NOT NULL
                             AND c.started_at IS NOT NULL), 0)::bigint AS "used_of_requested_ms!",
               COALESCE(SUM(c.mib * c.h1 / 1000 - c.mib * c.h0 / 1000)
                   FILTER (WHERE c.used_mib IS NOT NULL), 0)::bigint AS "memory_held_mib_s!",
               COALESCE(SUM(c.used_mib * c.h1 / 1000 - c.used_mib * c.h0 / 1000), 0)::bigint
                   AS "memory_used_mib_s!"
          FROM cut AS c
          JOIN nodes AS n ON n.node = c.node
         GROUP BY 1, 2, 3, 4
        "#,
        span.since,
        span.until,
        span.months,
        span.users.as_deref() as Option<&[String]>,
        span.nodes,
        span.profiles,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("add up attempts"))?;
    let lines = rows.into_iter().map(|row| ReportRow {
        user: row.user_name,
        month: row.month,
        node: row.node,
        profile: row.profile,
        figures: ReportFigures {
            attempts: row.attempts,
            succeeded: row.succeeded,
            failed: row.failed,
            waiting_ms: row.waiting_ms,
            run_ms: row.run_ms,
            slice_ms: row.slice_ms,
            gpu_ms: row.gpu_ms,
            wasted_slice_ms: row.wasted_slice_ms,
            energy_mj: row.energy_mj,
            requested_ms: row.requested_ms,
            used_of_requested_ms: row.used_of_requested_ms,
            memory_held_mib_s: row.memory_held_mib_s,
            memory_used_mib_s: row.memory_used_mib_s,
        },
    });
    Ok(lines.collect())
}
