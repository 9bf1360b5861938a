//! How accurate predictions are.

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::PredictionReport;

use super::error::ApiError;
use super::identity::Caller;
use super::openapi::Problems;
use super::state::State;
use crate::ports::ToPlacer;

/// Returns how accurate predictions of run times and of memory are, by their basis.
///
/// Also returns which model of how slices compare is in use, with its error on tasks that it had
/// not seen.
#[utoipa::path(
    tag = "cluster",
    operation_id = "show_predictions",
    responses((status = 200, description = "The outcomes of predictions.", body = PredictionReport), Problems),
    security(("bearer" = [])),
)]
#[get("/predictions")]
pub(super) async fn show_predictions(
    _caller: Caller,
    state: Data<State>,
) -> Result<Json<PredictionReport>, ApiError> {
    let models = state.query(|reply| ToPlacer::DescribeModels { reply }).await?;
    Ok(Json(state.reads().predictions(models).await?))
}
