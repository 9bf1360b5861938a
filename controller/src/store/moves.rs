//! The moves of jobs and attempts: batches of compare-and-set statements.
//!
//! Every function runs inside the caller's guarded transaction ([`super::leader::guard`]) and
//! moves exactly the rows that it was given, or fails with [`StoreError::Moved`].

use std::collections::{BTreeMap, HashMap};

use sqlx::PgConnection;
use tessera_model::ids::BadId;
use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::compute::ComputeSlot;
use tessera_model::share::SmPercent;
use tessera_model::{AttemptId, Bytes, DecisionId, JobId, Millis, NodeId, SliceId};
use tessera_placement::{Explanation, Place, Prediction, Sharer};
use tessera_predict::memory::Floor;
use tessera_wire::frames::ExitRecord;
use time::OffsetDateTime;
use uuid::Uuid;

use super::foresight::Columns;
use super::terms::columns;
use super::{StoreError, tenancies};
use crate::core::company;
use crate::core::foresight::{Foretold, Lasted};
use crate::ports::Terms;

/// A job gets a place.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The job; it must be queued.
    pub job: JobId,
    /// The gang that gets its places with it, if it is in one.
    pub gang: Option<JobId>,
    /// Its new attempt.
    pub attempt: AttemptId,
    /// The attempt's number.
    pub number: u32,
    /// On which node.
    pub node: NodeId,
    /// The node's generation, for which the launch will be good.
    pub generation: u64,
    /// Where.
    pub place: Place,
    /// The GPU's index on its node.
    pub gpu_index: u32,
    /// Profile, or `whole GPU`.
    pub profile: String,
    /// The memory slices that the attempt holds.
    pub slots: Vec<u8>,
    /// Its part of the instance; `None` if it has the instance to itself.
    pub share: Option<Sharer>,
    /// Memory of the instance: what its sharers can have together.
    pub capacity: Bytes,
    /// The slice, if it stands ready; else the layout has to be changed first.
    pub slice: Option<SliceId>,
    /// The decision.
    pub decision: DecisionId,
    /// Its reasons.
    pub why: Explanation,
    /// What is foretold of it; `None` for a sharer.
    pub foretold: Option<Foretold>,
    /// What is foretold of it beside others under MPS.
    pub beside: Option<company::Foretold>,
    /// What is foretold of its memory, if its job names none and something is foretold of it.
    pub memory: Option<Floor>,
}

/// An attempt's place became ready.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The job; it must be placing.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The slice that stands.
    pub slice: SliceId,
}

/// An attempt's program runs.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// The job; it must be starting.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// When, milliseconds since 1970 on the node's clock.
    pub started_unix: Millis,
    /// How long its job took from being asked to put its work aside, if that is why it starts.
    pub moved: Option<Millis>,
}

/// A job with a live attempt is to end.
#[derive(Clone, Copy, Debug)]
pub struct Stopping {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
}

/// An attempt is over.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The job; its live attempt must be this one.
    pub job: JobId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The job's state in the leader's picture.
    pub from: JobState,
    /// Where the job goes.
    pub to: JobState,
    /// Whether the end uses up one of the job's retries.
    pub charged: bool,
    /// Whether it counts among the ends that were not the job's fault.
    pub uncharged: bool,
    /// Whether it shared its slice.
    pub shared: bool,
    /// Why the job runs again, if it does: mostly how this attempt ended.
    pub reason: Outcome,
    /// The gang that ends with it, if it is in one.
    pub gang: Option<JobId>,
    /// How the attempt ended.
    pub record: ExitRecord,
    /// How long it ran, if that says anything.
    pub lasted: Lasted,
    /// The memory of its slice, if the attempt ran out of that.
    pub ran_out_of: Option<Bytes>,
    /// What had been foretold of it.
    pub foretold: Option<Prediction>,
    /// How much of the job is done, in millionths.
    pub done: u32,
}

/// A waiting job's user moved it.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The job.
    pub job: JobId,
    /// What changes.
    pub change: Change,
}

/// What a user changes of a waiting job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It goes to `queued`, `held` or `cancelled`.
    To(JobState),
    /// It is to have this part of its slice, and waits on as it does.
    Share(SmPercent),
    /// It is to have other terms, and waits on.
    Terms(Terms),
}

/// A job with a live attempt is to have another share.
#[derive(Clone, Copy, Debug)]
pub struct Reshared {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// Its part of the slice.
    pub sm: SmPercent,
}

