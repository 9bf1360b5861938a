//! How attempts did that shared slices under MPS.

use sqlx::PgConnection;
use tessera_model::{AttemptId, GpuId, Millis};
use tessera_placement::SliceKind;
use tessera_predict::drift::WINDOW;
use tessera_predict::sharing::seen::Client;
use uuid::Uuid;

use super::StoreError;
use super::moves::Reservation;
use crate::core::company::{Came, STEADY, SharedRun};
use crate::core::foresight::Outcomes;

/// Newest attempts that are looked at: some days of a large cluster's sharers.
const RUNS_MAX: i64 = 10_000;

/// Keeps what is foretold of a batch's attempts beside others.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub(super) async fn foretell(
    connection: &mut PgConnection,
    batch: &[Reservation],
) -> Result<(), StoreError> {
    let told: Vec<_> =
        batch.iter().filter_map(|r| Some((r.attempt.as_uuid(), r.beside.as_ref()?))).collect();
    if told.is_empty() {
        return Ok(());
    }
    let attempts: Vec<Uuid> = told.iter().map(|(attempt, _)| *attempt).collect();
    let of = || told.iter().map(|(_, told)| *told);
    let small = |value: u32| i16::try_from(value).unwrap_or(i16::MAX);
    let tasks: Vec<_> = of().map(|told| told.task.clone()).collect();
    let models: Vec<_> = of().map(|told| told.on.model.clone()).collect();
    let profiles: Vec<_> = of().map(|told| told.on.profile.clone()).collect();
    let parts: Vec<_> = of().map(|told| small(told.on.part.into())).collect();
    let sms: Vec<_> = of().map(|told| i16::from(told.client.sm.get())).collect();
    let online: Vec<_> = of().map(|told| told.client.online).collect();
    let busy: Vec<_> = of().map(|told| told.client.busy.map(|busy| small(busy.into()))).collect();
    let others: Vec<_> = of().map(|told| small(told.others)).collect();
    let speed = |of: fn(&crate::core::company::Speed) -> u32| {
        let each = told.iter().map(|(_, told)| told.speed.as_ref().map(|(speed, _)| of(speed)));
        each.map(|end| end.map(|end| i32::try_from(end).unwrap_or(i32::MAX))).collect::<Vec<_>>()
    };
    let (lows, speeds) = (speed(|speed| speed.low), speed(|speed| speed.value));
    let highs = speed(|speed| speed.high);
    let said: Vec<_> = of().map(|told| told.speed.map(|(_, model)| model.cast_signed())).collect();
    sqlx::query!(
        r#"
        INSERT INTO companies (attempt, task, gpu_model, profile, part, sm_percent, online, busy,
                               others, low, speed, high, model)
        SELECT u.*
          FROM UNNEST($1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[],
                      $6::smallint[], $7::boolean[], $8::smallint[], $9::smallint[],
                      $10::integer[], $11::integer[], $12::integer[], $13::bigint[])
            AS u (attempt, task, gpu_model, profile, part, sm_percent, online, busy, others, low,
                  speed, high, model)
        "#,
        &attempts,
        &tasks,
        &models,
        &profiles,
        &parts,
        &sms,
        &online,
        &busy as &[Option<i16>],
        &others,
        &lows as &[Option<i32>],
        &speeds as &[Option<i32>],
        &highs as &[Option<i32>],
        &said as &[Option<i64>],
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("keep what is foretold beside others"))
    .map(drop)
}

