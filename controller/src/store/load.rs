//! Everything that a leader needs to begin: read once at its start, and again whenever its
//! picture and the store may differ.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::compute::ComputeSlot;
use tessera_model::mig::{Layout, ProfileId, Slot, Step};
use tessera_model::share::{ComputeShare, KernelShare, MpsShare, Part, Share, SmPercent};
use tessera_model::spec::{BadField, GpuAsk, JobSpec, Priority};
use tessera_model::{
    AttemptId, BootId, Bytes, DecisionId, GangShape, GpuId, JobId, Member, Millis, NodeId,
    NodeName, PlanId, SliceId,
};
use tessera_placement::Sharer;
use tessera_wire::frames::{ArrayPlace, GpuReport};

use super::nodes::{Asked, PlanRow};
use super::submit::FreshJob;
use super::{StoreError, leader};
use crate::core::floors::MemoryLesson;
use crate::core::foresight::{Aside, Facts, Lesson};
use crate::ports::{Limit, Terms};

/// A node as the store has it.
#[derive(Clone, Debug)]
pub struct NodeRow {
    /// Its id.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// Its generation.
    pub generation: u64,
    /// Whether it was declared lost.
    pub lost: bool,
    /// Its last boot.
    pub boot: BootId,
    /// Its agent's version.
    pub software: String,
    /// Its processor cores.
    pub cores: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Whether its slices can be shared.
    pub mps: bool,
    /// Whether it can share slices kernel by kernel.
    pub kernel: bool,
    /// When it last registered, milliseconds since 1970.
    pub last_seen_unix: Millis,
}

/// A GPU as the store has it.
#[derive(Clone, Debug)]
pub struct GpuRow {
    /// Its node.
    pub node: NodeId,
    /// The newest plan that was ordered.
    pub layout_gen: u64,
    /// As last reported.
    pub report: GpuReport,
}

/// A live attempt with its job.
#[derive(Clone, Debug)]
pub struct LiveRow {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its job.
    pub job: JobId,
    /// The job's state.
    pub state: JobState,
    /// The attempt's number.
    pub number: u32,
    /// On which node.
    pub node: NodeId,
    /// The generation that it was placed for.
    pub generation: u64,
    /// On which GPU.
    pub gpu: GpuId,
    /// In which slot; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// Its part of the slice; `None` if it has the slice to itself.
    pub share: Option<Sharer>,
    /// On which slice, once it stands.
    pub slice: Option<SliceId>,
    /// The decision that placed it.
    pub decision: DecisionId,
    /// How long ago its job was accepted.
    pub waited: Millis,
    /// How long ago its program was started.
    pub ran: Option<Millis>,
    /// How much of its job was done before it, in millionths.
    pub done: u32,
}

/// What a launch needs of a job.
#[derive(Clone, Debug)]
pub struct JobSheet {
    /// What to run.
    pub spec: Arc<JobSpec>,
    /// Its place in its array.
    pub array: Option<ArrayPlace>,
    /// Its place in its gang.
    pub gang: Option<Member>,
    /// W3C trace context of its submit.
    pub traceparent: Option<String>,
    /// Retries that it used up.
    pub charged: u32,
    /// Ends that were not its fault.
    pub uncharged: u32,
    /// Attempts so far.
    pub attempts: u32,
    /// Whether its time limit is not the one that it was submitted with.
    pub relimited: bool,
    /// Why it runs again.
    pub restart_reason: Option<Outcome>,
    /// How long ago it was accepted.
    pub waited: Millis,
    /// How much of it was put aside, in millionths.
    pub done: u32,
}

/// A plan that is under way.
#[derive(Clone, Debug)]
pub struct OpenPlan {
    /// Its id.
    pub plan: PlanId,
    /// On which GPU.
    pub gpu: GpuId,
    /// What an operator asked for, if it is an operator's.
    pub wish: Option<OpenWish>,
}

/// A layout that an operator asked for, under way.
#[derive(Clone, Debug)]
pub struct OpenWish {
    /// The plan, to be ordered again.
    pub row: PlanRow,
    /// What was asked for.
    pub asked: Asked,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// The nodes.
    pub nodes: Vec<NodeRow>,
    /// Their GPUs.
    pub gpus: Vec<GpuRow>,
    /// Jobs that are queued.
    pub waiting: Vec<FreshJob>,
    /// Live attempts.
    pub live: Vec<LiveRow>,
    /// What the live attempts run.
    pub sheets: HashMap<JobId, JobSheet>,
    /// Plans under way.
    pub plans: Vec<OpenPlan>,
    /// What operators said.
    pub words: Vec<super::operator::Word>,
    /// How long nothing is to be placed yet (rule F14).
    pub hold_left: Millis,
    /// How long a node may still run under what earlier leaders granted, without a word.
    pub granted_left: Millis,
    /// Nodes of lower generations are lost (rule F14).
    pub generation_floor: u64,
    /// Runs of the past, the oldest first.
    pub lessons: Vec<Lesson>,
    /// What memory they had, the oldest first.
    pub memories: Vec<MemoryLesson>,
    /// What moves of tasks took, the oldest first.
    pub moves: Vec<(String, Millis)>,
    /// What attempts of unfinished jobs put aside.
    pub asides: Vec<Aside>,
}

