//! Nodes and their GPUs, as they register and report.

use sqlx::PgConnection;
use tessera_control::rows::nodes::NodeRegistration;
use tessera_frames::cluster::{GpuReport, MigReport};
use tessera_model::NodeId;

use super::columns::{bigint, integer, json_text};
use super::{StoreError, change_rows};

/// Inserts or updates a node that registers. Its generation never goes back.
///
/// # Errors
///
/// [`StoreError::Unavailable`], also if another node has its name.
pub async fn register_node(
    connection: &mut PgConnection,
    node: &NodeRegistration,
) -> Result<(), StoreError> {
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
        bigint(node.generation),
        node.boot.as_uuid(),
        node.software,
        integer(node.cores),
        bigint(node.memory_bytes),
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
/// [`StoreError::Conflict`] if its generation is not the one before, [`StoreError::Unavailable`].
pub async fn raise_generation(
    connection: &mut PgConnection,
    node: NodeId,
    generation: u64,
    lost: bool,
) -> Result<(), StoreError> {
    let action = "raise a node's generation";
    let statement = sqlx::query!(
        "UPDATE nodes SET generation = $2, lost = $3 WHERE node = $1 AND generation < $2",
        node.as_uuid(),
        bigint(generation),
        lost,
    );
    change_rows(action, 1, statement.execute(connection)).await
}

/// Stores a GPU's report, and the memory slices that its instances stand on.
///
/// # Errors
///
/// [`StoreError::Unavailable`], also if two of its instances overlap.
pub async fn store_gpu_report(
    connection: &mut PgConnection,
    node: NodeId,
    report: &GpuReport,
) -> Result<(), StoreError> {
    let action = "store a GPU's report";
    let gpu = report.gpu.as_str();
    let text = json_text(report);
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
        integer(report.index),
        bigint(report.layout_gen),
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
            profiles.push(integer(instance.slot.profile.0));
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
