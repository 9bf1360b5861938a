//! What operators say of nodes, GPUs and slices.

use actix_web::web::{Data, Json};
use actix_web::{get, post};
use serde::Deserialize;
use tessera_api::types::{ClusterEvents, DoctorReport, OperatorRequest, OperatorResult};
use tessera_model::NodeName;
use tessera_model::spec::BadField;

use super::error::ApiError;
use super::extract::{JsonBody, Named, Params};
use super::gpu_names::{GpuName, find_gpu, find_node};
use super::metrics;
use super::openapi::{BodyProblems, ChangeProblems, GpuPath, LookupProblems, NodePath, Problems};
use super::state::State;
use crate::ports::ToPlacer;
use crate::ports::operator::{Kind, On, OperatorDone, OperatorOrder, SliceName};
use crate::store::reads::PageSize;

/// Longest name of who says something.
const BY_MAX: usize = 64;
/// Longest reason: a sentence or two.
const REASON_MAX: usize = 400;

/// Keeps new work from a machine; what runs there finishes. Saying it again is harmless.
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
    on_node(&state, &name.0, &body, true).await
}

/// Lets new work go to a machine again.
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
    on_node(&state, &name.0, &body, false).await
}

/// Keeps new work from a GPU; what runs there finishes.
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
    on_gpu(&state, &gpu.0, &body, Kind::Drained, true).await
}

/// Lets new work go to a GPU again.
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
    on_gpu(&state, &gpu.0, &body, Kind::Drained, false).await
}

/// Keeps a GPU, or one of its slices, out of use until it is cleared: nothing new starts there,
/// and nothing is created or destroyed there for a job.
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
    on_gpu(&state, &gpu.0, &body, Kind::Quarantined, true).await
}

/// Takes a quarantine back, and lets the node forget the faults and stuck instances that it holds
/// against the GPU or slice: it looks again.
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
    on_gpu(&state, &gpu.0, &body, Kind::Quarantined, false).await
}

/// Keeps a GPU's layout as it is: jobs may only use its slices.
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
    on_gpu(&state, &gpu.0, &body, Kind::Pinned, true).await
}

/// Lets a GPU's layout follow the jobs again.
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
    on_gpu(&state, &gpu.0, &body, Kind::Pinned, false).await
}

/// Which events to list.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventFilter {
    /// Only those on this node.
    node: Option<String>,
    /// How many to return: 1 to 1,000, by default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended.
    cursor: Option<u64>,
}

/// Lists what operators did, newest first.
#[utoipa::path(
    tag = "history",
    operation_id = "list_cluster_events",
    params(EventFilter),
    responses((status = 200, description = "A page of events.", body = ClusterEvents), Problems),
    security(("bearer" = [])),
)]
#[get("/cluster-events")]
pub(super) async fn list_cluster_events(
    filter: Params<EventFilter>,
    state: Data<State>,
) -> Result<Json<ClusterEvents>, ApiError> {
    let EventFilter { node, limit, cursor } = filter.0;
    let size = PageSize::parse(limit)?;
    Ok(Json(state.reads().cluster_events(node, cursor, size).await?))
}

/// Lets a machine look at itself: what keeps it from running jobs and cutting its GPUs, and
/// what mends that.
#[utoipa::path(
    tag = "operators",
    operation_id = "doctor",
    params(NodePath),
    responses(
        (status = 200, description = "What it found.", body = DoctorReport),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/nodes/{name}/doctor")]
pub(super) async fn doctor(
    name: Named<NodeName>,
    state: Data<State>,
) -> Result<Json<DoctorReport>, ApiError> {
    let name = name.0;
    find_node(&state, &name).await?;
    let asked = name.clone();
    let answer = state.ask(|reply| ToPlacer::Doctor { node: asked, reply }).await?;
    let findings = answer.ok_or_else(|| ApiError::Unavailable {
        reason: format!("node {name} is not connected: run tessera-agent doctor there"),
    })?;
    Ok(Json(DoctorReport { node: name.to_string(), findings }))
}

async fn on_node(
    state: &State,
    name: &NodeName,
    body: &JsonBody,
    say: bool,
) -> Result<Json<OperatorResult>, ApiError> {
    let request = read(body)?;
    if request.slice.is_some() {
        return Err(BadField::new("slice", "a node has none", "a GPU's route").into());
    }
    find_node(state, name).await?;
    send(state, Kind::Drained, On::Node(name.clone()), request, say).await
}

async fn on_gpu(
    state: &State,
    name: &GpuName,
    body: &JsonBody,
    kind: Kind,
    say: bool,
) -> Result<Json<OperatorResult>, ApiError> {
    let request = read(body)?;
    let gpu = find_gpu(state, name).await?.1;
    let on = match &request.slice {
        None => On::Gpu(gpu),
        Some(_) if kind != Kind::Quarantined => {
            let problem = "only a quarantine can be about a slice";
            return Err(BadField::new("slice", problem, "the whole GPU").into());
        }
        Some(text) => On::Slice(gpu, slice(text)?),
    };
    send(state, kind, on, request, say).await
}

async fn send(
    state: &State,
    kind: Kind,
    on: On,
    request: OperatorRequest,
    say: bool,
) -> Result<Json<OperatorResult>, ApiError> {
    let OperatorRequest { by, reason, .. } = request;
    let order = match say {
        true => OperatorOrder::Say { kind, on, by, reason },
        false => OperatorOrder::Lift { kind, on, by },
    };
    let done = state.ask(|reply| ToPlacer::Operate { order, reply }).await???;
    let changed = matches!(done, OperatorDone::Said { changed: true });
    if changed {
        metrics::count_operator(kind.word(), if say { "said" } else { "lifted" });
    }
    Ok(Json(OperatorResult { changed }))
}

fn read(body: &JsonBody) -> Result<OperatorRequest, ApiError> {
    let request: OperatorRequest = body.parse()?;
    check_asker(&request.by, request.reason.as_deref())?;
    Ok(request)
}

/// Checks who says something, and why.
pub(super) fn check_asker(by: &str, reason: Option<&str>) -> Result<(), ApiError> {
    let clean = |text: &str| !text.trim().is_empty() && !text.chars().any(char::is_control);
    if !clean(by) || by.len() > BY_MAX {
        let expected = format!("a name of 1 to {BY_MAX} bytes on one line");
        return Err(BadField::new("by", "it must be told who says this", expected).into());
    }
    if reason.is_some_and(|reason| !clean(reason) || reason.len() > REASON_MAX) {
        let expected = format!("1 to {REASON_MAX} bytes on one line, or no reason at all");
        return Err(BadField::new("reason", "it can't be kept", expected).into());
    }
    Ok(())
}

fn slice(text: &str) -> Result<SliceName, ApiError> {
    let bad = || {
        let expected = "a first memory slice (4), a profile with it (2g.10gb@4), or a MIG UUID";
        BadField::new("slice", format!("{text:?} names no slice"), expected)
    };
    if let Ok(start) = text.parse() {
        return Ok(SliceName::At(start));
    }
    if let Some((profile, start)) = text.split_once('@') {
        let profile = profile.parse().map_err(|_| bad())?;
        return Ok(SliceName::Named(profile, start.parse().map_err(|_| bad())?));
    }
    text.parse().map(SliceName::Id).map_err(|_| bad().into())
}
