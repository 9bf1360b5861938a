//! What was decided and changed.

use actix_web::get;
use actix_web::web::{Data, Json};
use serde::Deserialize;
use tessera_api::types::{DecisionView, Decisions, LayoutChanges};
use tessera_model::{DecisionId, GpuId, JobId};

use super::error::ApiError;
use super::extract::{Named, Params, read_id};
use super::gpu_names::find_gpu;
use super::openapi::{DecisionPath, LookupProblems, Problems};
use super::state::State;
use crate::store::reads::PageSize;

/// Which decisions to list.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DecisionFilter {
    /// Only those about this job.
    job: Option<u64>,
    /// How many to return: 1 to 1,000, by default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// Lists recorded decisions, newest first.
#[utoipa::path(
    tag = "history",
    operation_id = "list_decisions",
    params(DecisionFilter),
    responses((status = 200, description = "A page of decisions.", body = Decisions), Problems),
    security(("bearer" = [])),
)]
#[get("/decisions")]
pub(super) async fn list_decisions(
    filter: Params<DecisionFilter>,
    state: Data<State>,
) -> Result<Json<Decisions>, ApiError> {
    let DecisionFilter { job, limit, cursor } = filter.0;
    let job: Option<JobId> = job.map(|job| read_id("job", &job.to_string())).transpose()?;
    let before: Option<DecisionId> =
        cursor.as_deref().map(|text| read_id("cursor", text)).transpose()?;
    let size = PageSize::parse(limit)?;
    Ok(Json(state.reads().decisions(job, before, size).await?))
}

/// Returns one recorded decision.
#[utoipa::path(
    tag = "history",
    operation_id = "get_decision",
    params(DecisionPath),
    responses(
        (status = 200, description = "The decision.", body = DecisionView),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/decisions/{decision}")]
pub(super) async fn show_decision(
    decision: Named<DecisionId>,
    state: Data<State>,
) -> Result<Json<DecisionView>, ApiError> {
    let id = decision.0;
    let found = state.reads().decision(id).await?;
    found.map(Json).ok_or_else(|| ApiError::NotFound { what: format!("there is no decision {id}") })
}

/// Which changes of layouts to list.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LayoutFilter {
    /// Only those of this GPU: its UUID, or `node:index`.
    gpu: Option<String>,
    /// How many to return: 1 to 1,000, by default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// Letters of a GPU's UUID as the driver writes it, `GPU-` and all.
const WHOLE_UUID: usize = 40;

/// Lists changes of layouts, newest first.
#[utoipa::path(
    tag = "history",
    operation_id = "list_layout_changes",
    params(LayoutFilter),
    responses((status = 200, description = "A page of changes.", body = LayoutChanges), Problems),
    security(("bearer" = [])),
)]
#[get("/layouts")]
pub(super) async fn list_layouts(
    filter: Params<LayoutFilter>,
    state: Data<State>,
) -> Result<Json<LayoutChanges>, ApiError> {
    let LayoutFilter { gpu, limit, cursor } = filter.0;
    let gpu: Option<GpuId> = match gpu {
        None => None,
        // It may be that of a GPU that is gone, and needs nobody who knows those that are there.
        Some(text) if text.len() == WHOLE_UUID => Some(read_id("gpu", &text)?),
        Some(text) => Some(find_gpu(&state, &read_id("gpu", &text)?).await?.1),
    };
    let before = cursor.as_deref().map(str::parse).transpose()?;
    let size = PageSize::parse(limit)?;
    Ok(Json(state.reads().layouts(gpu, before, size).await?))
}
