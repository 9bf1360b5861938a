//! Administrative overrides of nodes, GPUs and slices, and the log of what administrators did.

use sqlx::PgConnection;
use tessera_model::ids::BadId;
use tessera_model::mig::{ProfileId, Slot};
use tessera_model::{GpuId, NodeId};

use super::StoreError;
use super::columns::{RowRef, integer};
use tessera_control::rows::overrides::{
    AdminOverrideRow, OperatorEvent, OverrideChange, OverrideKind, OverrideTarget,
};

struct TargetColumns {
    node: Option<uuid::Uuid>,
    gpu: Option<String>,
    start: Option<i16>,
    profile: Option<i32>,
}

impl From<&OverrideTarget> for TargetColumns {
    fn from(target: &OverrideTarget) -> Self {
        let (node, gpu, slot) = match target {
            OverrideTarget::Node(node) => (Some(*node), None, None),
            OverrideTarget::Gpu(gpu) => (None, Some(gpu), None),
            OverrideTarget::Slice(gpu, slot) => (None, Some(gpu), Some(slot)),
        };
        Self {
            node: node.map(NodeId::as_uuid),
            gpu: gpu.map(ToString::to_string),
            start: slot.map(|slot| i16::from(slot.start)),
            profile: slot.map(|slot| integer(slot.profile.0)),
        }
    }
}

/// Sets or clears an override. One that is set again keeps its time, and one that isn't set may be
/// cleared: both are harmless.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn apply_change(
    connection: &mut PgConnection,
    change: &OverrideChange,
) -> Result<(), StoreError> {
    let action = "change an administrative override";
    match change {
        OverrideChange::Set(set) => {
            let at = TargetColumns::from(&set.target);
            sqlx::query!(
                r#"
                INSERT INTO admin_overrides (kind, node, gpu, start, profile_id, by_user, reason)
                VALUES ($1, $2, $3, $4, $5, $6, $7)
                ON CONFLICT (kind, node, gpu, start, profile_id) DO UPDATE
                   SET by_user = EXCLUDED.by_user, reason = EXCLUDED.reason
                "#,
                set.kind.word(),
                at.node,
                at.gpu,
                at.start,
                at.profile,
                set.by,
                set.reason,
            )
            .execute(connection)
            .await
        }
        OverrideChange::Clear(kind, target) => {
            let at = TargetColumns::from(target);
            sqlx::query!(
                r#"
                DELETE FROM admin_overrides
                 WHERE kind = $1 AND node IS NOT DISTINCT FROM $2 AND gpu IS NOT DISTINCT FROM $3
                   AND start IS NOT DISTINCT FROM $4 AND profile_id IS NOT DISTINCT FROM $5
                "#,
                kind.word(),
                at.node,
                at.gpu,
                at.start,
                at.profile,
            )
            .execute(connection)
            .await
        }
    }
    .map_err(StoreError::while_trying_to(action))
    .map(drop)
}

/// Adds entries to the log of administrative actions.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_events(
    connection: &mut PgConnection,
    events: &[OperatorEvent],
) -> Result<(), StoreError> {
    for event in events {
        sqlx::query!(
            "INSERT INTO cluster_events (kind, node, gpu, by_user, text) VALUES ($1, $2, $3, $4, $5)",
            event.kind,
            event.node,
            event.gpu.as_ref().map(GpuId::as_str),
            event.by,
            event.text,
        )
        .execute(&mut *connection)
        .await
        .map_err(StoreError::while_trying_to("record what an administrator did"))?;
    }
    Ok(())
}

/// Reads the overrides that are set.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`] if a row can't be understood.
pub async fn read_overrides(
    connection: &mut PgConnection,
) -> Result<Vec<AdminOverrideRow>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT kind, node, gpu, start, profile_id, by_user, reason,
               (EXTRACT(EPOCH FROM set_at) * 1000)::bigint AS "set_ms!"
          FROM admin_overrides ORDER BY set_at
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read the administrative overrides"))?;
    rows.into_iter()
        .map(|found| {
            let target = found.gpu.clone();
            let key = target.or_else(|| found.node.map(|node| node.to_string()));
            let row = RowRef::new("admin_overrides", key.unwrap_or_default());
            let kind = [OverrideKind::Drained, OverrideKind::Quarantined, OverrideKind::Pinned]
                .into_iter()
                .find(|kind| kind.word() == found.kind)
                .ok_or_else(|| row.error("kind", format!("{:?} is unknown", found.kind)))?;
            let gpu = found.gpu.as_deref().map(str::parse).transpose();
            let gpu: Option<GpuId> = gpu.map_err(row.corrupt::<BadId>("gpu"))?;
            let slot = match (found.start, found.profile_id) {
                (Some(start), Some(profile)) => Some(Slot {
                    start: row.number("start", start)?,
                    profile: ProfileId(row.number("profile_id", profile)?),
                }),
                _ => None,
            };
            let target = match (found.node, gpu, slot) {
                (Some(node), None, None) => OverrideTarget::Node(NodeId::from_uuid(node)),
                (None, Some(gpu), None) => OverrideTarget::Gpu(gpu),
                (None, Some(gpu), Some(slot)) => OverrideTarget::Slice(gpu, slot),
                _ => return Err(row.error("node", "it does not name exactly one target")),
            };
            Ok(AdminOverrideRow {
                kind,
                target,
                by: found.by_user,
                reason: found.reason,
                since_unix: row.millis("set_at", found.set_ms)?,
            })
        })
        .collect()
}
