//! Layout plans: how the layout of a GPU is to change, and how that ended.

use sqlx::PgConnection;
use tessera_control::rows::nodes::{EndedPlan, LayoutPlanRow};
use tessera_model::{AttemptId, DecisionId};

use super::columns::{bigint, job_number, json_text};
use super::{StoreError, change_rows};

/// Writes a new plan. A constraint keeps a GPU from having two open ones.
///
/// # Errors
///
/// [`StoreError::Conflict`] if the GPU has a newer plan, [`StoreError::Unavailable`].
pub async fn insert_plan(
    connection: &mut PgConnection,
    plan: &LayoutPlanRow,
) -> Result<(), StoreError> {
    let action = "write a layout plan";
    let statement = sqlx::query!(
        "UPDATE gpus SET layout_gen = $2 WHERE gpu = $1 AND layout_gen < $2",
        plan.gpu.as_str(),
        bigint(plan.layout_gen),
    );
    change_rows(action, 1, statement.execute(&mut *connection)).await?;
    let steps = json_text(&plan.steps);
    let requested = plan.requested.as_ref();
    let desired = requested.map(|requested| json_text(&requested.layout));
    sqlx::query!(
        r#"
        INSERT INTO layout_plans (plan, gpu, node, layout_gen, state, steps, steps_text, job,
                                  attempt, decision, requested_by, reason, desired_layout, pin)
        VALUES ($1, $2, $3, $4, 'open', $5::text::jsonb, $6, $7, $8, $9, $10, $11,
                $12::text::jsonb, $13)
        "#,
        plan.plan.as_uuid(),
        plan.gpu.as_str(),
        plan.node.as_uuid(),
        bigint(plan.layout_gen),
        steps,
        &plan.steps_text,
        plan.job.map(job_number),
        plan.attempt.map(AttemptId::as_uuid),
        plan.decision.map(DecisionId::as_uuid),
        requested.map(|requested| requested.by.as_str()),
        requested.and_then(|requested| requested.reason.as_deref()),
        desired,
        requested.is_some_and(|requested| requested.pin),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))
    .map(drop)
}

/// Records that a plan ended; one that ended before stays as it is.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn close_plan(
    connection: &mut PgConnection,
    closed: &EndedPlan,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"
        UPDATE layout_plans SET state = $2, detail = $3, ended_at = now()
         WHERE plan = $1 AND state = 'open'
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