pub(super) fn corrupt(
    table: &'static str,
    row: impl ToString,
    problem: impl ToString,
) -> StoreError {
    StoreError::Corrupt { table, row: row.to_string(), problem: problem.to_string() }
}

/// Clocks may have been set meanwhile: a time that is to come counts as none.
fn millis(value: i64) -> Millis {
    Millis::new(u64::try_from(value).unwrap_or(0))
}

fn unsigned(table: &'static str, row: impl ToString, value: i64) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| corrupt(table, row, "a negative number"))
}

/// Reads everything, in one snapshot.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`] if a row can't be understood.
pub async fn picture(connection: &mut PgConnection) -> Result<Picture, StoreError> {
    let action = "begin reading the picture";
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
    let live = live(&mut snapshot).await?;
    let jobs: Vec<_> = live.iter().map(|l| l.job).collect();
    let hold = leader::hold(&mut snapshot).await?;
    let picture = Picture {
        hold_left: hold.left,
        granted_left: hold.granted,
        generation_floor: hold.generation_floor,
        nodes: nodes(&mut snapshot).await?,
        gpus: gpus(&mut snapshot).await?,
        waiting: waiting(&mut snapshot).await?,
        sheets: sheets(&mut snapshot, &jobs).await?,
        plans: plans(&mut snapshot).await?,
        words: super::operator::words(&mut snapshot).await?,
        lessons: super::foresight::lessons(&mut snapshot).await?,
        memories: super::foresight::memories(&mut snapshot).await?,
        moves: super::foresight::moves(&mut snapshot).await?,
        asides: super::foresight::asides(&mut snapshot).await?,
        live,
    };
    snapshot.commit().await.map_err(StoreError::while_trying_to("end reading the picture"))?;
    Ok(picture)
}

async fn nodes(connection: &mut PgConnection) -> Result<Vec<NodeRow>, StoreError> {
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
        .map(|row| {
            Ok(NodeRow {
                node: NodeId::from_uuid(row.node),
                name: row.name.parse().map_err(|e| corrupt("nodes", row.node, e))?,
                generation: unsigned("nodes", row.node, row.generation)?,
                lost: row.lost,
                boot: BootId::from_uuid(row.boot),
                software: row.agent_version,
                cores: u32::try_from(row.cores).unwrap_or(0),
                memory_bytes: unsigned("nodes", row.node, row.memory_bytes)?,
                mps: row.mps,
                kernel: row.kernel,
                last_seen_unix: Millis::new(u64::try_from(row.last_seen).unwrap_or(0)),
            })
        })
        .collect()
}

async fn gpus(connection: &mut PgConnection) -> Result<Vec<GpuRow>, StoreError> {
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
        .map(|row| {
            Ok(GpuRow {
                node: NodeId::from_uuid(row.node),
                layout_gen: unsigned("gpus", row.gpu, row.layout_gen)?,
                report: row.report.0,
            })
        })
        .collect()
}

async fn waiting(connection: &mut PgConnection) -> Result<Vec<FreshJob>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT j.job, j.submission, j.attempts, j.sm_percent, j.done_ppm, s.user_name,
               j.priority AS amended, j.time_limit_ms,
               s.spec -> 'gang' AS "gang: Json<GangShape>",
               s.facts AS "facts: Json<Facts>",
               (EXTRACT(EPOCH FROM now() - s.accepted_at) * 1000)::bigint AS "waited!",
               s.spec -> 'share' AS "share: Json<Share>",
               s.spec -> 'gpu' AS "gpu!: Json<GpuAsk>",
               s.spec -> 'priority' AS "priority!: Json<Priority>"
          FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.state = 'queued' AND j.ended_at IS NULL
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the queue"))?;
    rows.into_iter()
        .map(|row| {
            let share = reshared(row.share.map_or(Share::Exclusive, |s| s.0), row.sm_percent);
            let job = JobId::from_number(unsigned("jobs", row.job, row.job)?);
            let terms = terms(row.amended, row.time_limit_ms);
            let mut facts = row.facts.map(|facts| facts.0).unwrap_or_default();
            if let Some(limit) = terms.limit {
                facts.limit = limit.time();
            }
            Ok(FreshJob {
                job,
                gang: row.gang.and_then(|shape| member(job, row.submission, shape.0)),
                gpu: row.gpu.0,
                user: row.user_name.as_str().into(),
                share: share.part().map(|share| Sharer::new(row.user_name.as_str(), share)),
                priority: terms.priority.unwrap_or(row.priority.0),
                attempts: u32::try_from(row.attempts).unwrap_or(0),
                facts: Arc::new(facts),
                waited: millis(row.waited),
                done: u32::try_from(row.done_ppm).unwrap_or(0),
            })
        })
        .collect()
}

