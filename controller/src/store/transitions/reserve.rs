//! What a run of the policy decided: placements of queued jobs, why others wait, and the record of its inputs.

use std::collections::HashMap;

use serde::Serialize;
use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_control::rows::snapshot::LaunchSpec;
use tessera_control::rows::transitions::{Reservation, WaitReasonRow};
use tessera_model::JobId;
use tessera_model::life::JobState;
use tessera_model::spec::{JobSpec, JobUpdate};
use tessera_placement::{Explanation, JobPlacement};
use uuid::Uuid;

use crate::store::columns::{batch_size, bigint, integer, job_number, json_text};
use crate::store::predictions::PredictionRecord;
use crate::store::rounds::SealedRecord;
use crate::store::snapshot::LaunchRow;
use crate::store::{StoreError, colocations, tenancies};

/// The decisions of one run of the policy.
#[derive(Clone, Copy, Debug)]
pub struct Placements<'r> {
    /// The queued jobs that are placed.
    pub reservations: &'r [Reservation],
    /// The waiting jobs with new reasons.
    pub waits: &'r [WaitReasonRow],
    /// The record of the run's inputs and decisions.
    pub record: Option<&'r SealedRecord>,
}

impl Placements<'_> {
    const fn is_empty(&self) -> bool {
        self.reservations.is_empty() && self.waits.is_empty() && self.record.is_none()
    }
}

/// Writes the decisions of one run of the policy: new attempts, the memory slices that they hold, their
/// predictions, the reasons why other jobs wait, and the run's record. Returns what the placed jobs run.
///
/// # Errors
///
/// [`StoreError::Conflict`] if a job is no longer queued, [`StoreError::Unavailable`] also if a
/// constraint found the slice taken; [`StoreError::Corrupt`] if a specification can't be understood.
pub async fn record_placements(
    connection: &mut PgConnection,
    placements: Placements<'_>,
    policy: &str,
    epoch: u64,
) -> Result<HashMap<JobId, LaunchSpec>, StoreError> {
    if placements.is_empty() {
        return Ok(HashMap::new());
    }
    let action = "place jobs";
    let Placements { reservations: batch, waits, record } = placements;
    let attempts: Vec<_> = batch.iter().map(AttemptRecord::of).collect();
    let slots: Vec<_> = batch.iter().flat_map(HeldSlotRecord::all_of).collect();
    let predictions: Vec<_> = batch.iter().filter_map(PredictionRecord::of).collect();
    let waits: Vec<_> = waits.iter().map(WaitRecord::of).collect();
    // One statement: its parts are one round trip, and touch different rows. What it reads of submissions no
    // part of it changes, and of jobs it returns the new values.
    let placed = sqlx::query_as!(
        LaunchRow,
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
            INSERT INTO decisions (decision, job, outcome, reason, policy, epoch, placement, explanation)
            SELECT u.decision, u.job, 'start', NULL, $2::text, $3::bigint, u.placement, u.explanation
              FROM u
             UNION ALL
            SELECT w.decision, w.job, 'wait', w.reason, $2::text, $3::bigint, NULL, w.explanation
              FROM json_to_recordset($7::text::json)
                AS w (decision uuid, job bigint, reason text, explanation jsonb)
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
        ), r AS (
            INSERT INTO placement_rounds (epoch, number, digest, bytes, body)
            SELECT $3::bigint, $8::bigint, $9::bytea, length($10::bytea), $10::bytea
             WHERE $8::bigint IS NOT NULL
        )
        UPDATE jobs AS j
           SET state = u.state, attempt = u.attempt, last_attempt = u.attempt,
               attempts = j.attempts + 1
          FROM u, submissions AS t
         WHERE j.job = u.job AND j.state = 'queued' AND j.attempt IS NULL AND t.first_job = j.submission
        RETURNING j.job, j.submission, j.attempts, j.sm_percent, j.charged, j.uncharged,
                  j.restart_reason, t.tasks, j.out_of_memory, j.memory_estimate,
                  j.held_before_launch, j.launch_multiprocessors,
                  j.updates AS "updates: Json<JobUpdate>", t.array_first, t.traceparent,
                  t.spec AS "spec: Json<JobSpec>", j.done_ppm,
                  (EXTRACT(EPOCH FROM now() - t.accepted_at) * 1000)::bigint AS "waited!"
        "#,
        json_text(&attempts),
        policy,
        bigint(epoch),
        json_text(&slots),
        json_text(&predictions),
        batch_size(&attempts),
        json_text(&waits),
        record.map(SealedRecord::number),
        record.map(SealedRecord::digest),
        record.map(SealedRecord::body),
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_changed(action, batch.len(), placed.len() as u64)?;
    colocations::insert_predictions(connection, batch).await?;
    tenancies::join_tenancies(connection, batch).await?;
    placed.into_iter().map(LaunchRow::into_spec).collect()
}

/// A decision that a job waits, as the statement reads it.
#[derive(Debug, Serialize)]
struct WaitRecord<'a> {
    decision: Uuid,
    job: i64,
    reason: &'static str,
    explanation: &'a Explanation,
}

impl<'a> WaitRecord<'a> {
    fn of(wait: &'a WaitReasonRow) -> Self {
        Self {
            decision: wait.decision.as_uuid(),
            job: job_number(wait.job),
            reason: wait.reason,
            explanation: &wait.why,
        }
    }
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
