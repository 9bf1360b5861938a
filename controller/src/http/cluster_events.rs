//! The log of what administrators did.

use actix_web::get;
use actix_web::web::{Data, Json};
use serde::Deserialize;
use tessera_api_types::ClusterEvents;

use super::error::ApiError;
use super::extract::Params;
use super::identity::Caller;
use super::openapi::Problems;
use super::state::State;
use crate::store::reads::PageSize;

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

/// Lists what administrators did, newest first.
#[utoipa::path(
    tag = "history",
    operation_id = "list_cluster_events",
    params(EventFilter),
    responses((status = 200, description = "A page of events.", body = ClusterEvents), Problems),
    security(("bearer" = [])),
)]
#[get("/cluster-events")]
pub(super) async fn list_cluster_events(
    _caller: Caller,
    filter: Params<EventFilter>,
    state: Data<State>,
) -> Result<Json<ClusterEvents>, ApiError> {
    let EventFilter { node, limit, cursor } = filter.0;
    let size = PageSize::parse(limit)?;
    Ok(Json(state.reads().cluster_events(node, cursor, size).await?))
}
