//! What was foretold of attempts, and what came of it.

use sqlx::PgConnection;
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::SliceKind;
use tessera_predict::Trained;
use tessera_predict::drift::WINDOW;
use tessera_predict::memory::{Floor, Shown};
use uuid::Uuid;

use super::StoreError;
use super::moves::Reservation;
use crate::core::floors::MemoryLesson;
use crate::core::foresight::{Aside, Lesson};

/// Most runs that a leader learns again from the store: a day of a large cluster, read in a moment.
const LESSONS_MAX: i64 = 20_000;
/// Most moves that a leader learns again: enough for each task that moves to have its own.
const MOVES_MAX: i64 = 5_000;

/// What is foretold of a batch of reservations, as columns.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub(super) attempts: Vec<Uuid>,
    pub(super) tasks: Vec<String>,
    pub(super) models: Vec<String>,
    pub(super) profiles: Vec<String>,
    pub(super) parts: Vec<i16>,
    pub(super) wholes: Vec<bool>,
    pub(super) bases: Vec<Option<String>>,
    pub(super) runs: Vec<Option<i32>>,
    pub(super) lows: Vec<Option<i64>>,
    pub(super) expected: Vec<Option<i64>>,
    pub(super) highs: Vec<Option<i64>>,
    pub(super) models_said: Vec<Option<i64>>,
    pub(super) memory_runs: Vec<Option<i32>>,
    pub(super) memory_lows: Vec<Option<i64>>,
    pub(super) memory_floors: Vec<Option<i64>>,
    pub(super) memory_highs: Vec<Option<i64>>,
    pub(super) memory_cautious: Vec<Option<bool>>,
}

impl Columns {
    pub(super) fn of(batch: &[Reservation]) -> Self {
        let mut columns = Self::default();
        let signed = |time: Millis| i64::try_from(time.get()).unwrap_or(i64::MAX);
        for reservation in batch {
            let Some(foretold) = &reservation.foretold else { continue };
            let known = foretold.prediction;
            columns.attempts.push(reservation.attempt.as_uuid());
            columns.tasks.push(foretold.task.clone());
            columns.models.push(foretold.on.model.clone());
            columns.profiles.push(foretold.on.profile.clone());
            columns.parts.push(i16::try_from(foretold.on.part).unwrap_or(0));
            columns.wholes.push(foretold.whole);
            columns.bases.push(known.map(|known| known.basis.word().to_owned()));
            columns.runs.push(known.map(|known| i32::try_from(known.runs).unwrap_or(i32::MAX)));
            columns.lows.push(known.map(|known| signed(known.low)));
            columns.expected.push(known.map(|known| signed(known.expected)));
            columns.highs.push(known.map(|known| signed(known.high)));
            columns.models_said.push(foretold.model.map(u64::cast_signed));
            let memory = reservation.memory;
            let bytes = |of: fn(&Floor) -> Bytes| {
                memory.as_ref().map(|floor| i64::try_from(of(floor).get()).unwrap_or(i64::MAX))
            };
            let runs = memory.map(|floor| i32::try_from(floor.runs).unwrap_or(i32::MAX));
            columns.memory_runs.push(runs);
            columns.memory_lows.push(bytes(|floor| floor.low));
            columns.memory_floors.push(bytes(|floor| floor.value));
            columns.memory_highs.push(bytes(|floor| floor.high));
            columns.memory_cautious.push(memory.map(|floor| floor.cautious));
        }
        columns
    }
}

/// Reads the newest runs, the oldest of them first.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn lessons(connection: &mut PgConnection) -> Result<Vec<Lesson>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.task, p.gpu_model, p.profile, p.part,
               COALESCE(p.useful_ms, p.ran_ms) AS "ran_ms!"
          FROM predictions AS p
         WHERE (p.whole OR p.useful_ms IS NOT NULL) AND p.ended_at IS NOT NULL AND p.task <> ''
         ORDER BY p.ended_at DESC, p.attempt DESC
         LIMIT $1
        "#,
        LESSONS_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what ran"))?;
    let lessons = rows.into_iter().rev().map(|row| Lesson {
        task: row.task,
        on: kind(row.gpu_model, row.profile, row.part),
        ran: millis(row.ran_ms),
    });
    Ok(lessons.collect())
}

/// Reads what memory the newest runs had, the oldest of them first.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn memories(connection: &mut PgConnection) -> Result<Vec<MemoryLesson>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.task, p.ran_out_of, a.peak_gpu_memory, p.memory_runs, p.memory_low, p.memory_floor,
               p.memory_high, p.memory_cautious
          FROM predictions AS p JOIN attempts AS a ON a.attempt = p.attempt
         WHERE p.memory_at IS NOT NULL AND p.task <> ''
         ORDER BY p.memory_at DESC, p.attempt DESC
         LIMIT $1
        "#,
        LESSONS_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what memory runs had"))?;
    let lessons = rows.into_iter().rev().map(|row| {
        let told = || {
            Some(Floor {
                runs: u32::try_from(row.memory_runs?).unwrap_or(0),
                low: bytes(row.memory_low?),
                value: bytes(row.memory_floor?),
                high: bytes(row.memory_high?),
                // Of no matter for what came of it.
                ran_out_of: None,
                cautious: row.memory_cautious?,
            })
        };
        let shown = match row.ran_out_of {
            Some(slice) => Shown::OutOf(bytes(slice)),
            None => Shown::Peak(bytes(row.peak_gpu_memory.unwrap_or(0))),
        };
        MemoryLesson { told: told(), task: row.task, shown }
    });
    Ok(lessons.collect())
}