/// A running job is asked to put its work aside and go on elsewhere.
#[derive(Clone, Debug)]
pub struct Moving {
    /// The job; it must be running.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The decision.
    pub decision: DecisionId,
    /// Where it is to go on.
    pub place: Place,
    /// Why, with the price.
    pub why: Explanation,
}

/// A waiting job's reason changed.
#[derive(Clone, Debug)]
pub struct WaitRow {
    /// The job.
    pub job: JobId,
    /// The decision's id.
    pub decision: DecisionId,
    /// The reason's word.
    pub reason: &'static str,
    /// Why.
    pub why: Explanation,
}

fn number(job: JobId) -> i64 {
    i64::try_from(job.number()).unwrap_or(i64::MAX)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain data has a JSON form")
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn moment(unix: Millis) -> Option<OffsetDateTime> {
    if unix == Millis::ZERO {
        return None;
    }
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix.get()) * 1_000_000).ok()
}

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
    super::company::foretell(connection, batch).await?;
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

/// Records why jobs wait.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_waits(
    connection: &mut PgConnection,
    batch: &[WaitRow],
    policy: &str,
    epoch: u64,
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = batch.iter().map(|w| w.decision.as_uuid()).collect();
    let jobs: Vec<_> = batch.iter().map(|w| number(w.job)).collect();
    let reasons: Vec<_> = batch.iter().map(|w| w.reason.to_owned()).collect();
    let whys: Vec<_> = batch.iter().map(|w| json(&w.why)).collect();
    sqlx::query!(
        r#"
        INSERT INTO decisions (decision, job, outcome, reason, policy, epoch, why)
        SELECT u.decision, u.job, 'wait', u.reason, $5, $6, u.why::json
          FROM UNNEST($1::uuid[], $2::bigint[], $3::text[], $4::text[])
            AS u (decision, job, reason, why)
        "#,
        &ids,
        &jobs,
        &reasons,
        &whys,
        policy,
        signed(epoch),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record waits"))
    .map(drop)
}

/// Moves jobs whose slice stands now from placing to starting.
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn launch(connection: &mut PgConnection, batch: &[Ready]) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "launch on ready slices";
    let jobs: Vec<_> = batch.iter().map(|r| number(r.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|r| r.attempt.as_uuid()).collect();
    let slices: Vec<_> = batch.iter().map(|r| r.slice.as_str().to_owned()).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT * FROM UNNEST($1::bigint[], $2::uuid[], $3::text[]) AS u (job, attempt, slice)
        ), a AS (
            UPDATE attempts SET state = 'starting', slice = u.slice
              FROM u
             WHERE attempts.attempt = u.attempt AND attempts.state = 'placing'
        )
        UPDATE jobs SET state = 'starting'
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt AND jobs.state = 'placing'
        "#,
        &jobs,
        &attempts,
        &slices,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, batch.len(), moved.rows_affected())
}

/// Moves jobs whose programs run from starting to running.
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn start(connection: &mut PgConnection, batch: &[Started]) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record starts";
    let jobs: Vec<_> = batch.iter().map(|s| number(s.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|s| s.attempt.as_uuid()).collect();
    let moments: Vec<_> = batch.iter().map(|s| moment(s.started_unix)).collect();
    let took: Vec<_> = batch.iter().map(|s| s.moved.map(|took| signed(took.get()))).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT * FROM UNNEST($1::bigint[], $2::uuid[], $3::timestamptz[], $4::bigint[])
                AS u (job, attempt, started_at, moved_ms)
        ), p AS (
            UPDATE predictions SET moved_ms = u.moved_ms
              FROM u
             WHERE predictions.attempt = u.attempt AND u.moved_ms IS NOT NULL
        ), a AS (
            UPDATE attempts SET state = 'running', started_at = u.started_at
              FROM u
             WHERE attempts.attempt = u.attempt AND attempts.state = 'starting'
        )
        UPDATE jobs SET state = 'running'
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt AND jobs.state = 'starting'
        "#,
        &jobs,
        &attempts,
        &moments as &[Option<OffsetDateTime>],
        &took as &[Option<i64>],
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, batch.len(), moved.rows_affected())
}

/// Moves jobs with live attempts to stopping; those that are stopping already stay so.
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn stop(connection: &mut PgConnection, batch: &[Stopping]) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record stops";
    let jobs: Vec<_> = batch.iter().map(|s| number(s.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|s| s.attempt.as_uuid()).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT * FROM UNNEST($1::bigint[], $2::uuid[]) AS u (job, attempt)
        ), a AS (
            UPDATE attempts SET state = 'stopping' FROM u
             WHERE attempts.attempt = u.attempt AND attempts.live
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, 'stopping', 'cancelled by its user: its attempt is being ended' FROM u
        )
        UPDATE jobs SET state = 'stopping'
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt
           AND jobs.state IN ('placing', 'starting', 'running', 'stopping')
        "#,
        &jobs,
        &attempts,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, batch.len(), moved.rows_affected())
}

