//! Nodes, their GPUs, and the changes of layouts.

use sqlx::PgConnection;
use tessera_model::mig::{Layout, Step};
use tessera_model::{AttemptId, BootId, DecisionId, GpuId, JobId, NodeId, NodeName, PlanId};
use tessera_wire::frames::{GpuReport, MigReport};

use super::StoreError;

/// A node as it registers.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Its id, from its certificate.
    pub node: NodeId,
    /// Its name, from its certificate.
    pub name: NodeName,
    /// This boot of it.
    pub boot: BootId,
    /// Its generation from now on.
    pub generation: u64,
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
}

/// A plan that is ordered.
#[derive(Clone, Debug)]
pub struct PlanRow {
    /// Its id.
    pub plan: PlanId,
    /// On which GPU.
    pub gpu: GpuId,
    /// On which node.
    pub node: NodeId,
    /// Above that of every plan before it on this GPU.
    pub layout_gen: u64,
    /// What to do.
    pub steps: Vec<Step>,
    /// The same in words.
    pub steps_text: Vec<String>,
    /// For which job, the first of several.
    pub job: Option<JobId>,
    /// For which attempt.
    pub attempt: Option<AttemptId>,
    /// By which decision.
    pub decision: Option<DecisionId>,
    /// What an operator asked for, if it is on an operator's word.
    pub asked: Option<Asked>,
}

/// A layout that an operator asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// All that shall stand.
    pub wanted: Layout,
    /// Whether it is to be kept when jobs would need another.
    pub pin: bool,
}

