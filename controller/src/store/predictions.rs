//! Predictions of attempts' run times and memory, with their outcomes.

use serde::Serialize;
use sqlx::PgConnection;
use tessera_model::{AttemptId, Bytes, Millis};
use tessera_placement::SliceKind;
use tessera_predict::TrainedModel;
use tessera_predict::drift::WINDOW;
use tessera_predict::memory::{MemoryEstimate, MemoryEvidence};
use uuid::Uuid;

use super::StoreError;
use super::columns::{RowRef, bigint, integer, integer_len, row_count};
use tessera_control::predictions::{JobCheckpoint, MemorySample, RunSample};
use tessera_control::rows::transitions::Reservation;

/// Maximum number of training samples that a leader reads when it starts: a day of a large cluster,
/// in a moment.
const SAMPLES_MAX: i64 = 20_000;
/// Maximum number of migrations that a leader reads when it starts: enough for each task that
/// migrates.
const MIGRATIONS_MAX: i64 = 5_000;

/// What is predicted of a new attempt, as the statement that places it reads it.
#[derive(Debug, Serialize)]
pub(super) struct PredictionRecord<'a> {
    attempt: Uuid,
    task: &'a str,
    gpu_model: &'a str,
    profile: &'a str,
    compute_permille: u16,
    whole: bool,
    basis: Option<&'static str>,
    runs: Option<i32>,
    low_ms: Option<i64>,
    expected_ms: Option<i64>,
    high_ms: Option<i64>,
    model: Option<i64>,
    memory_runs: Option<i32>,
    memory_low: Option<i64>,
    memory_estimate: Option<i64>,
    memory_high: Option<i64>,
    memory_cautious: Option<bool>,
}

impl<'a> PredictionRecord<'a> {
    /// Returns the record of an attempt that has a slice to itself; there is none of a sharer.
    pub(super) fn of(reservation: &'a Reservation) -> Option<Self> {
        let predicted = reservation.run_prediction.as_ref()?;
        let time = predicted.prediction;
        let memory = reservation.memory.as_ref();
        Some(Self {
            attempt: reservation.attempt.as_uuid(),
            task: &predicted.task,
            gpu_model: &predicted.on.model,
            profile: &predicted.on.profile,
            compute_permille: predicted.on.part,
            whole: predicted.whole,
            basis: time.map(|time| time.basis.word()),
            runs: time.map(|time| integer(time.runs)),
            low_ms: time.map(|time| bigint(time.low.get())),
            expected_ms: time.map(|time| bigint(time.expected.get())),
            high_ms: time.map(|time| bigint(time.high.get())),
            model: predicted.model.map(u64::cast_signed),
            memory_runs: memory.map(|memory| integer(memory.runs)),
            memory_low: memory.map(|memory| bigint(memory.low.get())),
            memory_estimate: memory.map(|memory| bigint(memory.value.get())),
            memory_high: memory.map(|memory| bigint(memory.high.get())),
            memory_cautious: memory.map(|memory| memory.cautious),
        })
    }
}

/// Reads the newest runs, the oldest of them first, as training samples of run times.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn read_run_samples(connection: &mut PgConnection) -> Result<Vec<RunSample>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.attempt, p.task, p.gpu_model, p.profile, p.compute_permille,
               COALESCE(p.useful_ms, p.ran_ms) AS "ran_ms!"
          FROM predictions AS p
         WHERE (p.whole OR p.useful_ms IS NOT NULL) AND p.ended_at IS NOT NULL AND p.task <> ''
         ORDER BY p.ended_at DESC, p.attempt DESC
         LIMIT $1
        "#,
        SAMPLES_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read how long runs took"))?;
    let samples = rows.into_iter().rev().map(|found| {
        let row = RowRef::new(TABLE, found.attempt);
        Ok(RunSample {
            task: found.task,
            on: slice_kind(row, found.gpu_model, found.profile, found.compute_permille)?,
            ran: row.millis("ran_ms", found.ran_ms)?,
        })
    });
    samples.collect()
}

