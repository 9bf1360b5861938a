//! Administrative overrides: draining, quarantining and pinning nodes, GPUs and slices.

use actix_web::post;
use actix_web::web::{Data, Json};
use tessera_api_types::{OperatorRequest, OperatorResult};
use tessera_model::NodeName;
use tessera_model::spec::BadField;

use super::error::ApiError;
use super::extract::{JsonBody, Named};
use super::gpu_names::{GpuName, find_gpu, find_node};
use super::metrics;
use super::openapi::{BodyProblems, ChangeProblems, GpuPath, LookupProblems, NodePath, Problems};
use super::state::State;
use crate::ports::ToPlacer;
use crate::ports::operator::{
    InstanceName, OperatorCommand, OperatorOutcome, OverrideKind, OverrideScope,
};

/// Longest name of an administrator, in bytes.
const BY_MAX: usize = 64;
/// Longest reason, in bytes: a sentence or two.
const REASON_MAX: usize = 400;

/// Drains a node: no new attempt starts there, and running ones finish. Draining it again is harmless.
#[utoipa::path(
    tag = "operators",
    operation_id = "drain_node",
    params(NodePath),
    request_body = OperatorRequest,
    responses(
        (status = 200, description = "It is committed.", body = OperatorResult),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/nodes/{name}/drain")]
pub(super) async fn drain_node(
    name: Named<NodeName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<OperatorResult>, ApiError> {
    change_node(&state, &name.0, &body, true).await
}

/// Ends the drain of a node: attempts may start there again.
#[utoipa::path(
    tag = "operators",
    operation_id = "undrain_node",
    params(NodePath),
    request_body = OperatorRequest,
    responses(
        (status = 200, description = "It is committed.", body = OperatorResult),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/nodes/{name}/undrain")]
pub(super) async fn undrain_node(
    name: Named<NodeName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<OperatorResult>, ApiError> {
    change_node(&state, &name.0, &body, false).await
}

/// Drains a GPU: no new attempt starts there, and running ones finish.
#[utoipa::path(
    tag = "operators",
    operation_id = "drain_gpu",
    params(GpuPath),
    request_body = OperatorRequest,
    responses(
        (status = 200, description = "It is committed.", body = OperatorResult),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/gpus/{gpu}/drain")]
pub(super) async fn drain_gpu(
    gpu: Named<GpuName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<OperatorResult>, ApiError> {
    change_gpu(&state, &gpu.0, &body, OverrideKind::Drained, true).await
}

/// Ends the drain of a GPU: attempts may start there again.
#[utoipa::path(
    tag = "operators",
    operation_id = "undrain_gpu",
    params(GpuPath),
    request_body = OperatorRequest,
    responses(
        (status = 200, description = "It is committed.", body = OperatorResult),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/gpus/{gpu}/undrain")]
pub(super) async fn undrain_gpu(
    gpu: Named<GpuName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<OperatorResult>, ApiError> {
    change_gpu(&state, &gpu.0, &body, OverrideKind::Drained, false).await
}

/// Quarantines a GPU, or one of its slices, until it is cleared: no attempt starts there, and no
/// instance is created or destroyed there for a job.
#[utoipa::path(
    tag = "operators",
    operation_id = "quarantine_gpu",
    params(GpuPath),
    request_body = OperatorRequest,
    responses(
        (status = 200, description = "It is committed.", body = OperatorResult),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/gpus/{gpu}/quarantine")]
pub(super) async fn quarantine(
    gpu: Named<GpuName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<OperatorResult>, ApiError> {
    change_gpu(&state, &gpu.0, &body, OverrideKind::Quarantined, true).await
}

/// Clears a quarantine. The node forgets the faults and stuck instances of the GPU or slice, and
/// examines it again.
#[utoipa::path(
    tag = "operators",
    operation_id = "clear_gpu",
    params(GpuPath),
    request_body = OperatorRequest,
    responses(
        (status = 200, description = "It is committed.", body = OperatorResult),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/gpus/{gpu}/clear")]
pub(super) async fn clear(
    gpu: Named<GpuName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<OperatorResult>, ApiError> {
    change_gpu(&state, &gpu.0, &body, OverrideKind::Quarantined, false).await
}

/// Pins a GPU's layout: jobs use its slices, and no policy changes them.
#[utoipa::path(
    tag = "operators",
    operation_id = "pin_layout",
    params(GpuPath),
    request_body = OperatorRequest,
    responses(
        (status = 200, description = "It is committed.", body = OperatorResult),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/gpus/{gpu}/pin")]
pub(super) async fn pin(
    gpu: Named<GpuName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<OperatorResult>, ApiError> {
    change_gpu(&state, &gpu.0, &body, OverrideKind::Pinned, true).await
}

/// Unpins a GPU's layout: policies may change it for jobs again.
#[utoipa::path(
    tag = "operators",
    operation_id = "unpin_layout",
    params(GpuPath),
    request_body = OperatorRequest,
    responses(
        (status = 200, description = "It is committed.", body = OperatorResult),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/gpus/{gpu}/unpin")]
pub(super) async fn unpin(
    gpu: Named<GpuName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<OperatorResult>, ApiError> {
    change_gpu(&state, &gpu.0, &body, OverrideKind::Pinned, false).await
}

async fn change_node(
    state: &State,
    name: &NodeName,
    body: &JsonBody,
    set: bool,
) -> Result<Json<OperatorResult>, ApiError> {
    let request = read_request(body)?;
    if request.slice.is_some() {
        return Err(BadField::new("slice", "a node has no slices", "the route of a GPU").into());
    }
    find_node(state, name).await?;
    send_order(state, OverrideKind::Drained, OverrideScope::Node(name.clone()), request, set).await
}

async fn change_gpu(
    state: &State,
    name: &GpuName,
    body: &JsonBody,
    kind: OverrideKind,
    set: bool,
) -> Result<Json<OperatorResult>, ApiError> {
    let request = read_request(body)?;
    let gpu = find_gpu(state, name).await?.1;
    let on = match &request.slice {
        None => OverrideScope::Gpu(gpu),
        Some(_) if kind != OverrideKind::Quarantined => {
            let problem = "only a quarantine can apply to a slice";
            return Err(BadField::new("slice", problem, "the whole GPU").into());
        }
        Some(text) => OverrideScope::Slice(gpu, parse_slice(text)?),
    };
    send_order(state, kind, on, request, set).await
}

async fn send_order(
    state: &State,
    kind: OverrideKind,
    on: OverrideScope,
    request: OperatorRequest,
    set: bool,
) -> Result<Json<OperatorResult>, ApiError> {
    let OperatorRequest { by, reason, .. } = request;
    let order = match set {
        true => OperatorCommand::SetOverride { kind, on, by, reason },
        false => OperatorCommand::ClearOverride { kind, on, by },
    };
    let done = state.ask(|reply| ToPlacer::Operate { order, reply }).await???;
    let changed = matches!(done, OperatorOutcome::OverrideApplied { changed: true });
    if changed {
        metrics::count_admin_change(kind.word(), if set { "set" } else { "cleared" });
    }
    Ok(Json(OperatorResult { changed }))
}

fn read_request(body: &JsonBody) -> Result<OperatorRequest, ApiError> {
    let request: OperatorRequest = body.parse()?;
    check_admin(&request.by, request.reason.as_deref())?;
    Ok(request)
}

/// Checks the name of an administrator and the reason.
pub(super) fn check_admin(by: &str, reason: Option<&str>) -> Result<(), ApiError> {
    let clean = |text: &str| !text.trim().is_empty() && !text.chars().any(char::is_control);
    if !clean(by) || by.len() > BY_MAX {
        let expected = format!("a name of 1 to {BY_MAX} bytes on one line");
        return Err(BadField::new(
            "by",
            "the administrator's name is missing or not valid",
            expected,
        )
        .into());
    }
    if reason.is_some_and(|reason| !clean(reason) || reason.len() > REASON_MAX) {
        let expected = format!("1 to {REASON_MAX} bytes on one line, or no reason at all");
        return Err(BadField::new("reason", "the reason is not valid", expected).into());
    }
    Ok(())
}

fn parse_slice(text: &str) -> Result<InstanceName, ApiError> {
    let bad = || {
        let expected = "a first memory slice (4), a profile with it (2g.10gb@4), or a MIG UUID";
        BadField::new("slice", format!("{text:?} is not the name of a slice"), expected)
    };
    if let Ok(start) = text.parse() {
        return Ok(InstanceName::At(start));
    }
    if let Some((profile, start)) = text.split_once('@') {
        let profile = profile.parse().map_err(|_| bad())?;
        return Ok(InstanceName::Named(profile, start.parse().map_err(|_| bad())?));
    }
    text.parse().map(InstanceName::Id).map_err(|_| bad().into())
}