async fn live(connection: &mut PgConnection) -> Result<Vec<LiveRow>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT a.attempt, a.job, j.state, a.number, a.node, a.generation, a.gpu, a.start,
               a.profile_id, a.slice, a.decision, a.sm_percent, a.share_bytes,
               a.compute_start, a.compute_slices, s.user_name, j.done_ppm,
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
        .map(|row| {
            let bad = |problem: String| corrupt("attempts", row.attempt, problem);
            let slot = match (row.start, row.profile_id) {
                (Some(start), Some(profile)) => Some(Slot {
                    start: u8::try_from(start).map_err(|e| bad(e.to_string()))?,
                    profile: ProfileId(u32::try_from(profile).map_err(|e| bad(e.to_string()))?),
                }),
                _ => None,
            };
            let slice = row.slice.as_deref().map(str::parse).transpose();
            Ok(LiveRow {
                attempt: AttemptId::from_uuid(row.attempt),
                job: JobId::from_number(unsigned("attempts", row.attempt, row.job)?),
                state: row
                    .state
                    .parse()
                    .map_err(|e: tessera_model::ids::BadId| bad(e.to_string()))?,
                number: u32::try_from(row.number).unwrap_or(0),
                node: NodeId::from_uuid(row.node),
                generation: unsigned("attempts", row.attempt, row.generation)?,
                gpu: row.gpu.parse().map_err(|e: tessera_model::ids::BadId| bad(e.to_string()))?,
                slot,
                share: share_of(row.sm_percent, row.share_bytes)
                    .map_err(|e| bad(e.to_string()))?
                    .map(|part| on_its_own(part, row.compute_start, row.compute_slices))
                    .map(|share| Sharer::new(row.user_name.as_str(), share)),
                slice: slice.map_err(|e: tessera_model::ids::BadId| bad(e.to_string()))?,
                decision: DecisionId::from_uuid(row.decision),
                waited: millis(row.waited),
                ran: row.ran.map(millis),
                done: u32::try_from(row.done_ppm).unwrap_or(0),
            })
        })
        .collect()
}

/// Reads an attempt's part of its slice.
fn share_of(sm: Option<i16>, bytes: Option<i64>) -> Result<Option<Part>, BadField> {
    let Some(bytes) = bytes else { return Ok(None) };
    let memory = Bytes::new(u64::try_from(bytes).unwrap_or(0));
    let Some(sm) = sm else { return Ok(Some(Part::Kernel(KernelShare { memory }))) };
    let sm = SmPercent::try_from(u8::try_from(sm).unwrap_or(0))?;
    Ok(Some(Part::Mps(MpsShare { sm, memory })))
}

/// Reads which compute instance an attempt has, if it has one to itself.
fn on_its_own(part: Part, start: Option<i16>, slices: Option<i16>) -> Part {
    let small = |number: Option<i16>| u8::try_from(number?).ok();
    match small(start).zip(small(slices)) {
        Some((start, slices)) => {
            let slot = ComputeSlot { start, slices };
            Part::Compute(ComputeShare { slot, memory: part.memory() })
        }
        None => part,
    }
}

fn member(job: JobId, submission: i64, shape: GangShape) -> Option<Member> {
    let gang = JobId::from_number(u64::try_from(submission).ok()?);
    Member::of(job, gang, shape)
}

/// Reads what a job's user said last of its rank and its time limit; no limit is zero.
pub(super) fn terms(priority: Option<i16>, limit_ms: Option<i64>) -> Terms {
    let priority = priority.and_then(|rank| Priority::try_from(u8::try_from(rank).ok()?).ok());
    let limit = limit_ms.map(|limit| match limit {
        ..=0 => Limit::Unlimited,
        limit => Limit::Of(millis(limit)),
    });
    Terms { priority, limit }
}

/// Lays what a job's user said last of its share over what its specification says.
fn reshared(share: Share, sm: Option<i16>) -> Share {
    let sm = sm.and_then(|sm| SmPercent::try_from(u8::try_from(sm).ok()?).ok());
    match (share, sm) {
        (Share::Mps(share), Some(sm)) => Share::Mps(MpsShare { sm, ..share }),
        (share, _) => share,
    }
}

