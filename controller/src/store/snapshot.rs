//! The snapshot of the store that a leader starts from: read at its start, and again whenever its
//! state in memory and the store may differ.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_frames::cluster::{ArrayPosition, GpuReport};
use tessera_model::ids::BadId;
use tessera_model::life::Outcome;
use tessera_model::mig::compute::ComputeSlot;
use tessera_model::mig::{Layout, PlanStep, ProfileId, Slot};
use tessera_model::share::{
    ComputeShare, KernelShare, MpsShare, SharingMode, SliceShare, SmPercent,
};
use tessera_model::spec::{BadField, GpuRequest, JobSpec, JobUpdate, QueueRank};
use tessera_model::{
    AttemptId, BootId, DecisionId, GangMember, GangShape, GpuId, JobId, NodeId, PlanId,
};
use tessera_placement::SharingRequest;
use uuid::Uuid;

use super::columns::{RowRef, elapsed, job_number};
use super::{StoreError, leader};
use tessera_control::predictions::TaskFacts;
use tessera_control::rows::nodes::{LayoutPlanRow, RequestedLayout};
use tessera_control::rows::snapshot::{
    GpuRow, LaunchSpec, LiveRow, NodeRow, OpenLayoutRequest, OpenPlan, StoreSnapshot,
};
use tessera_control::rows::submitted::{OwnMemory, SubmittedJob};

/// Reads everything, in one snapshot.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`] if a row can't be understood.
pub async fn read_snapshot(connection: &mut PgConnection) -> Result<StoreSnapshot, StoreError> {
    let action = "begin reading the cluster state";
    let mut snapshot =
        sqlx::Connection::begin(connection).await.map_err(StoreError::while_trying_to(action))?;
    sqlx::query!("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(&mut *snapshot)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    // A backlog of a million jobs takes longer than a request may.
    sqlx::query!("SET LOCAL statement_timeout = '120s'")
        .execute(&mut *snapshot)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    let live = read_live_attempts(&mut snapshot).await?;
    let jobs: Vec<_> = live.iter().map(|l| l.job).collect();
    let hold = leader::read_hold(&mut snapshot).await?;
    let read = StoreSnapshot {
        hold_left: hold.left,
        granted_left: hold.granted,
        generation_min: hold.generation_min,
        nodes: read_nodes(&mut snapshot).await?,
        gpus: read_gpus(&mut snapshot).await?,
        waiting: read_waiting_jobs(&mut snapshot).await?,
        launch_specs: read_launch_specs(&mut snapshot, &jobs).await?,
        plans: read_open_plans(&mut snapshot).await?,
        overrides: super::admin_overrides::read_overrides(&mut snapshot).await?,
        runs: super::predictions::read_run_samples(&mut snapshot).await?,
        memory_samples: super::predictions::read_memory_samples(&mut snapshot).await?,
        migrations: super::predictions::read_migration_times(&mut snapshot).await?,
        checkpoints: super::predictions::read_checkpoints(&mut snapshot).await?,
        growths: super::memory_growth::read_open_growths(&mut snapshot).await?,
        preemptions: super::preemptions::read_open(&mut snapshot).await?,
        sent_back: super::preemptions::read_sent_back(&mut snapshot).await?,
        live,
    };
    snapshot
        .commit()
        .await
        .map_err(StoreError::while_trying_to("end reading the cluster state"))?;
    Ok(read)
}

async fn read_nodes(connection: &mut PgConnection) -> Result<Vec<NodeRow>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT node, name, generation, lost, boot, agent_version, cores, memory_bytes, mps,
               kernel,
               (EXTRACT(EPOCH FROM last_seen_at) * 1000)::bigint AS "last_seen!"
          FROM nodes ORDER BY name
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the nodes"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("nodes", found.node);
            Ok(NodeRow {
                node: NodeId::from_uuid(found.node),
                name: found.name.parse().map_err(row.corrupt::<BadId>("name"))?,
                generation: row.number("generation", found.generation)?,
                lost: found.lost,
                boot: BootId::from_uuid(found.boot),
                software: found.agent_version,
                cores: row.number("cores", found.cores)?,
                memory_bytes: row.number("memory_bytes", found.memory_bytes)?,
                mps: found.mps,
                kernel: found.kernel,
                last_seen_unix: row.millis("last_seen_at", found.last_seen)?,
            })
        })
        .collect()
}

async fn read_gpus(connection: &mut PgConnection) -> Result<Vec<GpuRow>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT gpu, node, layout_gen, report AS "report: Json<GpuReport>"
          FROM gpus ORDER BY node, gpu_index
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the GPUs"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("gpus", &found.gpu);
            Ok(GpuRow {
                node: NodeId::from_uuid(found.node),
                layout_gen: row.number("layout_gen", found.layout_gen)?,
                report: found.report.0,
            })
        })
        .collect()
}

