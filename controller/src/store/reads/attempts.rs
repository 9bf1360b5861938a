//! Runs of jobs.

use sqlx::PgConnection;
use tessera_api_types::{AttemptView, KernelQueueUse, MemoryPredictionView, PredictionView};
use tessera_frames::cluster::KernelFigures;
use tessera_model::ids::BadId;
use tessera_model::sizing::SizeSource;
use tessera_model::{AttemptId, Bytes, DecisionId, JobId, NodeId};
use time::OffsetDateTime;

use super::predictions;
use crate::store::columns::{RowRef, bigint, job_number};
use crate::store::{StoreError, kernel_profiles};

/// Where the output of one attempt lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSource {
    /// The attempt whose output it is.
    pub attempt: AttemptId,
    /// Counts the job's attempts, from 1.
    pub number: u32,
    /// Whether it has ended.
    pub ended: bool,
    /// Whether its program was ever started.
    pub started: bool,
    /// The node that has the files.
    pub node: NodeId,
    /// Name of that node, for messages.
    pub node_name: String,
}

/// Returns where the output of an attempt lies: of the newest one, if none is named.
pub(super) async fn log_source(
    at: &mut PgConnection,
    job: JobId,
    number: Option<u32>,
) -> Result<Option<LogSource>, StoreError> {
    let row = sqlx::query!(
        r#"
        SELECT a.attempt, a.number, a.live, a.state, a.started_at, a.node, n.name
          FROM attempts AS a
          JOIN nodes AS n ON n.node = a.node
         WHERE a.job = $1 AND ($2::bigint IS NULL OR a.number = $2)
         ORDER BY a.number DESC
         LIMIT 1
        "#,
        job_number(job),
        number.map(i64::from),
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("find an attempt"))?;
    row.map(|row| {
        Ok(LogSource {
            number: RowRef::new(TABLE, row.attempt).number("number", row.number)?,
            attempt: AttemptId::from_uuid(row.attempt),
            ended: !row.live,
            started: row.started_at.is_some() || row.state == "running" || row.state == "stopping",
            node: NodeId::from_uuid(row.node),
            node_name: row.name,
        })
    })
    .transpose()
}

/// Lists the attempts of a job, oldest first.
pub(super) async fn of_job(
    at: &mut PgConnection,
    job: u64,
) -> Result<Vec<AttemptView>, StoreError> {
    let rows = sqlx::query_as!(
        AttemptRow,
        r#"
        SELECT a.attempt, a.number, a.state, n.name AS node, a.gpu, a.gpu_index, a.start, a.profile,
               a.slice, a.decision, a.placed_at, a.started_at, a.ended_at, a.exit_code, a.detail,
               a.user_ms, a.system_ms, a.max_rss, a.energy_mj, a.peak_gpu_memory,
               a.gpu_memory, a.size_source, a.sm_percent, a.share_bytes,
               a.compute_slices
          FROM attempts AS a
          JOIN nodes AS n ON n.node = a.node
         WHERE a.job = $1
         ORDER BY a.number
        "#,
        bigint(job),
    )
    .fetch_all(&mut *at)
    .await
    .map_err(StoreError::while_trying_to("list the attempts of a job"))?;
    let mut attempts: Vec<_> =
        rows.into_iter().map(AttemptView::try_from).collect::<Result<_, StoreError>>()?;
    let mut predictions = predictions::of_job(at, bigint(job)).await?;
    let mut memory = predictions::memory_of_job(at, bigint(job)).await?;
    let mut colocations = predictions::colocations_of_job(at, bigint(job)).await?;
    for attempt in &mut attempts {
        attempt.prediction = predictions.remove(&attempt.id);
        attempt.memory_prediction = memory.remove(&attempt.id);
        attempt.colocation_prediction = colocations.remove(&attempt.id);
    }
    for (id, figures) in kernel_profiles::tallies_of_job(at, bigint(job)).await? {
        let id = id.to_string();
        if let Some(attempt) = attempts.iter_mut().find(|attempt| attempt.id == id) {
            attempt.kernel = Some(kernel_use(&figures));
        }
    }
    Ok(attempts)
}

/// Returns where the size of a job's newest attempt came from, and the memory that it was given.
pub(super) async fn newest_size(
    at: &mut PgConnection,
    job: i64,
) -> Result<Option<(SizeSource, Bytes)>, StoreError> {
    let found = sqlx::query!(
        r#"
        SELECT a.attempt, a.size_source AS "source!", a.gpu_memory AS "gpu_memory!"
          FROM jobs AS j JOIN attempts AS a ON a.attempt = j.last_attempt
         WHERE j.job = $1 AND a.size_source IS NOT NULL AND a.gpu_memory IS NOT NULL
        "#,
        job,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("read the size of a job's newest attempt"))?;
    let Some(found) = found else { return Ok(None) };
    let row = RowRef::new(TABLE, AttemptId::from_uuid(found.attempt));
    let source = found.source.parse().map_err(row.corrupt::<BadId>("size_source"))?;
    Ok(Some((source, row.bytes("gpu_memory", found.gpu_memory)?)))
}

