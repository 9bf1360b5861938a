//! Steps of attempts, as the callers of `srun` report them.

use sqlx::PgConnection;
use tessera_model::JobId;
use uuid::Uuid;

use super::StoreError;
use super::columns::job_number;

/// Maximum number of steps that are kept of one attempt: a script may start one for each of many small files.
pub const KEPT_MAX: i64 = 1_000;

/// A report about one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedStep {
    /// The job, or any member of its gang.
    pub job: JobId,
    /// The attempt in which it runs.
    pub attempt: Uuid,
    /// Its number.
    pub step: i32,
    /// Name of its program.
    pub name: String,
    /// Number of its processes.
    pub tasks: i32,
    /// The nodes that it uses, such as `n[1-2]`.
    pub nodes: String,
    /// How long it has run, in milliseconds.
    pub ran_ms: i64,
    /// Exit code and signal, once it has ended.
    pub exit_code: Option<String>,
    /// Processor time in user mode, in milliseconds.
    pub user_ms: Option<i64>,
    /// Processor time in the kernel, in milliseconds.
    pub system_ms: Option<i64>,
    /// Largest resident set of any one process, in bytes.
    pub max_rss: Option<i64>,
}

/// Records the start or the end of a step. Times are the database's, so that steps fit their attempts. Nothing is recorded
/// of an attempt that has ended, that belongs to another job, or that has [`KEPT_MAX`] steps. Returns whether it was
/// recorded.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record(at: &mut PgConnection, step: &ReportedStep) -> Result<bool, StoreError> {
    let done = sqlx::query!(
        r#"
        INSERT INTO steps (attempt, step, name, tasks, nodes, started_at, ended_at, exit_code, user_ms,
                           system_ms, max_rss)
        SELECT a.attempt, $3, $4, $5, $6, now() - $7::bigint * interval '1 millisecond',
               CASE WHEN $8::text IS NOT NULL THEN now() END, $8, $9, $10, $11
          FROM attempts AS a
          JOIN jobs AS o ON o.job = a.job
          JOIN jobs AS j ON j.job = $2 AND j.submission = o.submission
         WHERE a.attempt = $1 AND a.live
           AND (EXISTS (SELECT FROM steps AS s WHERE s.attempt = $1 AND s.step = $3)
                OR (SELECT count(*) FROM steps AS s WHERE s.attempt = $1) < $12)
            ON CONFLICT (attempt, step) DO UPDATE
           SET ended_at = EXCLUDED.ended_at, exit_code = EXCLUDED.exit_code, user_ms = EXCLUDED.user_ms,
               system_ms = EXCLUDED.system_ms, max_rss = EXCLUDED.max_rss
         WHERE steps.ended_at IS NULL
        "#,
        step.attempt,
        job_number(step.job),
        step.step,
        step.name,
        step.tasks,
        step.nodes,
        step.ran_ms,
        step.exit_code.as_deref() as Option<&str>,
        step.user_ms as Option<i64>,
        step.system_ms as Option<i64>,
        step.max_rss as Option<i64>,
        KEPT_MAX,
    )
    .execute(at)
    .await
    .map_err(StoreError::while_trying_to("record a step"))?;
    Ok(done.rows_affected() > 0)
}