/// Ends attempts: frees the memory slices that they hold, and moves their jobs on. A job is
/// moved only by its current attempt (rule F10).
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn end(connection: &mut PgConnection, batch: &[Ended]) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record ends";
    let jobs: Vec<_> = batch.iter().map(|e| number(e.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|e| e.attempt.as_uuid()).collect();
    let from: Vec<_> = batch.iter().map(|e| e.from.word().to_owned()).collect();
    let to: Vec<_> = batch.iter().map(|e| e.to.word().to_owned()).collect();
    let charged: Vec<_> = batch.iter().map(|e| i32::from(e.charged)).collect();
    let uncharged: Vec<_> = batch.iter().map(|e| i32::from(e.uncharged)).collect();
    let reasons: Vec<_> = batch.iter().map(restart_reason).collect();
    let records = || batch.iter().map(|e| &e.record);
    let outcomes: Vec<_> = records().map(|r| r.outcome.word().to_owned()).collect();
    let started: Vec<_> = records().map(|r| moment(r.started_unix)).collect();
    let ended: Vec<_> = records().map(|r| moment(r.ended_unix)).collect();
    let exits: Vec<_> = records().map(|r| r.exit.map(|e| e.to_string())).collect();
    let details: Vec<_> =
        records().map(|r| (!r.detail.is_empty()).then(|| r.detail.clone())).collect();
    let ran = |r: &ExitRecord| r.started_unix != Millis::ZERO;
    let user: Vec<_> = records().map(|r| ran(r).then(|| signed(r.user_time.get()))).collect();
    let system: Vec<_> = records().map(|r| ran(r).then(|| signed(r.system_time.get()))).collect();
    let rss: Vec<_> = records().map(|r| ran(r).then(|| signed(r.max_rss.get()))).collect();
    let lasted = |of: fn(&Lasted) -> Option<Millis>| {
        let column = batch.iter().map(|e| of(&e.lasted).map(|time| signed(time.get())));
        column.collect::<Vec<_>>()
    };
    let whole = lasted(|lasted| lasted.ran);
    let aside = lasted(|lasted| lasted.aside);
    let useful = lasted(|lasted| lasted.useful);
    let done: Vec<_> = batch.iter().map(|e| i32::try_from(e.done).unwrap_or(0)).collect();
    let out_of: Vec<_> =
        batch.iter().map(|e| e.ran_out_of.map(|slice| signed(slice.get()))).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM UNNEST($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::integer[],
                          $6::integer[], $7::text[], $8::text[], $9::timestamptz[],
                          $10::timestamptz[], $11::text[], $12::text[], $13::bigint[],
                          $14::bigint[], $15::bigint[], $16::bigint[], $17::integer[],
                          $18::bigint[], $19::bigint[], $20::bigint[])
                AS u (job, attempt, from_state, to_state, charged, uncharged, reason, outcome,
                      started_at, ended_at, exit, detail, user_ms, system_ms, max_rss, ran_ms,
                      done_ppm, aside_ms, useful_ms, ran_out_of)
        ), a AS (
            UPDATE attempts
               SET live = false, state = u.outcome,
                   started_at = COALESCE(attempts.started_at, u.started_at),
                   ended_at = COALESCE(u.ended_at, now()),
                   exit_code = u.exit, detail = u.detail,
                   user_ms = u.user_ms, system_ms = u.system_ms, max_rss = u.max_rss
              FROM u
             WHERE attempts.attempt = u.attempt AND attempts.live
            RETURNING attempts.attempt
        ), s AS (
            DELETE FROM attempt_slots USING u WHERE attempt_slots.attempt = u.attempt
        ), p AS (
            UPDATE predictions
               SET ran_ms = u.ran_ms, useful_ms = u.useful_ms, aside_ms = u.aside_ms,
                   ended_at = CASE WHEN u.ran_ms IS NOT NULL THEN now() END,
                   ran_out_of = u.ran_out_of,
                   memory_at = CASE WHEN u.ran_out_of IS NOT NULL
                                      OR (u.outcome = 'succeeded' AND b.peak_gpu_memory > 0)
                                    THEN now() END
              FROM u JOIN attempts AS b ON b.attempt = u.attempt
             WHERE predictions.attempt = u.attempt
               AND (u.ran_ms IS NOT NULL OR u.aside_ms IS NOT NULL OR u.ran_out_of IS NOT NULL
                    OR u.outcome = 'succeeded')
        ), j AS (
            UPDATE jobs
               SET state = u.to_state, attempt = NULL,
                   charged = jobs.charged + u.charged,
                   uncharged = jobs.uncharged + u.uncharged,
                   done_ppm = u.done_ppm,
                   restart_reason = COALESCE(u.reason, jobs.restart_reason),
                   ended_at = CASE WHEN u.to_state IN ('queued', 'held') THEN NULL ELSE now() END
              FROM u
             WHERE jobs.job = u.job AND jobs.attempt = u.attempt AND jobs.state = u.from_state
            RETURNING jobs.job
        )
        SELECT (SELECT COUNT(*) FROM a) AS "attempts!", (SELECT COUNT(*) FROM j) AS "jobs!"
        "#,
        &jobs,
        &attempts,
        &from,
        &to,
        &charged,
        &uncharged,
        &reasons as &[Option<String>],
        &outcomes,
        &started as &[Option<OffsetDateTime>],
        &ended as &[Option<OffsetDateTime>],
        &exits as &[Option<String>],
        &details as &[Option<String>],
        &user as &[Option<i64>],
        &system as &[Option<i64>],
        &rss as &[Option<i64>],
        &whole as &[Option<i64>],
        &done,
        &aside as &[Option<i64>],
        &useful as &[Option<i64>],
        &out_of as &[Option<i64>],
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    let rows = |count: i64| u64::try_from(count).unwrap_or(0);
    StoreError::check_moved(action, batch.len(), rows(moved.jobs))?;
    StoreError::check_moved(action, batch.len(), rows(moved.attempts))?;
    tenancies::leave(connection, batch).await
}