/// Returns the predictions of a job's newest attempt: its run time and its memory.
pub(super) async fn newest_prediction(
    at: &mut PgConnection,
    job: i64,
) -> Result<(Option<PredictionView>, Option<MemoryPredictionView>), StoreError> {
    let newest = sqlx::query_scalar!("SELECT last_attempt FROM jobs WHERE job = $1", job)
        .fetch_optional(&mut *at)
        .await
        .map_err(StoreError::while_trying_to("find a job's newest attempt"))?;
    let Some(newest) = newest.flatten() else { return Ok((None, None)) };
    let newest = AttemptId::from_uuid(newest).to_string();
    let time = predictions::of_job(at, job).await?.remove(&newest);
    let memory = predictions::memory_of_job(at, job).await?.remove(&newest);
    Ok((time, memory))
}

fn kernel_use(figures: &KernelFigures) -> KernelQueueUse {
    let secs = |nanos| std::time::Duration::from_nanos(nanos).as_secs_f64();
    let whole = figures.filled_ns.saturating_add(figures.waited_ns);
    KernelQueueUse {
        processes: figures.sessions,
        launches: figures.launches,
        launches_unreported: figures.passed,
        gaps_seen: figures.gaps_seen,
        gaps_filled: figures.gaps_filled,
        early_stops: figures.early_stops,
        overshoots: figures.overshoots,
        overshoot_secs_max: secs(figures.overshoot_max_ns),
        filled_kernels: figures.filled_kernels,
        filled_secs: secs(figures.filled_ns),
        waits: figures.waits,
        waited_secs: secs(figures.waited_ns),
        waited_secs_max: secs(figures.waited_max_ns),
        progress: (whole > 0).then(|| secs(figures.filled_ns) / secs(whole)),
        aged: figures.aged,
        ungranted: figures.ungranted,
        drifts: figures.drifts,
        records_lost: figures.lost,
        memory_peak_bytes: figures.memory_peak_bytes,
        colocated: figures.colocated,
        processes_raised: figures.raised,
        grants_ahead: figures.grants_ahead,
        grants_ahead_used: figures.grants_ahead_used,
    }
}

struct AttemptRow {
    attempt: uuid::Uuid,
    number: i32,
    state: String,
    node: String,
    gpu: String,
    gpu_index: i32,
    start: Option<i16>,
    profile: String,
    slice: Option<String>,
    decision: uuid::Uuid,
    placed_at: OffsetDateTime,
    started_at: Option<OffsetDateTime>,
    ended_at: Option<OffsetDateTime>,
    exit_code: Option<String>,
    detail: Option<String>,
    user_ms: Option<i64>,
    system_ms: Option<i64>,
    max_rss: Option<i64>,
    energy_mj: Option<i64>,
    peak_gpu_memory: Option<i64>,
    gpu_memory: Option<i64>,
    size_source: Option<String>,
    sm_percent: Option<i16>,
    share_bytes: Option<i64>,
    compute_slices: Option<i16>,
}

impl AttemptRow {
    /// Returns how the attempt uses its slice.
    const fn share(&self) -> &'static str {
        match (self.share_bytes, self.sm_percent, self.compute_slices) {
            // A compute instance is its job's alone.
            (None, _, _) | (Some(_), _, Some(_)) => "exclusive",
            (Some(_), Some(_), None) => "mps",
            (Some(_), None, None) => "kernel",
        }
    }
}

impl TryFrom<AttemptRow> for AttemptView {
    type Error = StoreError;

    fn try_from(row: AttemptRow) -> Result<Self, StoreError> {
        let at = RowRef::new(TABLE, AttemptId::from_uuid(row.attempt));
        let share = row.share().to_owned();
        // Thousandths of a second or of a joule.
        let secs = |column, millis: Option<i64>| {
            Ok::<_, StoreError>(at.optional_number(column, millis)?.map(seconds))
        };
        Ok(Self {
            id: at.key().to_string(),
            number: at.number("number", row.number)?,
            state: row.state,
            node: row.node,
            gpu: row.gpu,
            gpu_index: Some(at.number("gpu_index", row.gpu_index)?),
            slice: row.slice,
            profile: row.profile,
            start_slice: at.optional_number("start", row.start)?,
            decision: Some(DecisionId::from_uuid(row.decision).to_string()),
            placed_at: row.placed_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
            exit_code: row.exit_code,
            detail: row.detail.filter(|text| !text.is_empty()),
            user_secs: secs("user_ms", row.user_ms)?,
            system_secs: secs("system_ms", row.system_ms)?,
            max_rss_bytes: at.optional_number("max_rss", row.max_rss)?,
            gpu_energy_joules: secs("energy_mj", row.energy_mj)?,
            gpu_memory_peak_bytes: at.optional_number("peak_gpu_memory", row.peak_gpu_memory)?,
            gpu_memory_bytes: None,
            gpu_memory_given_bytes: at.optional_number("gpu_memory", row.gpu_memory)?,
            share: Some(share),
            sm_percent: at.optional_number("sm_percent", row.sm_percent)?,
            size_source: row.size_source,
            kernel: None,
            prediction: None,
            memory_prediction: None,
            colocation_prediction: None,
        })
    }
}

const TABLE: &str = "attempts";

fn seconds(millis: u64) -> f64 {
    std::time::Duration::from_millis(millis).as_secs_f64()
}
