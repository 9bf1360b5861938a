//! Places for jobs: attempts are made.

use sqlx::PgConnection;
use tessera_model::life::JobState;
use tessera_model::mig::compute::ComputeSlot;
use uuid::Uuid;

use super::{Reservation, json, number, signed};
use crate::store::foresight::Columns;
use crate::store::{StoreError, company, tenancies};

/// Gives queued jobs their places: new attempts, the memory slices that they hold, and the
/// decisions.
///
/// # Errors
///
/// [`StoreError::Moved`] if a job is no longer queued, [`StoreError::Unavailable`] also if a
/// constraint found the place taken.
pub async fn reserve(
    connection: &mut PgConnection,
    batch: &[Reservation],
    policy: &str,
    epoch: u64,
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "reserve places";
    let jobs: Vec<_> = batch.iter().map(|r| number(r.job)).collect();
    let attempts: Vec<Uuid> = batch.iter().map(|r| r.attempt.as_uuid()).collect();
    let states: Vec<_> = batch.iter().map(|r| state_of(r).word().to_owned()).collect();
    let numbers: Vec<_> =
        batch.iter().map(|r| i32::try_from(r.number).unwrap_or(i32::MAX)).collect();
    let nodes: Vec<_> = batch.iter().map(|r| r.node.as_uuid()).collect();
    let generations: Vec<_> = batch.iter().map(|r| signed(r.generation)).collect();
    let gpus: Vec<_> = batch.iter().map(|r| r.place.gpu.as_str().to_owned()).collect();
    let indexes: Vec<_> = batch.iter().map(|r| i32::try_from(r.gpu_index).unwrap_or(0)).collect();
    let starts: Vec<_> = batch.iter().map(|r| r.place.slot.map(|s| i16::from(s.start))).collect();
    let profile_ids: Vec<_> = batch
        .iter()
        .map(|r| r.place.slot.map(|s| i32::try_from(s.profile.0).unwrap_or(-1)))
        .collect();
    let profiles: Vec<_> = batch.iter().map(|r| r.profile.clone()).collect();
    let slices: Vec<_> =
        batch.iter().map(|r| r.slice.as_ref().map(|s| s.as_str().to_owned())).collect();
    let decisions: Vec<_> = batch.iter().map(|r| r.decision.as_uuid()).collect();
    let places: Vec<_> = batch.iter().map(|r| json(&r.place)).collect();
    let whys: Vec<_> = batch.iter().map(|r| json(&r.why)).collect();
    let held = HeldSlots::of(batch);
    let (sms, bytes) = shares_of(batch);
    let told = Columns::of(batch);
    let (compute_starts, compute_slices) = parts_of(batch);
    // One statement: its parts are one round trip, and touch different tables.
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM UNNEST($1::uuid[], $2::bigint[], $3::integer[], $4::text[], $5::uuid[],
                          $6::bigint[], $7::text[], $8::integer[], $9::smallint[],
                          $10::integer[], $11::text[], $12::text[], $13::uuid[], $14::text[],
                          $15::text[], $21::smallint[], $22::bigint[],
                          $34::smallint[], $35::smallint[])
                AS u (attempt, job, number, state, node, generation, gpu, gpu_index, start,
                      profile_id, profile, slice, decision, place, why, sm_percent, share_bytes,
                      compute_start, compute_slices)
        ), a AS (
            INSERT INTO attempts (attempt, job, number, state, node, generation, gpu, gpu_index,
                                  start, profile_id, profile, slice, decision, sm_percent,
                                  share_bytes, compute_start, compute_slices)
            SELECT u.attempt, u.job, u.number, u.state, u.node, u.generation, u.gpu,
                   u.gpu_index, u.start, u.profile_id, u.profile, u.slice, u.decision,
                   u.sm_percent, u.share_bytes, u.compute_start, u.compute_slices
              FROM u
        ), d AS (
            INSERT INTO decisions (decision, job, outcome, policy, epoch, place, why)
            SELECT u.decision, u.job, 'start', $16, $17, u.place::json, u.why::json FROM u
        ), s AS (
            INSERT INTO attempt_slots (gpu, slot, attempt)
            SELECT h.gpu, h.slot, h.attempt
              FROM UNNEST($18::text[], $19::smallint[], $20::uuid[]) AS h (gpu, slot, attempt)
        ), p AS (
            INSERT INTO predictions (attempt, task, gpu_model, profile, part, whole, basis, runs,
                                     low_ms, expected_ms, high_ms, model, memory_runs, memory_low,
                                     memory_floor, memory_high, memory_cautious)
            SELECT f.*
              FROM UNNEST($23::uuid[], $24::text[], $25::text[], $26::text[], $27::smallint[],
                          $28::boolean[], $29::text[], $30::integer[], $31::bigint[],
                          $32::bigint[], $33::bigint[], $36::bigint[], $37::integer[],
                          $38::bigint[], $39::bigint[], $40::bigint[], $41::boolean[])
                AS f (attempt, task, gpu_model, profile, part, whole, basis, runs, low_ms,
                      expected_ms, high_ms, model, memory_runs, memory_low, memory_floor,
                      memory_high, memory_cautious)
        )
        UPDATE jobs
           SET state = u.state, attempt = u.attempt, last_attempt = u.attempt,
               attempts = jobs.attempts + 1
          FROM u
         WHERE jobs.job = u.job AND jobs.state = 'queued' AND jobs.attempt IS NULL
        "#,
        &attempts,
        &jobs,
        &numbers,
        &states,
        &nodes,
        &generations,
        &gpus,
        &indexes,
        &starts as &[Option<i16>],
        &profile_ids as &[Option<i32>],
        &profiles,
        &slices as &[Option<String>],
        &decisions,
        &places,
        &whys,
        policy,
        signed(epoch),
        &held.gpus,
        &held.slots,
        &held.attempts,
        &sms as &[Option<i16>],
        &bytes as &[Option<i64>],
        &told.attempts,
        &told.tasks,
        &told.models,
        &told.profiles,
        &told.parts,
        &told.wholes,
        &told.bases as &[Option<String>],
        &told.runs as &[Option<i32>],
        &told.lows as &[Option<i64>],
        &told.expected as &[Option<i64>],
        &told.highs as &[Option<i64>],
        &compute_starts as &[Option<i16>],
        &compute_slices as &[Option<i16>],
        &told.models_said as &[Option<i64>],
        &told.memory_runs as &[Option<i32>],
        &told.memory_lows as &[Option<i64>],
        &told.memory_floors as &[Option<i64>],
        &told.memory_highs as &[Option<i64>],
        &told.memory_cautious as &[Option<bool>],
    )
    .execute(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, batch.len(), moved.rows_affected())?;
    company::foretell(connection, batch).await?;
    tenancies::join(connection, batch).await
}