/// Reads the newest attempts under MPS whose programs began, those that still run among them.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn runs(connection: &mut PgConnection) -> Result<Vec<SharedRun>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT c.attempt, a.gpu, COALESCE(a.start, 0::smallint) AS "start!", c.task, c.gpu_model,
               c.profile, c.part, c.sm_percent, c.online, c.busy,
               (EXTRACT(EPOCH FROM a.started_at) * 1000)::bigint AS "began!",
               (EXTRACT(EPOCH FROM COALESCE(a.ended_at, now())) * 1000)::bigint AS "ended!",
               (a.state = 'succeeded' AND a.number = 1) AS "whole!"
          FROM companies AS c JOIN attempts AS a ON a.attempt = c.attempt
         WHERE a.started_at IS NOT NULL
         ORDER BY c.attempt DESC
         LIMIT $1
        "#,
        RUNS_MAX,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read who shared slices"))?;
    let millis = |value: i64| Millis::new(u64::try_from(value).unwrap_or(0));
    let runs = rows.into_iter().rev().filter_map(|row| {
        Some(SharedRun {
            attempt: AttemptId::from_uuid(row.attempt),
            place: (row.gpu.parse::<GpuId>().ok()?, row.start),
            task: row.task,
            on: SliceKind {
                model: row.gpu_model,
                profile: row.profile,
                part: u16::try_from(row.part).unwrap_or(0),
            },
            client: Client {
                online: row.online,
                sm_percent: u8::try_from(row.sm_percent).unwrap_or(100),
                busy: row.busy.map(|busy| u16::try_from(busy).unwrap_or(0)),
            },
            began: millis(row.began),
            ended: millis(row.ended),
            whole: row.whole,
        })
    });
    Ok(runs.collect())
}

/// Counts the attempts that are over, whether they shared or had their slices alone: as long as those
/// are as many, nothing more is known of how anybody did beside others. Where just as many were
/// forgotten as ended meanwhile, the next end tells.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn over(connection: &mut PgConnection) -> Result<i64, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT (SELECT COUNT(*) FROM predictions WHERE ended_at IS NOT NULL)
             + (SELECT COUNT(*)
                  FROM companies AS c JOIN attempts AS a ON a.attempt = c.attempt
                 WHERE a.ended_at IS NOT NULL) AS "over!"
        "#
    )
    .fetch_one(connection)
    .await
    .map_err(StoreError::while_trying_to("count who is over"))
}

/// Of how many attempts it became known how they did beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// All of them.
    pub all: u64,
    /// What came of those of which it was foretold, where the company stayed as it was.
    pub outcomes: Outcomes,
}

/// Keeps what came of attempts, of those where it isn't kept yet.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn keep(connection: &mut PgConnection, batch: &[Came]) -> Result<Kept, StoreError> {
    let attempts: Vec<Uuid> = batch.iter().map(|came| came.attempt.as_uuid()).collect();
    let whole = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let speeds: Vec<_> = batch.iter().map(|came| whole(came.speed)).collect();
    let beside: Vec<_> = batch.iter().map(|came| whole(came.beside)).collect();
    // NULL where nothing was foretold, or others were there than those that were counted with.
    let came = sqlx::query_scalar!(
        r#"
        UPDATE companies
           SET came = u.came, beside = u.beside, came_at = now()
          FROM UNNEST($1::uuid[], $2::integer[], $3::integer[]) AS u (attempt, came, beside)
         WHERE companies.attempt = u.attempt AND companies.came_at IS NULL
        RETURNING CASE WHEN ABS(u.beside - companies.others * 1000) <= $4
                       THEN u.came BETWEEN companies.low AND companies.high END AS within
        "#,
        &attempts,
        &speeds,
        &beside,
        i32::try_from(STEADY).unwrap_or(i32::MAX),
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("keep what came of company"))?;
    let mut kept = Kept::default();
    for within in came {
        kept.all += 1;
        if let Some(within) = within {
            kept.outcomes.take(within);
        }
    }
    Ok(kept)
}

/// Reads which of a model's newest predictions came true, the oldest of them first; only of attempts
/// whose company stayed as it was.
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
        SELECT came BETWEEN low AND high AS "came!"
          FROM companies
         WHERE model = $1 AND came_at IS NOT NULL AND ABS(beside - others * 1000) <= $2
         ORDER BY came_at DESC, attempt DESC
         LIMIT $3
        "#,
        fingerprint.cast_signed(),
        i32::try_from(STEADY).unwrap_or(i32::MAX),
        i64::try_from(WINDOW).unwrap_or(i64::MAX),
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what came of predicted company"))?;
    came.reverse();
    Ok(came)
}
