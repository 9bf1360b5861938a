//! Nodes, GPUs, and the controller itself.

use std::collections::BTreeMap;

use actix_web::web::{Data, Json};
use actix_web::{HttpResponse, get, post};
use tessera_api_types::{
    ClusterInfo, GpuDetails, GpuListing, MigModeRequest, NodeDetails, NodeListing, PartitionView,
};
use tessera_control::site::PartitionSettings;
use tessera_model::NodeName;

use super::error::ApiError;
use super::extract::{JsonBody, Named};
use super::gpu_names::{GpuName, find_gpu, find_node};
use super::identity::Caller;
use super::openapi::{BodyProblems, ChangeProblems, GpuPath, LookupProblems, NodePath, Problems};
use super::state::State;
use crate::ports::ToPlacer;
use tessera_control::commands::operator::OperatorCommand;

/// Lists the machines, by name.
#[utoipa::path(
    tag = "cluster",
    operation_id = "list_nodes",
    responses((status = 200, description = "The nodes with their GPUs.", body = NodeListing), Problems),
    security(("bearer" = [])),
)]
#[get("/nodes")]
pub(super) async fn list_nodes(
    _caller: Caller,
    state: Data<State>,
) -> Result<Json<NodeListing>, ApiError> {
    Ok(Json(NodeListing { items: state.nodes().await? }))
}

/// Returns one machine.
#[utoipa::path(
    tag = "cluster",
    operation_id = "get_node",
    params(NodePath),
    responses(
        (status = 200, description = "The node.", body = NodeDetails),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/nodes/{name}")]
pub(super) async fn show_node(
    _caller: Caller,
    name: Named<NodeName>,
    state: Data<State>,
) -> Result<Json<NodeDetails>, ApiError> {
    find_node(&state, &name.0).await.map(Json)
}

/// Lists the GPUs with their layouts, by node and index.
#[utoipa::path(
    tag = "cluster",
    operation_id = "list_gpus",
    responses((status = 200, description = "The GPUs.", body = GpuListing), Problems),
    security(("bearer" = [])),
)]
#[get("/gpus")]
pub(super) async fn list_gpus(
    _caller: Caller,
    state: Data<State>,
) -> Result<Json<GpuListing>, ApiError> {
    let items = state.nodes().await?.into_iter().flat_map(|node| node.gpus).collect();
    Ok(Json(GpuListing { items }))
}

/// Returns one GPU with its layout.
#[utoipa::path(
    tag = "cluster",
    operation_id = "get_gpu",
    params(GpuPath),
    responses(
        (status = 200, description = "The GPU.", body = GpuDetails),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/gpus/{gpu}")]
pub(super) async fn show_gpu(
    _caller: Caller,
    gpu: Named<GpuName>,
    state: Data<State>,
) -> Result<Json<GpuDetails>, ApiError> {
    Ok(Json(find_gpu(&state, &gpu.0).await?.0))
}

/// Switches a GPU's MIG mode, at an administrator's explicit request.
///
/// Many GPUs have to be reset for this, so nothing may run on the GPU.
#[utoipa::path(
    tag = "cluster",
    operation_id = "set_mig_mode",
    request_body = MigModeRequest,
    params(GpuPath),
    responses(
        (status = 204, description = "The node reports that the mode is as requested."),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/gpus/{gpu}/mig-mode")]
pub(super) async fn set_mig_mode(
    _caller: Caller,
    gpu: Named<GpuName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    let MigModeRequest { on } = body.parse()?;
    let gpu = find_gpu(&state, &gpu.0).await?.1;
    let command = OperatorCommand::SetMigMode { gpu, on };
    state.query(|reply| ToPlacer::Operate { command, reply }).await???;
    Ok(HttpResponse::NoContent().finish())
}

/// Returns an overview of the cluster.
#[utoipa::path(
    tag = "cluster",
    operation_id = "get_info",
    responses((status = 200, description = "The cluster.", body = ClusterInfo), Problems),
    security(("bearer" = [])),
)]
#[get("/info")]
pub(super) async fn show_info(
    _caller: Caller,
    state: Data<State>,
) -> Result<Json<ClusterInfo>, ApiError> {
    let nodes = state.nodes().await?;
    let mut by_state = BTreeMap::new();
    let mut isolation_gaps = BTreeMap::<_, Vec<_>>::new();
    for node in &nodes {
        *by_state.entry(node.state.clone()).or_insert(0_u32) += 1;
        for gap in node.isolation_gaps.iter().flatten() {
            isolation_gaps.entry(gap.clone()).or_default().push(node.name.clone());
        }
    }
    let gpus: usize = nodes.iter().map(|node| node.gpus.len()).sum();
    let about = &state.ports.about;
    let site = &state.ports.live().site;
    Ok(Json(ClusterInfo {
        version: about.version.to_owned(),
        controller: about.controller.to_string(),
        policy: about.policy.to_owned(),
        epoch: state.epoch(),
        nodes: by_state,
        gpus: u32::try_from(gpus).expect("memory holds fewer GPUs than 2^32"),
        shared_gpus: shared_gpus(site),
        share_default: site.share_default.word().to_owned(),
        partitions: partitions(site),
        isolation_gaps,
    }))
}

fn partitions(site: &tessera_control::site::Site) -> Vec<PartitionView> {
    let view = |(name, found): (&String, &PartitionSettings)| PartitionView {
        name: name.clone(),
        nodes: found.nodes.clone(),
        gpu_model: found.gpu_model.clone(),
    };
    site.partitions.iter().map(view).collect()
}

/// Returns the partitions whose jobs that request one GPU may get a part of one; `*` for all others.
fn shared_gpus(site: &tessera_control::site::Site) -> Vec<String> {
    let named = site.partitions.iter();
    let named = named.filter(|(_, found)| found.share_gpus.unwrap_or(site.share_gpus));
    let named = named.map(|(name, _)| name.clone());
    site.share_gpus.then(|| "*".to_owned()).into_iter().chain(named).collect()
}