/// Reads which of a model's newest predictions came true, the oldest of them first: whether what ran
/// lay within the interval.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn outcomes(
    connection: &mut PgConnection,
    fingerprint: u64,
) -> Result<Vec<bool>, StoreError> {
    let mut came = sqlx::query_scalar!(
        r#"
        SELECT ran_ms BETWEEN low_ms AND high_ms AS "came!"
          FROM predictions
         WHERE model = $1 AND basis = 'learned' AND ended_at IS NOT NULL
         ORDER BY ended_at DESC, attempt DESC
         LIMIT $2
        "#,
        fingerprint.cast_signed(),
        i64::try_from(WINDOW).unwrap_or(i64::MAX),
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what came of predictions"))?;
    came.reverse();
    Ok(came)
}

/// Reads what the newest moves of tasks took, the oldest of them first.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn moves(connection: &mut PgConnection) -> Result<Vec<(String, Millis)>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.task, p.moved_ms AS "moved_ms!"
          FROM predictions AS p JOIN attempts AS a ON a.attempt = p.attempt
         WHERE p.moved_ms IS NOT NULL AND p.task <> ''
         ORDER BY a.started_at DESC, p.attempt DESC
         LIMIT $1
        "#,
        MOVES_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what moves took"))?;
    Ok(rows.into_iter().rev().map(|row| (row.task, millis(row.moved_ms))).collect())
}

/// Reads what attempts of unfinished jobs put aside.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn asides(connection: &mut PgConnection) -> Result<Vec<Aside>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT a.job, p.gpu_model, p.profile, p.part, p.aside_ms AS "aside_ms!"
          FROM predictions AS p
          JOIN attempts AS a ON a.attempt = p.attempt
          JOIN jobs AS j ON j.job = a.job
         WHERE p.aside_ms IS NOT NULL AND j.ended_at IS NULL
         ORDER BY p.attempt
        "#,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what was put aside"))?;
    let asides = rows.into_iter().map(|row| Aside {
        job: JobId::from_number(u64::try_from(row.job).unwrap_or(0)),
        on: kind(row.gpu_model, row.profile, row.part),
        ran: millis(row.aside_ms),
    });
    Ok(asides.collect())
}

/// How much history there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    runs: u64,
}

impl Progress {
    /// Returns how many runs have ended since; all of them if history was forgotten meanwhile.
    pub const fn runs_since(self, earlier: Self) -> u64 {
        match self.runs.checked_sub(earlier.runs) {
            Some(more) => more,
            None => self.runs,
        }
    }
}

/// Counts the runs that may be learned from.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn progress(connection: &mut PgConnection) -> Result<Progress, StoreError> {
    let runs = sqlx::query_scalar!(
        r#"SELECT COUNT(*) AS "runs!" FROM predictions WHERE ended_at IS NOT NULL"#
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("count what ran"))?;
    Ok(Progress { runs: u64::try_from(runs).unwrap_or(0) })
}

/// Most models that are remembered, the newest of them: a week of one every ten minutes.
const MODELS_MAX: i64 = 1_000;

/// What a model is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// How slices compare.
    Slices,
    /// How jobs do beside others.
    Company,
}

/// Remembers a model that was trained.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn keep_model(
    connection: &mut PgConnection,
    trained: &Trained,
    about: About,
) -> Result<(), StoreError> {
    let about = match about {
        About::Slices => "slices",
        About::Company => "company",
    };
    let count = |rows: u64| i64::try_from(rows).unwrap_or(i64::MAX);
    sqlx::query!(
        r#"
        WITH old AS (
            DELETE FROM predictors
             WHERE trained_at < (SELECT MIN(trained_at)
                                   FROM (SELECT trained_at FROM predictors
                                          ORDER BY trained_at DESC LIMIT $7) AS newest)
        )
        INSERT INTO predictors (fingerprint, learner, rows, held_out_rows, held_out_error, covered,
                                about)
        VALUES ($1, $2, $3, $4, $5, $6, $8)
        ON CONFLICT (fingerprint) DO UPDATE SET trained_at = now()
        "#,
        trained.version.fingerprint.cast_signed(),
        trained.kind.name(),
        count(trained.version.rows),
        count(trained.held_out.rows),
        trained.held_out.absolute,
        trained.held_out.covered,
        MODELS_MAX,
        about,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("remember a model"))
    .map(drop)
}

fn kind(model: String, profile: String, part: i16) -> SliceKind {
    SliceKind { model, profile, part: u16::try_from(part).unwrap_or(0) }
}

fn bytes(value: i64) -> Bytes {
    Bytes::new(u64::try_from(value).unwrap_or(0))
}

fn millis(value: i64) -> Millis {
    Millis::new(u64::try_from(value).unwrap_or(0))
}
