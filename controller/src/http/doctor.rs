//! Checks that a node runs on itself.

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::DoctorReport;
use tessera_model::NodeName;

use super::error::ApiError;
use super::extract::Named;
use super::gpu_names::find_node;
use super::identity::Caller;
use super::openapi::{ChangeProblems, LookupProblems, NodePath, Problems};
use super::state::State;
use crate::ports::ToPlacer;

/// Runs a node's checks: they find what keeps it from running jobs and partitioning its GPUs, and
/// how to fix that.
#[utoipa::path(
    tag = "operators",
    operation_id = "doctor",
    params(NodePath),
    responses(
        (status = 200, description = "What it found.", body = DoctorReport),
        Problems, LookupProblems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/nodes/{name}/doctor")]
pub(super) async fn doctor(
    _caller: Caller,
    name: Named<NodeName>,
    state: Data<State>,
) -> Result<Json<DoctorReport>, ApiError> {
    let name = name.0;
    find_node(&state, &name).await?;
    let examined = name.clone();
    let answer = state.query(|reply| ToPlacer::ExamineNode { node: examined, reply }).await?;
    // An error of the server would promise that it passes by itself.
    let findings = answer.ok_or_else(|| ApiError::Conflict {
        problem: format!("node {name} is not connected: run tessera-agent doctor there"),
    })?;
    Ok(Json(DoctorReport { node: name.to_string(), findings }))
}
