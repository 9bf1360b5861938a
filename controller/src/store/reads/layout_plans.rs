//! Layout plans.

use sqlx::PgConnection;
use tessera_api_types::{LayoutPlan, LayoutPlans};
use tessera_model::{DecisionId, GpuId, PlanId};
use time::OffsetDateTime;

use super::page::{Cursor, PageSize};
use crate::store::StoreError;
use crate::store::columns::RowRef;

/// Lists layout plans, newest first.
pub(super) async fn page(
    at: &mut PgConnection,
    gpu: Option<GpuId>,
    before: Option<Cursor>,
    size: PageSize,
) -> Result<LayoutPlans, StoreError> {
    let mut rows = rows(at, gpu, before, size).await?;
    let more = size.cut(&mut rows);
    let next_cursor = rows
        .last()
        .filter(|_| more)
        .map(|row| Cursor { at: row.planned_at, plan: PlanId::from_uuid(row.plan) }.to_string());
    let items: Result<_, StoreError> = rows.into_iter().map(LayoutPlan::try_from).collect();
    Ok(LayoutPlans { items: items?, next_cursor })
}

async fn rows(
    at: &mut PgConnection,
    gpu: Option<GpuId>,
    before: Option<Cursor>,
    size: PageSize,
) -> Result<Vec<LayoutRow>, StoreError> {
    sqlx::query_as!(
        LayoutRow,
        r#"
        SELECT l.plan, l.gpu, n.name AS node, l.planned_at, l.ended_at, l.state, l.steps_text,
               l.job, l.decision, l.detail, l.requested_by, l.reason
          FROM layout_plans AS l
          JOIN nodes AS n ON n.node = l.node
         WHERE ($1::text IS NULL OR l.gpu = $1)
           AND ($2::timestamptz IS NULL
                OR l.planned_at < $2 OR (l.planned_at = $2 AND l.plan < $3))
           AND l.planned_at <= COALESCE($2, 'infinity')
         ORDER BY l.planned_at DESC, l.plan DESC
         LIMIT $4
        "#,
        gpu.as_ref().map(GpuId::as_str),
        before.map(|cursor| cursor.at),
        before.map(|cursor| cursor.plan.as_uuid()),
        size.rows(),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list layout plans"))
}

/// Returns one layout plan.
pub(super) async fn one(
    at: &mut PgConnection,
    plan: PlanId,
) -> Result<Option<LayoutPlan>, StoreError> {
    let row = sqlx::query_as!(
        LayoutRow,
        r#"
        SELECT l.plan, l.gpu, n.name AS node, l.planned_at, l.ended_at, l.state, l.steps_text,
               l.job, l.decision, l.detail, l.requested_by, l.reason
          FROM layout_plans AS l
          JOIN nodes AS n ON n.node = l.node
         WHERE l.plan = $1
        "#,
        plan.as_uuid(),
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("read a layout plan"))?;
    row.map(LayoutPlan::try_from).transpose()
}

struct LayoutRow {
    plan: uuid::Uuid,
    gpu: String,
    node: String,
    planned_at: OffsetDateTime,
    ended_at: Option<OffsetDateTime>,
    state: String,
    steps_text: Vec<String>,
    job: Option<i64>,
    decision: Option<uuid::Uuid>,
    detail: Option<String>,
    requested_by: Option<String>,
    reason: Option<String>,
}

impl TryFrom<LayoutRow> for LayoutPlan {
    type Error = StoreError;

    fn try_from(row: LayoutRow) -> Result<Self, StoreError> {
        let plan = PlanId::from_uuid(row.plan);
        Ok(Self {
            plan: plan.to_string(),
            gpu: row.gpu,
            node: row.node,
            planned_at: row.planned_at,
            ended_at: row.ended_at,
            state: row.state,
            steps: row.steps_text,
            job_id: RowRef::new("layout_plans", plan).optional_number("job", row.job)?,
            decision: row.decision.map(|id| DecisionId::from_uuid(id).to_string()),
            detail: row.detail,
            requested_by: row.requested_by,
            reason: row.reason,
        })
    }
}
