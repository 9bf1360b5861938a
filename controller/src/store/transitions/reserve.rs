//! Placements of queued jobs: new attempts with the memory slices that they hold.

use serde::Serialize;
use sqlx::PgConnection;
use tessera_model::life::JobState;
use tessera_placement::{Explanation, JobPlacement};
use uuid::Uuid;

use crate::store::columns::{batch_size, bigint, integer, job_number, json_text};
use crate::store::predictions::PredictionRecord;
use crate::store::{StoreError, change_rows, colocations, tenancies};
use tessera_control::rows::transitions::Reservation;

/// Places queued jobs: writes their new attempts, the memory slices that they hold, their
/// predictions and the decisions.
///
/// # Errors
///
/// [`StoreError::Conflict`] if a job is no longer queued, [`StoreError::Unavailable`] also if a
/// constraint found the slice taken.
pub async fn reserve_slices(
    connection: &mut PgConnection,
    batch: &[Reservation],
    policy: &str,
    epoch: u64,
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "place jobs";
    let attempts: Vec<_> = batch.iter().map(AttemptRecord::of).collect();
    let slots: Vec<_> = batch.iter().flat_map(HeldSlotRecord::all_of).collect();
    let predictions: Vec<_> = batch.iter().filter_map(PredictionRecord::of).collect();
    // One statement: its parts are one round trip, and touch different tables.
    let statement = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM json_to_recordset($1::text::json)
                AS u (attempt uuid, job bigint, number integer, state text, node uuid,
                      generation bigint, gpu text, gpu_index integer, start smallint,
                      profile_id integer, profile text, slice text, decision uuid,
                      placement jsonb, explanation jsonb, sm_percent smallint,
                      share_bytes bigint, compute_start smallint, compute_slices smallint,
                      gpu_memory bigint, size_source text)
             LIMIT $6
        ), a AS (
            INSERT INTO attempts (attempt, job, number, state, node, generation, gpu, gpu_index,
                                  start, profile_id, profile, slice, decision, sm_percent,
                                  share_bytes, compute_start, compute_slices, gpu_memory,
                                  size_source)
            SELECT u.attempt, u.job, u.number, u.state, u.node, u.generation, u.gpu,
                   u.gpu_index, u.start, u.profile_id, u.profile, u.slice, u.decision,
                   u.sm_percent, u.share_bytes, u.compute_start, u.compute_slices,
                   u.gpu_memory, u.size_source
              FROM u
        ), d AS (
            INSERT INTO decisions (decision, job, outcome, policy, epoch, placement, explanation)
            SELECT u.decision, u.job, 'start', $2, $3, u.placement, u.explanation FROM u
        ), s AS (
            INSERT INTO attempt_slots (gpu, slot, attempt)
            SELECT h.gpu, h.slot, h.attempt
              FROM json_to_recordset($4::text::json) AS h (gpu text, slot smallint, attempt uuid)
        ), p AS (
            INSERT INTO predictions (attempt, task, gpu_model, profile, compute_permille, whole,
                                     basis, runs, low_ms, expected_ms, high_ms, model,
                                     memory_runs, memory_low, memory_estimate, memory_high,
                                     memory_cautious)
            SELECT f.attempt, f.task, f.gpu_model, f.profile, f.compute_permille, f.whole,
                   f.basis, f.runs, f.low_ms, f.expected_ms, f.high_ms, f.model,
                   f.memory_runs, f.memory_low, f.memory_estimate, f.memory_high,
                   f.memory_cautious
              FROM json_to_recordset($5::text::json)
                AS f (attempt uuid, task text, gpu_model text, profile text,
                      compute_permille smallint, whole boolean, basis text, runs integer,
                      low_ms bigint, expected_ms bigint, high_ms bigint, model bigint,
                      memory_runs integer, memory_low bigint, memory_estimate bigint,
                      memory_high bigint, memory_cautious boolean)
        )
        UPDATE jobs
           SET state = u.state, attempt = u.attempt, last_attempt = u.attempt,
               attempts = jobs.attempts + 1
          FROM u
         WHERE jobs.job = u.job AND jobs.state = 'queued' AND jobs.attempt IS NULL
        "#,
        json_text(&attempts),
        policy,
        bigint(epoch),
        json_text(&slots),
        json_text(&predictions),
        batch_size(&attempts),
    );
    change_rows(action, batch.len(), statement.execute(&mut *connection)).await?;
    colocations::insert_predictions(connection, batch).await?;
    tenancies::join_tenancies(connection, batch).await
}

/// A new attempt with its decision, as the statement reads it.
#[derive(Debug, Serialize)]
struct AttemptRecord<'a> {
    attempt: Uuid,
    job: i64,
    number: i32,
    state: &'static str,
    node: Uuid,
    generation: i64,
    gpu: &'a str,
    gpu_index: i32,
    start: Option<i16>,
    profile_id: Option<i32>,
    profile: &'a str,
    slice: Option<&'a str>,
    decision: Uuid,
    placement: &'a JobPlacement,
    explanation: &'a Explanation,
    sm_percent: Option<i16>,
    share_bytes: Option<i64>,
    compute_start: Option<i16>,
    compute_slices: Option<i16>,
    gpu_memory: i64,
    size_source: &'static str,
}

impl<'a> AttemptRecord<'a> {
    fn of(reservation: &'a Reservation) -> Self {
        let slot = reservation.place.slot;
        let share = reservation.share.as_ref().map(|sharer| sharer.share);
        let compute = share.and_then(|share| share.compute());
        Self {
            attempt: reservation.attempt.as_uuid(),
            job: job_number(reservation.job),
            number: integer(reservation.number),
            state: first_state(reservation).word(),
            node: reservation.node.as_uuid(),
            generation: bigint(reservation.generation),
            gpu: reservation.place.gpu.as_str(),
            gpu_index: integer(reservation.gpu_index),
            start: slot.map(|slot| slot.start.into()),
            profile_id: slot.map(|slot| integer(slot.profile.0)),
            profile: &reservation.profile,
            slice: reservation.slice.as_ref().map(|slice| slice.as_str()),
            decision: reservation.decision.as_uuid(),
            placement: &reservation.place,
            explanation: &reservation.why,
            sm_percent: share.and_then(|share| share.sm()).map(|sm| sm.get().into()),
            share_bytes: share.map(|share| bigint(share.memory().get())),
            compute_start: compute.map(|slot| slot.start.into()),
            compute_slices: compute.map(|slot| slot.slices.into()),
            gpu_memory: bigint(reservation.gpu_memory.get()),
            size_source: reservation.size_source.word(),
        }
    }
}

/// Returns a new attempt's state: it starts at once on a slice that exists.
const fn first_state(reservation: &Reservation) -> JobState {
    match reservation.slice {
        Some(_) => JobState::Starting,
        None => JobState::Placing,
    }
}

/// A memory slice that an attempt holds alone, as the statement reads it.
#[derive(Debug, Serialize)]
struct HeldSlotRecord<'a> {
    gpu: &'a str,
    slot: u8,
    attempt: Uuid,
}

impl HeldSlotRecord<'_> {
    /// Returns the memory slices of one attempt: none for a sharer, whose tenancy holds them.
    fn all_of(reservation: &Reservation) -> impl Iterator<Item = HeldSlotRecord<'_>> {
        let held = if reservation.share.is_none() { &reservation.slots[..] } else { &[] };
        held.iter().map(|slot| HeldSlotRecord {
            gpu: reservation.place.gpu.as_str(),
            slot: *slot,
            attempt: reservation.attempt.as_uuid(),
        })
    }
}