/// A plan that came to its end.
#[derive(Clone, Debug)]
pub struct PlanClosed {
    /// Which.
    pub plan: PlanId,
    /// `done`, `failed` or `refused`.
    pub state: &'static str,
    /// Why it failed.
    pub detail: Option<String>,
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Inserts or updates a node that registers. Its generation never goes back.
///
/// # Errors
///
/// [`StoreError::Unavailable`], also if another node has its name.
pub async fn attach(connection: &mut PgConnection, node: &Attach) -> Result<(), StoreError> {
    sqlx::query!(
        r#"
        INSERT INTO nodes (node, name, generation, boot, agent_version, cores, memory_bytes,
                           mps, kernel)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ON CONFLICT (node) DO UPDATE
           SET name = EXCLUDED.name,
               generation = GREATEST(nodes.generation, EXCLUDED.generation),
               lost = false, boot = EXCLUDED.boot, agent_version = EXCLUDED.agent_version,
               cores = EXCLUDED.cores, memory_bytes = EXCLUDED.memory_bytes,
               mps = EXCLUDED.mps, kernel = EXCLUDED.kernel,
               last_seen_at = now()
        "#,
        node.node.as_uuid(),
        node.name.as_str(),
        signed(node.generation),
        node.boot.as_uuid(),
        node.software,
        i32::try_from(node.cores).unwrap_or(i32::MAX),
        signed(node.memory_bytes),
        node.mps,
        node.kernel,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("register a node"))
    .map(drop)
}

/// Raises a node's generation, declaring it lost if `lost`: every launch and lease of the old
/// generation is void (rule F7).
///
/// # Errors
///
/// [`StoreError::Moved`] if its generation is not the one before, [`StoreError::Unavailable`].
pub async fn raise_generation(
    connection: &mut PgConnection,
    node: NodeId,
    generation: u64,
    lost: bool,
) -> Result<(), StoreError> {
    let action = "raise a node's generation";
    let moved = sqlx::query!(
        "UPDATE nodes SET generation = $2, lost = $3 WHERE node = $1 AND generation < $2",
        node.as_uuid(),
        signed(generation),
        lost,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, 1, moved.rows_affected())
}

/// Stores a GPU's report, and the memory slices that its instances stand on.
///
/// # Errors
///
/// [`StoreError::Unavailable`], also if two of its instances overlap.
pub async fn report(
    connection: &mut PgConnection,
    node: NodeId,
    report: &GpuReport,
) -> Result<(), StoreError> {
    let action = "store a GPU's report";
    let gpu = report.gpu.as_str();
    let text = serde_json::to_string(report).expect("plain data has a JSON form");
    sqlx::query!(
        r#"
        INSERT INTO gpus (gpu, node, gpu_index, layout_gen, report)
        VALUES ($1, $2, $3, $4, $5::text::jsonb)
        ON CONFLICT (gpu) DO UPDATE
           SET node = EXCLUDED.node, gpu_index = EXCLUDED.gpu_index,
               layout_gen = GREATEST(gpus.layout_gen, EXCLUDED.layout_gen),
               report = EXCLUDED.report, reported_at = now()
        "#,
        gpu,
        node.as_uuid(),
        i32::try_from(report.index).unwrap_or(0),
        signed(report.layout_gen),
        text,
    )
    .execute(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    sqlx::query!("DELETE FROM instance_slots WHERE gpu = $1", gpu)
        .execute(&mut *connection)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    let MigReport::On { geometry } = &report.mig else { return Ok(()) };
    let (mut slots, mut starts, mut profiles) = (Vec::new(), Vec::new(), Vec::new());
    for instance in &report.instances {
        let size = geometry.profile(instance.slot.profile).map_or(1, |p| p.memory_slices);
        for slot in instance.slot.start..instance.slot.start.saturating_add(size) {
            slots.push(i16::from(slot));
            starts.push(i16::from(instance.slot.start));
            profiles.push(i32::try_from(instance.slot.profile.0).unwrap_or(-1));
        }
    }
    sqlx::query!(
        r#"
        INSERT INTO instance_slots (gpu, slot, start, profile_id)
        SELECT $1, u.slot, u.start, u.profile_id
          FROM UNNEST($2::smallint[], $3::smallint[], $4::integer[])
            AS u (slot, start, profile_id)
        "#,
        gpu,
        &slots,
        &starts,
        &profiles,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))
    .map(drop)
}

/// Records that a plan is ordered. Only one may be open on a GPU, by a constraint.
///
/// # Errors
///
/// [`StoreError::Moved`] if a newer plan was ordered before, [`StoreError::Unavailable`].
pub async fn order(connection: &mut PgConnection, plan: &PlanRow) -> Result<(), StoreError> {
    let action = "order a layout plan";
    let moved = sqlx::query!(
        "UPDATE gpus SET layout_gen = $2 WHERE gpu = $1 AND layout_gen < $2",
        plan.gpu.as_str(),
        signed(plan.layout_gen),
    )
    .execute(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, 1, moved.rows_affected())?;
    let steps = serde_json::to_string(&plan.steps).expect("plain data has a JSON form");
    let asked = plan.asked.as_ref();
    let wanted = asked
        .map(|asked| serde_json::to_string(&asked.wanted).expect("plain data has a JSON form"));
    sqlx::query!(
        r#"
        INSERT INTO layout_changes (plan, gpu, node, layout_gen, state, steps, steps_text, job,
                                    attempt, decision, requested_by, reason, wanted, pin)
        VALUES ($1, $2, $3, $4, 'ordered', $5::text::jsonb, $6, $7, $8, $9, $10, $11,
                $12::text::jsonb, $13)
        "#,
        plan.plan.as_uuid(),
        plan.gpu.as_str(),
        plan.node.as_uuid(),
        signed(plan.layout_gen),
        steps,
        &plan.steps_text,
        plan.job.map(|j| signed(j.number())),
        plan.attempt.map(AttemptId::as_uuid),
        plan.decision.map(DecisionId::as_uuid),
        asked.map(|asked| asked.by.as_str()),
        asked.and_then(|asked| asked.reason.as_deref()),
        wanted,
        asked.is_some_and(|asked| asked.pin),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))
    .map(drop)
}

/// Records that a plan came to its end; one that is closed already stays as it is.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn close(connection: &mut PgConnection, closed: &PlanClosed) -> Result<(), StoreError> {
    sqlx::query!(
        r#"
        UPDATE layout_changes SET state = $2, detail = $3, ended_at = now()
         WHERE plan = $1 AND state = 'ordered'
        "#,
        closed.plan.as_uuid(),
        closed.state,
        closed.detail.as_deref(),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("close a layout plan"))
    .map(drop)
}