/// Reads what memory the newest runs used, the oldest of them first, as training samples.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn read_memory_samples(
    connection: &mut PgConnection,
) -> Result<Vec<MemorySample>, StoreError> {
    let rows = sqlx::query_as!(
        MemoryRow,
        r#"
        SELECT p.attempt, p.task, p.gpu_model, p.ran_out_of, a.peak_gpu_memory,
               a.gpu_memory AS "gpu_memory!", p.memory_runs, p.memory_low,
               p.memory_estimate, p.memory_high, p.memory_cautious,
               COALESCE((g.curve ->> 'preallocated')::boolean, FALSE) AS "preallocated!"
          FROM predictions AS p JOIN attempts AS a ON a.attempt = p.attempt
          LEFT JOIN memory_growths AS g ON g.attempt = p.attempt
         WHERE p.memory_outcome_at IS NOT NULL AND p.task <> '' AND a.gpu_memory IS NOT NULL
         ORDER BY p.memory_outcome_at DESC, p.attempt DESC
         LIMIT $1
        "#,
        SAMPLES_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what memory runs used"))?;
    rows.into_iter().rev().map(MemorySample::try_from).collect()
}

struct MemoryRow {
    attempt: Uuid,
    task: String,
    gpu_model: String,
    ran_out_of: Option<i64>,
    peak_gpu_memory: Option<i64>,
    gpu_memory: i64,
    memory_runs: Option<i32>,
    memory_low: Option<i64>,
    memory_estimate: Option<i64>,
    memory_high: Option<i64>,
    memory_cautious: Option<bool>,
    preallocated: bool,
}

impl TryFrom<MemoryRow> for MemorySample {
    type Error = StoreError;

    fn try_from(found: MemoryRow) -> Result<Self, StoreError> {
        let row = RowRef::new(TABLE, found.attempt);
        let prediction = found.estimate(row)?;
        let shown = match (found.ran_out_of, found.peak_gpu_memory) {
            (Some(slice), _) => MemoryEvidence::OutOf(row.bytes("ran_out_of", slice)?),
            // Nothing was measured, but its slice was enough.
            (None, _) if found.preallocated => MemoryEvidence::Peak(Bytes::ZERO),
            (None, peak) => MemoryEvidence::Peak(row.bytes("peak_gpu_memory", peak.unwrap_or(0))?),
        };
        Ok(Self {
            attempt: AttemptId::from_uuid(found.attempt),
            slice: row.bytes("gpu_memory", found.gpu_memory)?,
            prediction,
            task: found.task,
            gpu_model: found.gpu_model,
            evidence: shown,
        })
    }
}

impl MemoryRow {
    /// Returns what was predicted; nothing of a job that named its memory.
    fn estimate(&self, row: RowRef<Uuid>) -> Result<Option<MemoryEstimate>, StoreError> {
        let (Some(runs), Some(low), Some(value), Some(high), Some(cautious)) = (
            self.memory_runs,
            self.memory_low,
            self.memory_estimate,
            self.memory_high,
            self.memory_cautious,
        ) else {
            return Ok(None);
        };
        Ok(Some(MemoryEstimate {
            runs: row.number("memory_runs", runs)?,
            low: row.bytes("memory_low", low)?,
            value: row.bytes("memory_estimate", value)?,
            high: row.bytes("memory_high", high)?,
            // It doesn't matter for the outcome.
            ran_out_of: None,
            cautious,
        }))
    }
}

/// Reads which of a model's newest predictions were accurate, the oldest of them first: whether the
/// run time lay within the interval.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn read_outcomes(
    connection: &mut PgConnection,
    fingerprint: u64,
) -> Result<Vec<bool>, StoreError> {
    let mut outcomes = sqlx::query_scalar!(
        r#"
        SELECT ran_ms BETWEEN low_ms AND high_ms AS "within!"
          FROM predictions
         WHERE model = $1 AND basis = 'learned' AND ended_at IS NOT NULL
         ORDER BY ended_at DESC, attempt DESC
         LIMIT $2
        "#,
        fingerprint.cast_signed(),
        i64::from(integer_len(WINDOW)),
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the outcomes of predictions"))?;
    outcomes.reverse();
    Ok(outcomes)
}

/// Reads how long the newest migrations of tasks took, the oldest of them first.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn read_migration_times(
    connection: &mut PgConnection,
) -> Result<Vec<(String, Millis)>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.attempt, p.task, p.migration_ms AS "migration_ms!"
          FROM predictions AS p JOIN attempts AS a ON a.attempt = p.attempt
         WHERE p.migration_ms IS NOT NULL AND p.task <> ''
         ORDER BY a.started_at DESC, p.attempt DESC
         LIMIT $1
        "#,
        MIGRATIONS_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read how long migrations took"))?;
    let times = rows.into_iter().rev().map(|found| {
        let took = RowRef::new(TABLE, found.attempt).millis("migration_ms", found.migration_ms)?;
        Ok((found.task, took))
    });
    times.collect()
}