async fn read_waiting_jobs(connection: &mut PgConnection) -> Result<Vec<SubmittedJob>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT j.job, j.submission, j.attempts, j.sm_percent, j.done_ppm, j.restart_reason, s.user_name,
               j.out_of_memory, j.memory_estimate, j.held_before_launch, j.launch_multiprocessors,
               j.updates AS "updates: Json<JobUpdate>",
               s.spec -> 'gang' AS "gang: Json<GangShape>",
               s.facts AS "facts: Json<TaskFacts>",
               (EXTRACT(EPOCH FROM now() - s.accepted_at) * 1000)::bigint AS "waited!",
               s.spec -> 'share' AS "share: Json<SharingMode>",
               s.spec -> 'gpu' AS "gpu!: Json<GpuRequest>",
               queue_rank(s.spec) AS "queue_rank!: Json<QueueRank>"
          FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.state = 'queued' AND j.ended_at IS NULL
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the queue"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("jobs", found.job);
            let share = found.share.map_or(SharingMode::Exclusive, |share| share.0);
            let share = reshared(row, share, found.sm_percent)?;
            let job = row.job("job", found.job)?;
            let update = found.updates.map(|update| update.0).unwrap_or_default();
            let facts = found.facts.map(|facts| facts.0).unwrap_or_default().updated(&update);
            let restart_reason = found.restart_reason.as_deref().map(str::parse).transpose();
            let restart_reason = restart_reason.map_err(row.corrupt::<BadId>("restart_reason"))?;
            let waiting = SubmittedJob {
                job,
                gang: found
                    .gang
                    .map(|shape| member(row, job, found.submission, shape.0))
                    .transpose()?,
                array: Some(row.job("submission", found.submission)?),
                gpu: found.gpu.0,
                user: found.user_name.as_str().into(),
                share: share
                    .part()
                    .map(|share| SharingRequest::new(found.user_name.as_str(), share)),
                queue_rank: update.rank_over(found.queue_rank.0),
                attempts: row.number("attempts", found.attempts)?,
                facts: Arc::new(facts),
                waited: elapsed(found.waited),
                done: row.number("done_ppm", found.done_ppm)?,
                own: OwnMemory {
                    events: row.number("out_of_memory", found.out_of_memory)?,
                    at_least: row.optional_bytes("memory_estimate", found.memory_estimate)?,
                    held: row.optional_bytes("held_before_launch", found.held_before_launch)?,
                    multiprocessors: row
                        .optional_number("launch_multiprocessors", found.launch_multiprocessors)?,
                },
            };
            Ok(waiting.after(restart_reason))
        })
        .collect()
}

async fn read_live_attempts(connection: &mut PgConnection) -> Result<Vec<LiveRow>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT a.attempt, a.job, j.state, a.number, a.node, a.generation, a.gpu, a.start,
               a.profile_id, a.slice, a.decision, a.sm_percent, a.share_bytes,
               a.compute_start, a.compute_slices, a.gpu_memory, s.user_name, j.done_ppm, j.restart_reason,
               (EXTRACT(EPOCH FROM now() - s.accepted_at) * 1000)::bigint AS "waited!",
               (EXTRACT(EPOCH FROM now() - a.started_at) * 1000)::bigint AS "ran"
          FROM attempts AS a
          JOIN jobs AS j ON j.job = a.job AND j.attempt = a.attempt
          JOIN submissions AS s ON s.first_job = j.submission
         WHERE a.live
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the live attempts"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("attempts", found.attempt);
            let slot = match (found.start, found.profile_id) {
                (Some(start), Some(profile)) => Some(Slot {
                    start: row.number("start", start)?,
                    profile: ProfileId(row.number("profile_id", profile)?),
                }),
                _ => None,
            };
            let slice = found.slice.as_deref().map(str::parse).transpose();
            let compute = found.compute_start.zip(found.compute_slices);
            let share = share_of(row, found.sm_percent, found.share_bytes, compute)?;
            Ok(LiveRow {
                attempt: AttemptId::from_uuid(found.attempt),
                job: row.job("job", found.job)?,
                state: found.state.parse().map_err(row.corrupt::<BadId>("state"))?,
                number: row.number("number", found.number)?,
                node: NodeId::from_uuid(found.node),
                generation: row.number("generation", found.generation)?,
                gpu: found.gpu.parse().map_err(row.corrupt::<BadId>("gpu"))?,
                slot,
                share: share.map(|share| SharingRequest {
                    apart: found.restart_reason.as_deref() == Some(Outcome::Collateral.word()),
                    ..SharingRequest::new(found.user_name.as_str(), share)
                }),
                slice: slice.map_err(row.corrupt::<BadId>("slice"))?,
                decision: DecisionId::from_uuid(found.decision),
                waited: elapsed(found.waited),
                ran: found.ran.map(elapsed),
                done: row.number("done_ppm", found.done_ppm)?,
                gpu_memory: found
                    .gpu_memory
                    .map(|bytes| row.bytes("gpu_memory", bytes))
                    .transpose()?,
            })
        })
        .collect()
}

