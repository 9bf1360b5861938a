//! What is known about tasks' kernels, and what attempts did in their slices' queues.

use sqlx::types::Json;
use sqlx::{Connection as _, PgConnection};
use tessera_frames::cluster::{KernelFigures, KernelTally};
use tessera_kernel_queue::{Nanos, ProfileDelta, TaskProfile};
use tessera_model::number::clamped;
use tessera_model::{AttemptId, NodeId};
use tessera_placement::{KernelLengths, TaskLoad};

use super::StoreError;
use super::columns::{RowRef, integer_len};

/// Maximum number of tasks with stored profiles; those with the oldest reports are removed first.
const PROFILES_MAX: i64 = 10_000;

/// Profiles that are read at once: some megabytes.
pub const BUSY_MAX: i64 = 64;

/// Returns the profile of a task's kernels; nothing, if it can't be read: then it is measured again.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn read_profile(
    connection: &mut PgConnection,
    task: &str,
) -> Result<Option<TaskProfile>, StoreError> {
    let row = sqlx::query!("SELECT profile FROM kernel_profiles WHERE task_key = $1", task)
        .fetch_optional(connection)
        .await
        .map_err(StoreError::while_trying_to("read a kernel profile"))?;
    Ok(row.and_then(|row| serde_json::from_slice(&row.profile).ok()))
}

/// How far changed profiles were read: the last one's moment, and of those that changed in the same
/// moment the last one's task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadTo {
    micros: i64,
    task: String,
}

/// Returns the load of the tasks whose profiles changed after those that were read: at most [`BUSY_MAX`], in
/// the order of their changes. It also returns where to read next, which is unchanged if there are no
/// more. A change that is committed later than it began may be missed until the task's next report.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn read_task_loads(
    connection: &mut PgConnection,
    read: &ReadTo,
) -> Result<(Vec<(String, TaskLoad)>, ReadTo), StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT task_key, profile, (extract(epoch FROM updated_at) * 1000000)::bigint AS "micros!"
          FROM kernel_profiles
         WHERE measured
           AND ((extract(epoch FROM updated_at) * 1000000)::bigint, task_key) > ($1, $2)
         ORDER BY updated_at, task_key
         LIMIT $3
        "#,
        read.micros,
        read.task,
        BUSY_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read how busy tasks are"))?;
    let last = rows.last().map(|row| ReadTo { micros: row.micros, task: row.task_key.clone() });
    let busy = rows.into_iter().filter_map(|row| {
        let known: TaskProfile = serde_json::from_slice(&row.profile).ok()?;
        Some((row.task_key, load_of(&known)?))
    });
    Ok((busy.collect(), last.unwrap_or_else(|| read.clone())))
}

/// Returns what a profile shows about its task's time on the device. `None` before the measuring stage is over.
fn load_of(profile: &TaskProfile) -> Option<TaskLoad> {
    let busy = profile.busy()?;
    let micros = |length: Nanos| clamped::<u32>(length.get() / 1_000);
    let lengths = profile.lengths().map_or(KernelLengths::UNKNOWN, |(half, gap)| KernelLengths {
        half_us: micros(half),
        gap_us: micros(gap).saturating_add(1),
        typical_gap_us: typical_gap(profile).map_or(u32::MAX, micros),
    });
    Some(TaskLoad { busy, lengths })
}

/// Returns how long the gap around a moment of the task's idle time is on average. Long gaps count by their lengths, and
/// the longest twentieth after each kernel counts as shorter, since a pause of the host may be among them.
fn typical_gap(profile: &TaskProfile) -> Option<Nanos> {
    let (mut idle, mut weighted) = (0_u128, 0_u128);
    for pair in profile.pairs.pairs().filter(|pair| pair.before.is_none()) {
        let Some(gaps) = profile.pairs.trusted(None, pair.kernel) else { continue };
        for risk in (50..1_000).step_by(100) {
            let Some(gap) = gaps.reached(Nanos::ZERO, risk) else { continue };
            let (gap, often) = (u128::from(gap.get()), u128::from(gaps.held()));
            idle += gap * often;
            weighted += gap * gap * often;
        }
    }
    Some(Nanos::new(clamped(weighted.checked_div(idle)?)))
}

const ADD_REPORT: &str = "add to a kernel profile";

