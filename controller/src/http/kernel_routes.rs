//! What is known about tasks' kernels.

use actix_web::get;
use actix_web::web::{Data, Json};
use serde::Deserialize;
use tessera_api_types::{KernelTasks, TaskKernels};

use super::error::ApiError;
use super::extract::Params;
use super::identity::Caller;
use super::openapi::{LookupProblems, Problems};
use super::state::State;
use crate::principal::Role;

/// Lists the tasks whose kernels were measured, latest first; at most 1,000. Users get only their
/// own tasks.
#[utoipa::path(
    tag = "jobs",
    operation_id = "list_kernel_tasks",
    responses((status = 200, description = "The tasks.", body = KernelTasks), Problems),
    security(("bearer" = [])),
)]
#[get("/kernels")]
pub(super) async fn list_kernel_tasks(
    caller: Caller,
    state: Data<State>,
) -> Result<Json<KernelTasks>, ApiError> {
    Ok(Json(state.reads().kernel_tasks(caller.jobs()).await?))
}

#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TaskParams {
    /// The task's key, as the list of tasks has it.
    task_key: String,
}

/// Returns the kernels of one task, those with the most device time first.
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
    caller: Caller,
    params: Params<TaskParams>,
    state: Data<State>,
) -> Result<Json<TaskKernels>, ApiError> {
    let task = params.0.task_key;
    // A task's key begins with its user.
    let known = task.split_once(": ").is_some_and(|(user, _)| caller.sees(user));
    // The database holds no text with a zero byte, so no task has such a key.
    let found = if !task.contains('\0') && (known || caller.role >= Role::Operator) {
        state.reads().kernel_task(task.clone()).await?
    } else {
        None
    };
    found.map(Json).ok_or(ApiError::NotFound {
        what: format!(
            "nothing is known about the kernels of \
                                                   {task:?}"
        ),
    })
}
