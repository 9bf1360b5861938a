//! Co-locations: attempts that share slices under MPS, with their predicted and measured speeds.

use serde::Serialize;
use sqlx::PgConnection;
use tessera_model::AttemptId;
use tessera_predict::colocation::SharingClient;
use tessera_predict::drift::WINDOW;
use uuid::Uuid;

use super::StoreError;
use super::columns::{RowRef, integer, integer_len, json_text, smallint};
use super::predictions::slice_kind;
use tessera_control::colocation::{ColocationOutcome, ColocationPrediction, STEADY, SharedRun};
use tessera_control::predictions::OutcomeCounts;
use tessera_control::rows::transitions::Reservation;

/// Newest attempts that are looked at: some days of a large cluster's sharers.
const RUNS_MAX: i64 = 10_000;

/// Writes what is predicted of a batch's attempts next to their co-runners.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub(super) async fn insert_predictions(
    connection: &mut PgConnection,
    batch: &[Reservation],
) -> Result<(), StoreError> {
    let rows = batch.iter().filter_map(|r| Some(ColocationRecord::of(r, r.colocation.as_ref()?)));
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        INSERT INTO colocations (attempt, task, gpu_model, profile, compute_permille, sm_percent,
                                 online, busy_permille, corunners, speed_low, speed_predicted,
                                 speed_high, model)
        SELECT u.attempt, u.task, u.gpu_model, u.profile, u.compute_permille, u.sm_percent,
               u.online, u.busy_permille, u.corunners, u.speed_low, u.speed_predicted,
               u.speed_high, u.model
          FROM json_to_recordset($1::text::json)
            AS u (attempt uuid, task text, gpu_model text, profile text,
                  compute_permille smallint, sm_percent smallint, online boolean,
                  busy_permille smallint, corunners smallint, speed_low integer,
                  speed_predicted integer, speed_high integer, model bigint)
        "#,
        json_text(&rows),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("write predictions of co-locations"))
    .map(drop)
}

/// A new attempt under MPS, as the statement reads it.
#[derive(Debug, Serialize)]
struct ColocationRecord<'a> {
    attempt: Uuid,
    task: &'a str,
    gpu_model: &'a str,
    profile: &'a str,
    compute_permille: u16,
    sm_percent: u8,
    online: bool,
    busy_permille: Option<u16>,
    corunners: i16,
    speed_low: Option<i32>,
    speed_predicted: Option<i32>,
    speed_high: Option<i32>,
    model: Option<i64>,
}

impl<'a> ColocationRecord<'a> {
    fn of(reservation: &Reservation, predicted: &'a ColocationPrediction) -> Self {
        let (speed, model) = predicted.speed.unzip();
        Self {
            attempt: reservation.attempt.as_uuid(),
            task: &predicted.task,
            gpu_model: &predicted.on.model,
            profile: &predicted.on.profile,
            compute_permille: predicted.on.part,
            sm_percent: predicted.client.sm.get(),
            online: predicted.client.online,
            busy_permille: predicted.client.busy,
            corunners: smallint(predicted.others),
            speed_low: speed.map(|speed| integer(speed.low)),
            speed_predicted: speed.map(|speed| integer(speed.value)),
            speed_high: speed.map(|speed| integer(speed.high)),
            model: model.map(u64::cast_signed),
        }
    }
}

