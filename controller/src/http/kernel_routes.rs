//! What is known of tasks' kernels.

use actix_web::get;
use actix_web::web::{Data, Json};
use serde::Deserialize;
use tessera_api_types::{KernelTasks, TaskKernels};

use super::error::ApiError;
use super::extract::Params;
use super::openapi::{LookupProblems, Problems};
use super::state::State;

/// Lists the tasks whose kernels were measured, latest first; at most 1,000.
#[utoipa::path(
    tag = "jobs",
    operation_id = "list_kernel_tasks",
    responses((status = 200, description = "The tasks.", body = KernelTasks), Problems),
    security(("bearer" = [])),
)]
#[get("/kernels")]
pub(super) async fn list_kernel_tasks(state: Data<State>) -> Result<Json<KernelTasks>, ApiError> {
    Ok(Json(state.reads().kernel_tasks().await?))
}

/// Which task.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TaskParams {
    /// The task's key, as the list of tasks has it.
    task_key: String,
}

/// Shows the kernels of one task, those first that take the device for longest.
#[utoipa::path(
    tag = "jobs",
    operation_id = "show_task_kernels",
    params(TaskParams),
    responses(
        (status = 200, description = "The kernels.", body = TaskKernels),
        Problems,
        LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/kernels/task")]
pub(super) async fn show_task_kernels(
    params: Params<TaskParams>,
    state: Data<State>,
) -> Result<Json<TaskKernels>, ApiError> {
    let task = params.0.task_key;
    let found = state.reads().kernel_task(task.clone()).await?;
    found
        .map(Json)
        .ok_or(ApiError::NotFound { what: format!("nothing is known of the kernels of {task:?}") })
}