/// Why the job runs again, if it does.
fn restart_reason(ended: &Ended) -> Option<String> {
    (!ended.to.is_final()).then(|| ended.reason.word().to_owned())
}

/// Notes what share of its slice each job's next attempt gets.
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn reshare(connection: &mut PgConnection, batch: &[Reshared]) -> Result<(), StoreError> {
    // The last word counts: one statement changes a row only once.
    let last: BTreeMap<JobId, &Reshared> = batch.iter().map(|r| (r.job, r)).collect();
    if last.is_empty() {
        return Ok(());
    }
    let action = "record new shares";
    let jobs: Vec<_> = last.values().map(|r| number(r.job)).collect();
    let attempts: Vec<_> = last.values().map(|r| r.attempt.as_uuid()).collect();
    let sms: Vec<_> = last.values().map(|r| i16::from(r.sm.get())).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT * FROM UNNEST($1::bigint[], $2::uuid[], $3::smallint[]) AS u (job, attempt, sm)
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, j.state, 'its share becomes ' || u.sm || ' %: it is started again'
              FROM u JOIN jobs AS j ON j.job = u.job
        )
        UPDATE jobs SET sm_percent = u.sm
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt
           AND jobs.state IN ('placing', 'starting', 'running')
        "#,
        &jobs,
        &attempts,
        &sms,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, last.len(), moved.rows_affected())
}

/// Records that running jobs are asked to move: the decisions, and what their users read.
///
/// # Errors
///
/// [`StoreError::Moved`] if one doesn't run any more, [`StoreError::Unavailable`].
pub async fn record_moving(
    connection: &mut PgConnection,
    batch: &[Moving],
    policy: &str,
    epoch: u64,
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let action = "record moves";
    let jobs: Vec<_> = batch.iter().map(|m| number(m.job)).collect();
    let attempts: Vec<_> = batch.iter().map(|m| m.attempt.as_uuid()).collect();
    let decisions: Vec<_> = batch.iter().map(|m| m.decision.as_uuid()).collect();
    let places: Vec<_> = batch.iter().map(|m| json(&m.place)).collect();
    let whys: Vec<_> = batch.iter().map(|m| json(&m.why)).collect();
    let texts: Vec<_> = batch.iter().map(|m| m.why.summary.clone()).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT u.*
              FROM UNNEST($1::bigint[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[])
                AS u (job, attempt, decision, place, why, text)
              JOIN jobs AS j ON j.job = u.job AND j.attempt = u.attempt AND j.state = 'running'
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, 'running', 'asked to put its work aside: ' || u.text FROM u
        )
        INSERT INTO decisions (decision, job, outcome, policy, epoch, place, why)
        SELECT u.decision, u.job, 'move', $7, $8, u.place::json, u.why::json FROM u
        "#,
        &jobs,
        &attempts,
        &decisions,
        &places,
        &whys,
        &texts,
        policy,
        signed(epoch),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, batch.len(), moved.rows_affected())
}