/// Reads an attempt's part of its slice; nothing for one that has the slice to itself.
fn share_of(
    row: RowRef<Uuid>,
    sm_percent: Option<i16>,
    share_bytes: Option<i64>,
    compute: Option<(i16, i16)>,
) -> Result<Option<SliceShare>, StoreError> {
    let Some(bytes) = share_bytes else { return Ok(None) };
    let memory = row.bytes("share_bytes", bytes)?;
    if let Some((start, slices)) = compute {
        let slot = ComputeSlot {
            start: row.number("compute_start", start)?,
            slices: row.number("compute_slices", slices)?,
        };
        return Ok(Some(SliceShare::Compute(ComputeShare { slot, memory })));
    }
    let Some(sm) = sm_percent else { return Ok(Some(SliceShare::Kernel(KernelShare { memory }))) };
    let sm = sm_of(row, sm)?;
    Ok(Some(SliceShare::Mps(MpsShare { sm, memory })))
}

fn sm_of<K: Display>(row: RowRef<K>, sm_percent: i16) -> Result<SmPercent, StoreError> {
    let percent: u8 = row.number("sm_percent", sm_percent)?;
    SmPercent::try_from(percent).map_err(row.corrupt::<BadField>("sm_percent"))
}

fn member(
    row: RowRef<i64>,
    job: JobId,
    submission: i64,
    shape: GangShape,
) -> Result<GangMember, StoreError> {
    let gang = row.job("submission", submission)?;
    GangMember::of(job, gang, shape)
        .ok_or_else(|| row.error("job", format!("it is no member of the gang {gang}")))
}

/// Replaces the share of a job's specification by the one that its user set since its submit.
fn reshared(
    row: RowRef<i64>,
    share: SharingMode,
    sm_percent: Option<i16>,
) -> Result<SharingMode, StoreError> {
    Ok(match (share, sm_percent) {
        (SharingMode::Mps(share), Some(sm)) => {
            SharingMode::Mps(MpsShare { sm: sm_of(row, sm)?, ..share })
        }
        (share, _) => share,
    })
}

async fn read_open_plans(connection: &mut PgConnection) -> Result<Vec<OpenPlan>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT plan, gpu, node, layout_gen, steps AS "steps: Json<Vec<PlanStep>>", steps_text,
               requested_by, reason, pin, desired_layout AS "desired_layout: Json<Layout>"
          FROM layout_plans WHERE state = 'open'
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the open plans"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("layout_plans", found.plan);
            let plan = PlanId::from_uuid(found.plan);
            let gpu: GpuId = found.gpu.parse().map_err(row.corrupt::<BadId>("gpu"))?;
            let requested = found.requested_by.zip(found.desired_layout).map(|(by, desired)| {
                RequestedLayout { by, reason: found.reason, layout: desired.0, pin: found.pin }
            });
            let layout_gen = row.number("layout_gen", found.layout_gen)?;
            let requested_layout = requested.map(|requested| OpenLayoutRequest {
                row: LayoutPlanRow {
                    plan,
                    gpu: gpu.clone(),
                    node: NodeId::from_uuid(found.node),
                    layout_gen,
                    steps: found.steps.0,
                    steps_text: found.steps_text,
                    job: None,
                    attempt: None,
                    decision: None,
                    requested: Some(requested.clone()),
                },
                requested,
            });
            Ok(OpenPlan { plan, gpu, requested_layout })
        })
        .collect()
}