/// Reads what attempts of unfinished jobs checkpointed.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn read_checkpoints(
    connection: &mut PgConnection,
) -> Result<Vec<JobCheckpoint>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.attempt, a.job, p.gpu_model, p.profile, p.compute_permille,
               p.checkpoint_ms AS "checkpoint_ms!"
          FROM predictions AS p
          JOIN attempts AS a ON a.attempt = p.attempt
          JOIN jobs AS j ON j.job = a.job
         WHERE p.checkpoint_ms IS NOT NULL AND j.ended_at IS NULL
         ORDER BY p.attempt
        "#,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read checkpoints"))?;
    let checkpoints = rows.into_iter().map(|found| {
        let row = RowRef::new(TABLE, found.attempt);
        Ok(JobCheckpoint {
            job: row.job("job", found.job)?,
            on: slice_kind(row, found.gpu_model, found.profile, found.compute_permille)?,
            ran: row.millis("checkpoint_ms", found.checkpoint_ms)?,
        })
    });
    checkpoints.collect()
}

/// How many training samples there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCount {
    runs: u64,
}

impl SampleCount {
    /// Returns how many runs have ended since; all of them if old ones were removed meanwhile.
    pub const fn runs_since(self, earlier: Self) -> u64 {
        match self.runs.checked_sub(earlier.runs) {
            Some(more) => more,
            None => self.runs,
        }
    }
}

/// Counts the runs that a model may be trained on.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn count_samples(connection: &mut PgConnection) -> Result<SampleCount, StoreError> {
    let runs = sqlx::query_scalar!(
        r#"SELECT COUNT(*) AS "runs!" FROM predictions WHERE ended_at IS NOT NULL"#
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("count runs"))?;
    Ok(SampleCount { runs: row_count(runs) })
}

/// Maximum number of models that are remembered, the newest of them: a week of one every ten
/// minutes.
const MODELS_MAX: i64 = 1_000;

/// What a model predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSubject {
    /// How slices compare in speed.
    Slices,
    /// How fast jobs are next to co-runners.
    Colocation,
}

impl ModelSubject {
    /// Returns the name in the store and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slices => "slices",
            Self::Colocation => "colocation",
        }
    }
}

/// Records a model that was trained.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_model(
    connection: &mut PgConnection,
    trained: &TrainedModel,
    subject: ModelSubject,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"
        WITH old AS (
            DELETE FROM predictors
             WHERE trained_at < (SELECT MIN(trained_at)
                                   FROM (SELECT trained_at FROM predictors
                                          ORDER BY trained_at DESC LIMIT $7) AS newest)
        )
        INSERT INTO predictors (fingerprint, learner, rows, held_out_rows, held_out_error, covered,
                                subject)
        VALUES ($1, $2, $3, $4, $5, $6, $8)
        ON CONFLICT (fingerprint) DO UPDATE SET trained_at = now()
        "#,
        trained.version.fingerprint.cast_signed(),
        trained.kind.name(),
        bigint(trained.version.rows),
        bigint(trained.held_out.rows),
        trained.held_out.absolute,
        trained.held_out.covered,
        MODELS_MAX,
        subject.name(),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record a model"))
    .map(drop)
}

const TABLE: &str = "predictions";

/// Reads the kind of slice that an attempt ran on.
pub(super) fn slice_kind(
    row: RowRef<Uuid>,
    model: String,
    profile: String,
    compute_permille: i16,
) -> Result<SliceKind, StoreError> {
    let part = row.number("compute_permille", compute_permille)?;
    Ok(SliceKind { model, profile, part })
}