/// The parts of slices that a batch of reservations gives away, as columns.
fn shares_of(batch: &[Reservation]) -> (Vec<Option<i16>>, Vec<Option<i64>>) {
    let share = |r: &Reservation| {
        let share = r.share.as_ref()?.share;
        let sm = share.sm().map(|sm| i16::from(sm.get()));
        Some((sm, signed(share.memory().get())))
    };
    let columns = |r: &Reservation| share(r).map_or((None, None), |(sm, bytes)| (sm, Some(bytes)));
    batch.iter().map(columns).unzip()
}

/// The compute instances that a batch of reservations gives away, as columns.
fn parts_of(batch: &[Reservation]) -> (Vec<Option<i16>>, Vec<Option<i16>>) {
    let part = |r: &Reservation| r.share.as_ref()?.share.compute();
    let columns = |slot: ComputeSlot| (Some(slot.start.into()), Some(slot.slices.into()));
    batch.iter().map(|r| part(r).map_or((None, None), columns)).unzip()
}

const fn state_of(reservation: &Reservation) -> JobState {
    match reservation.slice {
        Some(_) => JobState::Starting,
        None => JobState::Placing,
    }
}

/// The memory slices that a batch of reservations holds alone, as columns.
#[derive(Debug, Default)]
struct HeldSlots {
    gpus: Vec<String>,
    slots: Vec<i16>,
    attempts: Vec<Uuid>,
}

impl HeldSlots {
    fn of(batch: &[Reservation]) -> Self {
        let mut held = Self::default();
        for reservation in batch.iter().filter(|r| r.share.is_none()) {
            for slot in &reservation.slots {
                held.gpus.push(reservation.place.gpu.as_str().to_owned());
                held.slots.push(i16::from(*slot));
                held.attempts.push(reservation.attempt.as_uuid());
            }
        }
        held
    }
}
