//! The power cap, and what the GPUs are expected to draw.

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::PowerReport;

use super::error::ApiError;
use super::identity::Caller;
use super::openapi::Problems;
use super::state::State;
use crate::ports::ToPlacer;

/// Returns the power cap, and what the GPUs are expected to draw at most.
#[utoipa::path(
    tag = "cluster",
    operation_id = "show_power",
    responses((status = 200, description = "The power of all GPUs.", body = PowerReport), Problems),
    security(("bearer" = [])),
)]
#[get("/power")]
pub(super) async fn show_power(
    _caller: Caller,
    state: Data<State>,
) -> Result<Json<PowerReport>, ApiError> {
    Ok(Json(state.query(|reply| ToPlacer::ReportPower { reply }).await?))
}