async fn plans(connection: &mut PgConnection) -> Result<Vec<OpenPlan>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT plan, gpu, node, layout_gen, steps AS "steps: Json<Vec<Step>>", steps_text,
               requested_by, reason, pin, wanted AS "wanted: Json<Layout>"
          FROM layout_changes WHERE state = 'ordered'
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the open plans"))?;
    rows.into_iter()
        .map(|row| {
            let plan = PlanId::from_uuid(row.plan);
            let gpu: GpuId = row.gpu.parse().map_err(|e| corrupt("layout_changes", row.plan, e))?;
            let asked = row.requested_by.zip(row.wanted).map(|(by, wanted)| Asked {
                by,
                reason: row.reason,
                wanted: wanted.0,
                pin: row.pin,
            });
            let layout_gen = unsigned("layout_changes", row.plan, row.layout_gen)?;
            let wish = asked.map(|asked| OpenWish {
                row: PlanRow {
                    plan,
                    gpu: gpu.clone(),
                    node: NodeId::from_uuid(row.node),
                    layout_gen,
                    steps: row.steps.0,
                    steps_text: row.steps_text,
                    job: None,
                    attempt: None,
                    decision: None,
                    asked: Some(asked.clone()),
                },
                asked,
            });
            Ok(OpenPlan { plan, gpu, wish })
        })
        .collect()
}

/// Reads what launches need of jobs.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`] if a specification can't be understood.
pub async fn sheets(
    connection: &mut PgConnection,
    jobs: &[JobId],
) -> Result<HashMap<JobId, JobSheet>, StoreError> {
    if jobs.is_empty() {
        return Ok(HashMap::new());
    }
    let numbers: Vec<_> =
        jobs.iter().map(|j| i64::try_from(j.number()).unwrap_or(i64::MAX)).collect();
    let rows = sqlx::query!(
        r#"
        SELECT j.job, j.submission, j.attempts, j.sm_percent, j.charged, j.uncharged, j.restart_reason, s.tasks,
               j.priority, j.time_limit_ms,
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
    let mut sheets = HashMap::with_capacity(rows.len());
    for row in rows {
        let job = JobId::from_number(unsigned("jobs", row.job, row.job)?);
        let array = row.array_first.map(|first| {
            let min = u32::try_from(first).unwrap_or(0);
            let count = u32::try_from(row.tasks).unwrap_or(1);
            let place = u32::try_from(row.job - row.submission).unwrap_or(0);
            ArrayPlace {
                array: JobId::from_number(u64::try_from(row.submission).unwrap_or(0)),
                index: min + place,
                count,
                min,
                max: min + count.saturating_sub(1),
            }
        });
        let restart_reason = row.restart_reason.as_deref().map(str::parse).transpose();
        let mut spec = row.spec.0;
        let gang = spec.gang.and_then(|shape| member(job, row.submission, shape));
        let array = array.filter(|_| gang.is_none());
        spec.share = reshared(spec.share, row.sm_percent);
        let terms = terms(row.priority, row.time_limit_ms);
        terms.over(&mut spec);
        sheets.insert(
            job,
            JobSheet {
                spec: Arc::new(spec),
                array,
                gang,
                traceparent: row.traceparent,
                charged: u32::try_from(row.charged).unwrap_or(0),
                uncharged: u32::try_from(row.uncharged).unwrap_or(0),
                attempts: u32::try_from(row.attempts).unwrap_or(0),
                relimited: terms.limit.is_some(),
                restart_reason: restart_reason
                    .map_err(|e: tessera_model::ids::BadId| corrupt("jobs", row.job, e))?,
                waited: millis(row.waited),
                done: u32::try_from(row.done_ppm).unwrap_or(0),
            },
        );
    }
    Ok(sheets)
}

/// Reads the states of jobs; those that don't exist are left out.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn states(
    connection: &mut PgConnection,
    jobs: &[JobId],
) -> Result<HashMap<JobId, String>, StoreError> {
    let numbers: Vec<_> =
        jobs.iter().map(|j| i64::try_from(j.number()).unwrap_or(i64::MAX)).collect();
    let rows = sqlx::query!("SELECT job, state FROM jobs WHERE job = ANY($1)", &numbers)
        .fetch_all(connection)
        .await
        .map_err(StoreError::while_trying_to("read the states of jobs"))?;
    rows.into_iter()
        .map(|row| Ok((JobId::from_number(unsigned("jobs", row.job, row.job)?), row.state)))
        .collect()
}