/// Reads what launches need of jobs.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`] if a specification can't be understood.
pub async fn read_launch_specs(
    connection: &mut PgConnection,
    jobs: &[JobId],
) -> Result<HashMap<JobId, LaunchSpec>, StoreError> {
    if jobs.is_empty() {
        return Ok(HashMap::new());
    }
    let numbers: Vec<_> = jobs.iter().copied().map(job_number).collect();
    let rows = sqlx::query_as!(
        LaunchRow,
        r#"
        SELECT j.job, j.submission, j.attempts, j.sm_percent, j.charged, j.uncharged, j.restart_reason, s.tasks,
               j.out_of_memory, j.memory_estimate, j.held_before_launch, j.launch_multiprocessors,
               j.updates AS "updates: Json<JobUpdate>",
               s.array_first, s.traceparent, s.spec AS "spec: Json<JobSpec>", j.done_ppm,
               (EXTRACT(EPOCH FROM now() - s.accepted_at) * 1000)::bigint AS "waited!"
          FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job = ANY($1)
        "#,
        &numbers,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what jobs run"))?;
    rows.into_iter().map(LaunchRow::into_spec).collect()
}

/// What launches need of a job, as statements return it.
#[derive(Debug)]
pub(super) struct LaunchRow {
    pub(super) job: i64,
    pub(super) submission: i64,
    pub(super) attempts: i32,
    pub(super) sm_percent: Option<i16>,
    pub(super) charged: i32,
    pub(super) uncharged: i32,
    pub(super) restart_reason: Option<String>,
    pub(super) tasks: i32,
    pub(super) out_of_memory: i32,
    pub(super) memory_estimate: Option<i64>,
    pub(super) held_before_launch: Option<i64>,
    pub(super) launch_multiprocessors: Option<i32>,
    pub(super) updates: Option<Json<JobUpdate>>,
    pub(super) array_first: Option<i32>,
    pub(super) traceparent: Option<String>,
    pub(super) spec: Json<JobSpec>,
    pub(super) done_ppm: i32,
    pub(super) waited: i64,
}

impl LaunchRow {
    /// Returns the job with its launch specification.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if it can't be understood.
    pub(super) fn into_spec(self) -> Result<(JobId, LaunchSpec), StoreError> {
        let row = RowRef::new("jobs", self.job);
        let job = row.job("job", self.job)?;
        let restart_reason = self.restart_reason.as_deref().map(str::parse).transpose();
        let mut spec = self.spec.0;
        let gang = spec.gang.map(|shape| member(row, job, self.submission, shape)).transpose()?;
        let is_array = gang.is_none() || !spec.array.indexes.is_empty();
        let first = self.array_first.filter(|_| is_array);
        let place = |first| array_place(row, self.submission, first, self.tasks, &spec);
        let array = first.map(place).transpose()?;
        spec.share = reshared(row, spec.share, self.sm_percent)?;
        let update = self.updates.map(|update| update.0).unwrap_or_default();
        update.apply_to(&mut spec);
        let launch_spec = LaunchSpec {
            spec: Arc::new(spec),
            array,
            gang,
            traceparent: self.traceparent,
            charged: row.number("charged", self.charged)?,
            uncharged: row.number("uncharged", self.uncharged)?,
            attempts: row.number("attempts", self.attempts)?,
            relimited: update.limit.is_some(),
            restart_reason: restart_reason.map_err(row.corrupt::<BadId>("restart_reason"))?,
            waited: elapsed(self.waited),
            done: row.number("done_ppm", self.done_ppm)?,
            own: OwnMemory {
                events: row.number("out_of_memory", self.out_of_memory)?,
                at_least: row.optional_bytes("memory_estimate", self.memory_estimate)?,
                held: row.optional_bytes("held_before_launch", self.held_before_launch)?,
                multiprocessors: row
                    .optional_number("launch_multiprocessors", self.launch_multiprocessors)?,
            },
        };
        Ok((job, launch_spec))
    }
}

/// Reads a task's place in its array: its tasks have consecutive numbers, and so have the members of a task.
fn array_place(
    row: RowRef<i64>,
    submission: i64,
    first: i32,
    tasks: i32,
    spec: &JobSpec,
) -> Result<ArrayPosition, StoreError> {
    let rules = &spec.array;
    let members = spec.gang.map_or(1, GangShape::members);
    let min: u32 = row.number("array_first", first)?;
    let count = row.number::<u32>("tasks", tasks)? / members;
    let array = row.job("submission", submission)?;
    let place = row.number::<u32>("submission", row.key() - submission)? / members;
    let last = count.max(1) - 1;
    let (Some(index), Some(max)) = (rules.index_at(place, min), rules.index_at(last, min)) else {
        return Err(row.error("array_first", format!("{first} is too large")));
    };
    Ok(ArrayPosition { array, index, count, min, max })
}

/// Reads the states of jobs; those that don't exist are left out.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn read_states(
    connection: &mut PgConnection,
    jobs: &[JobId],
) -> Result<HashMap<JobId, String>, StoreError> {
    let numbers: Vec<_> = jobs.iter().copied().map(job_number).collect();
    let rows = sqlx::query!("SELECT job, state FROM jobs WHERE job = ANY($1)", &numbers)
        .fetch_all(connection)
        .await
        .map_err(StoreError::while_trying_to("read the states of jobs"))?;
    rows.into_iter()
        .map(|found| Ok((RowRef::new("jobs", found.job).job("job", found.job)?, found.state)))
        .collect()
}