/// Reads the newest attempts under MPS whose programs began, the running ones among them.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`].
pub async fn read_shared_runs(connection: &mut PgConnection) -> Result<Vec<SharedRun>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT c.attempt, a.gpu, COALESCE(a.start, 0::smallint) AS "start!", c.task, c.gpu_model,
               c.profile, c.compute_permille, c.sm_percent, c.online, c.busy_permille,
               (EXTRACT(EPOCH FROM a.started_at) * 1000)::bigint AS "began!",
               (EXTRACT(EPOCH FROM COALESCE(a.ended_at, now())) * 1000)::bigint AS "ended!",
               (a.state = 'succeeded' AND a.number = 1) AS "whole!"
          FROM colocations AS c JOIN attempts AS a ON a.attempt = c.attempt
         WHERE a.started_at IS NOT NULL
         ORDER BY c.attempt DESC
         LIMIT $1
        "#,
        RUNS_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the runs that shared slices"))?;
    let runs = rows.into_iter().rev().map(|found| {
        let row = RowRef::new(TABLE, found.attempt);
        let gpu = found.gpu.parse().map_err(row.corrupt::<tessera_model::ids::BadId>("gpu"))?;
        Ok(SharedRun {
            attempt: AttemptId::from_uuid(found.attempt),
            place: (gpu, found.start),
            task: found.task,
            on: slice_kind(row, found.gpu_model, found.profile, found.compute_permille)?,
            client: SharingClient {
                online: found.online,
                sm_percent: row.number("sm_percent", found.sm_percent)?,
                busy: row.optional_number("busy_permille", found.busy_permille)?,
            },
            began: row.millis("started_at", found.began)?,
            ended: row.millis("ended_at", found.ended)?,
            whole: found.whole,
        })
    });
    runs.collect()
}

/// Counts the attempts that have ended, whether they shared their slices or not. As long as the count
/// stays, no outcome of a co-location can have become known. Where as many attempts were removed as
/// ended meanwhile, the next end changes it.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn count_ended(connection: &mut PgConnection) -> Result<i64, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT (SELECT COUNT(*) FROM predictions WHERE ended_at IS NOT NULL)
             + (SELECT COUNT(*)
                  FROM colocations AS c JOIN attempts AS a ON a.attempt = c.attempt
                 WHERE a.ended_at IS NOT NULL) AS "ended!"
        "#
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("count ended attempts"))
}

/// The outcomes that became known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewOutcomes {
    /// Of how many attempts.
    pub all: u64,
    /// How many predictions were accurate, of attempts whose co-runners stayed as predicted.
    pub outcomes: OutcomeCounts,
}

/// Records outcomes of attempts; those that are recorded already stay as they are.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_outcomes(
    connection: &mut PgConnection,
    batch: &[ColocationOutcome],
) -> Result<NewOutcomes, StoreError> {
    let attempts: Vec<Uuid> = batch.iter().map(|outcome| outcome.attempt.as_uuid()).collect();
    let speeds: Vec<_> = batch.iter().map(|outcome| integer(outcome.speed)).collect();
    let corunners: Vec<_> = batch.iter().map(|outcome| integer(outcome.co_runners)).collect();
    // NULL where nothing was predicted, or the co-runners were others than those of the prediction.
    let recorded = sqlx::query_scalar!(
        r#"
        UPDATE colocations AS c
           SET speed_outcome = u.speed, corunners_outcome = u.corunners, outcome_at = now()
          FROM UNNEST($1::uuid[], $2::integer[], $3::integer[]) AS u (attempt, speed, corunners)
         WHERE c.attempt = u.attempt AND c.outcome_at IS NULL
        RETURNING CASE WHEN ABS(u.corunners - c.corunners * 1000) <= $4
                       THEN u.speed BETWEEN c.speed_low AND c.speed_high END AS within
        "#,
        &attempts,
        &speeds,
        &corunners,
        integer(STEADY),
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("record the outcomes of co-locations"))?;
    let mut new = NewOutcomes::default();
    for within in recorded {
        new.all += 1;
        if let Some(within) = within {
            new.outcomes.take(within);
        }
    }
    Ok(new)
}

/// Reads which of a model's newest predictions were accurate, the oldest of them first; only of
/// attempts whose co-runners stayed as predicted.
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
        SELECT speed_outcome BETWEEN speed_low AND speed_high AS "within!"
          FROM colocations
         WHERE model = $1 AND outcome_at IS NOT NULL
           AND ABS(corunners_outcome - corunners * 1000) <= $2
         ORDER BY outcome_at DESC, attempt DESC
         LIMIT $3
        "#,
        fingerprint.cast_signed(),
        integer(STEADY),
        i64::from(integer_len(WINDOW)),
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the outcomes of co-locations"))?;
    outcomes.reverse();
    Ok(outcomes)
}

const TABLE: &str = "colocations";