/// Adds a node's report to a task's profile, once: a repeated report changes nothing.
///
/// # Errors
///
/// [`StoreError::Unavailable`], [`StoreError::Corrupt`] if the profile can't be written as JSON.
pub async fn add_report(
    connection: &mut PgConnection,
    node: NodeId,
    number: u64,
    task: &str,
    learned: &ProfileDelta,
) -> Result<(), StoreError> {
    let failed = || StoreError::while_trying_to(ADD_REPORT);
    let mut step = connection.begin().await.map_err(failed())?;
    if !note_report(&mut step, node, number).await? {
        return Ok(());
    }
    // One writer at a time for a task that is new, too: there is no row to lock then.
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 6)) AS locked", task)
        .fetch_one(&mut *step)
        .await
        .map_err(failed())?;
    let mut known = read_profile(&mut step, task).await?.unwrap_or_default();
    learned.add_to(&mut known);
    write_profile(&mut step, task, &known).await?;
    sqlx::query!(
        r#"
        DELETE FROM kernel_profiles
         WHERE task_key IN (SELECT task_key FROM kernel_profiles
                             ORDER BY updated_at DESC, task_key OFFSET $1)
        "#,
        PROFILES_MAX,
    )
    .execute(&mut *step)
    .await
    .map_err(failed())?;
    step.commit().await.map_err(failed())
}

/// Notes the number of a node's report. Returns whether it is new.
async fn note_report(
    connection: &mut PgConnection,
    node: NodeId,
    number: u64,
) -> Result<bool, StoreError> {
    let fresh = sqlx::query!(
        r#"
        INSERT INTO kernel_reports AS last (node, number) VALUES ($1, $2::text::numeric)
        ON CONFLICT (node) DO UPDATE SET number = EXCLUDED.number
         WHERE last.number < EXCLUDED.number
        "#,
        node.as_uuid(),
        number.to_string(),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(ADD_REPORT))?;
    Ok(fresh.rows_affected() > 0)
}

async fn write_profile(
    connection: &mut PgConnection,
    task: &str,
    profile: &TaskProfile,
) -> Result<(), StoreError> {
    let row = RowRef::new("kernel_profiles", task);
    let bytes = serde_json::to_vec(profile).map_err(row.corrupt::<serde_json::Error>("profile"))?;
    sqlx::query!(
        r#"
        INSERT INTO kernel_profiles AS held (task_key, profile, kernels, measured)
        VALUES ($1, $2, $3, $4)
        ON CONFLICT (task_key) DO UPDATE
           SET profile = EXCLUDED.profile, kernels = EXCLUDED.kernels,
               measured = EXCLUDED.measured, reports = held.reports + 1, updated_at = now()
        "#,
        task,
        bytes,
        integer_len(profile.kernels().len()),
        profile.is_measured(),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(ADD_REPORT))?;
    Ok(())
}

/// Records the kernel tallies of a node's attempts. Unknown attempts, and those of other nodes, are
/// left out.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_tallies(
    connection: &mut PgConnection,
    node: NodeId,
    batch: &[KernelTally],
) -> Result<(), StoreError> {
    let attempts: Vec<_> = batch.iter().map(|tally| tally.attempt.as_uuid()).collect();
    let figures: Vec<_> = batch.iter().map(|tally| Json(tally.figures)).collect();
    sqlx::query!(
        r#"
        INSERT INTO kernel_usage AS held (attempt, figures)
        SELECT DISTINCT ON (u.attempt) u.attempt, u.figures
          FROM UNNEST($1::uuid[], $2::jsonb[]) AS u (attempt, figures)
          JOIN attempts AS a ON a.attempt = u.attempt AND a.node = $3
        ON CONFLICT (attempt) DO UPDATE SET figures = EXCLUDED.figures, updated_at = now()
        "#,
        &attempts,
        &figures as &[Json<KernelFigures>],
        node.as_uuid(),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record what attempts did in kernel queues"))
    .map(drop)
}

/// Returns the kernel tallies of a job's attempts.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn tallies_of_job(
    connection: &mut PgConnection,
    job: i64,
) -> Result<Vec<(AttemptId, KernelFigures)>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT u.attempt, u.figures AS "figures: Json<KernelFigures>"
          FROM kernel_usage AS u JOIN attempts AS a ON a.attempt = u.attempt
         WHERE a.job = $1
        "#,
        job,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what attempts did in kernel queues"))?;
    Ok(rows.into_iter().map(|row| (AttemptId::from_uuid(row.attempt), row.figures.0)).collect())
}