/// Changes waiting jobs by their users' word, and returns those that it changed with the states
/// that they are in now: a job in another state, or none at all, is left out. A release forgets
/// the ends that were not the job's fault: somebody looked at it.
///
/// # Errors
///
/// [`StoreError::Unavailable`], [`StoreError::Corrupt`].
pub async fn command(
    connection: &mut PgConnection,
    batch: &[Command],
) -> Result<HashMap<JobId, JobState>, StoreError> {
    if batch.is_empty() {
        return Ok(HashMap::new());
    }
    let jobs: Vec<_> = batch.iter().map(|c| number(c.job)).collect();
    let to: Vec<_> = batch.iter().map(|c| c.change.to().map(|to| to.word().to_owned())).collect();
    let sms: Vec<_> = batch.iter().map(|c| c.change.sm().map(|sm| i16::from(sm.get()))).collect();
    let texts: Vec<_> = batch.iter().map(|c| c.change.text()).collect();
    let (priorities, limits) = columns(batch.iter().map(|c| c.change.terms()));
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM UNNEST($1::bigint[], $2::text[], $3::smallint[], $4::text[],
                          $5::smallint[], $6::bigint[])
                AS u (job, to_state, sm, text, priority, limit_ms)
        ), m AS (
            UPDATE jobs
               SET state = COALESCE(u.to_state, jobs.state),
                   sm_percent = COALESCE(u.sm, jobs.sm_percent),
                   priority = COALESCE(u.priority, jobs.priority),
                   time_limit_ms = COALESCE(u.limit_ms, jobs.time_limit_ms),
                   uncharged = CASE WHEN jobs.state = 'held' AND u.to_state = 'queued' THEN 0
                                    ELSE jobs.uncharged END,
                   ended_at = CASE WHEN u.to_state = 'cancelled' THEN now() END
              FROM u
             WHERE jobs.job = u.job AND jobs.state IN ('queued', 'held')
            RETURNING jobs.job, jobs.state, u.text
        ), e AS (
            INSERT INTO job_events (job, state, text) SELECT m.job, m.state, m.text FROM m
        )
        SELECT m.job, m.state FROM m
        "#,
        &jobs,
        &to as &[Option<String>],
        &sms as &[Option<i16>],
        &texts,
        &priorities as &[Option<i16>],
        &limits as &[Option<i64>],
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("move waiting jobs"))?;
    moved
        .into_iter()
        .map(|row| {
            let bad = |problem: String| StoreError::Corrupt {
                table: "jobs",
                row: row.job.to_string(),
                problem,
            };
            let job = u64::try_from(row.job).map_err(|e| bad(e.to_string()))?;
            let state = row.state.parse().map_err(|e: BadId| bad(e.to_string()))?;
            Ok((JobId::from_number(job), state))
        })
        .collect()
}

impl Change {
    const fn to(self) -> Option<JobState> {
        match self {
            Self::To(to) => Some(to),
            Self::Share(_) | Self::Terms(_) => None,
        }
    }

    const fn sm(self) -> Option<SmPercent> {
        match self {
            Self::To(_) | Self::Terms(_) => None,
            Self::Share(sm) => Some(sm),
        }
    }

    const fn terms(self) -> Terms {
        match self {
            Self::Terms(terms) => terms,
            Self::To(_) | Self::Share(_) => Terms { priority: None, limit: None },
        }
    }

    fn text(self) -> String {
        match self {
            Self::To(JobState::Cancelled) => "cancelled by its user before it ran".to_owned(),
            Self::To(JobState::Held) => "held by its user".to_owned(),
            Self::To(_) => "released by its user".to_owned(),
            Self::Share(sm) => format!("its share becomes {sm}, by its user"),
            Self::Terms(terms) => terms.words(),
        }
    }
}

/// Returns the record of an attempt that ended without its shepherd's word.
pub fn record_without_exit(outcome: Outcome, detail: String) -> ExitRecord {
    ExitRecord {
        outcome,
        exit: None,
        detail,
        started_unix: Millis::ZERO,
        ended_unix: Millis::ZERO,
        user_time: Millis::ZERO,
        system_time: Millis::ZERO,
        max_rss: Bytes::ZERO,
    }
}
