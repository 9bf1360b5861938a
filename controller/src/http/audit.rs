//! The audit log.

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::{AuditFilter, AuditPage};

use super::error::ApiError;
use super::extract::Params;
use super::history::read_cursor;
use super::identity::Caller;
use super::openapi::Problems;
use super::state::State;
use crate::store::reads::{PageSize, parse_name};

/// Lists what callers changed, and what was refused to them, newest first.
///
/// What one caller submitted at once is one entry with the numbers of its jobs.
#[utoipa::path(
    tag = "identity",
    operation_id = "list_audit_entries",
    params(AuditFilter),
    responses((status = 200, description = "A page of entries.", body = AuditPage), Problems),
    security(("bearer" = [])),
)]
#[get("/audit")]
pub(super) async fn list_entries(
    _caller: Caller,
    filter: Params<AuditFilter>,
    state: Data<State>,
) -> Result<Json<AuditPage>, ApiError> {
    let AuditFilter { principal, limit, cursor } = filter.0;
    let before = cursor.map_or(Ok(i64::MAX), |cursor| read_cursor('a', &cursor))?;
    let principal = parse_name("principal", principal)?;
    Ok(Json(state.reads().audit(principal, before, PageSize::parse(limit)?).await?))
}
