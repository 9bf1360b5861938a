//! What accounts have had, hold, and may.

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::UsageReport;

use super::error::ApiError;
use super::identity::Caller;
use super::openapi::Problems;
use super::state::State;
use crate::ports::ToPlacer;

/// Returns the recent usage of accounts and their users, what they hold now and may hold at once,
/// and what that means for the order of the queue.
#[utoipa::path(
    tag = "cluster",
    operation_id = "show_usage",
    responses((status = 200, description = "Usage by account and user.", body = UsageReport), Problems),
    security(("bearer" = [])),
)]
#[get("/usage")]
pub(super) async fn show_usage(
    _caller: Caller,
    state: Data<State>,
) -> Result<Json<UsageReport>, ApiError> {
    Ok(Json(state.query(|reply| ToPlacer::ReportUsage { reply }).await?))
}
