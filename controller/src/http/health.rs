//! Health, readiness, metrics, and the description of the API.

use std::time::{Duration, Instant};

use actix_web::http::header::LOCATION;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, get};
use futures_util::future::join;
use serde_json::json;
use tessera_api_types::JobCounts;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::error::ApiError;
use super::identity::Caller;
use super::openapi::{OPENAPI_JSON, Problems, methods_of};
use super::state::State;
use super::{figures, metrics};
use crate::ports::{Readiness, ToPlacer};
use crate::process_metrics;

/// How long the counts of jobs are good for: counting millions takes a while, and several
/// collectors may request them.
const COUNTS_KEPT: Duration = Duration::from_secs(5);
/// How long each part may take within a collector's timeout.
const PART_WITHIN: Duration = Duration::from_secs(3);

static COUNTS: Mutex<Option<(Instant, JobCounts)>> = Mutex::const_new(None);

/// Reports that the process is alive.
#[utoipa::path(
    tag = "operations",
    operation_id = "healthz",
    responses((status = 200, description = "It is alive.", content_type = "text/plain", body = String)),
)]
#[get("/healthz")]
pub(super) async fn healthz() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body("ok\n")
}

/// Reports that the process is alive; another name of `/healthz`.
#[utoipa::path(
    tag = "operations",
    operation_id = "livez",
    responses((status = 200, description = "It is alive.", content_type = "text/plain", body = String)),
)]
#[get("/livez")]
pub(super) async fn livez() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body("ok\n")
}

/// Reports whether requests can be served: the database answers, and this controller leads.
#[utoipa::path(
    tag = "operations",
    operation_id = "readyz",
    responses(
        (status = 200, description = "Ready; with the leader's epoch.", body = Object),
        (status = 503, description = "Not ready; the problem states why.", body = tessera_api_types::ProblemDetails, content_type = "application/problem+json"),
    ),
)]
#[get("/readyz")]
pub(super) async fn readyz(state: Data<State>) -> Result<HttpResponse, ApiError> {
    match readiness(&state).await {
        Readiness::Ready { epoch } => {
            Ok(HttpResponse::Ok().json(json!({ "status": "ready", "epoch": epoch })))
        }
        Readiness::NotReady { reason } => Err(ApiError::Unavailable { reason }),
    }
}

/// Returns whether requests can be served now. A controller without work notices only this way that its database
/// is gone.
async fn readiness(state: &State) -> Readiness {
    let readiness = state.ports.readiness.borrow().clone();
    if let Readiness::Ready { .. } = readiness
        && !matches!(timeout(PART_WITHIN, state.reads().answers()).await, Ok(Ok(())))
    {
        return Readiness::NotReady { reason: "the database does not respond".to_owned() };
    }
    readiness
}

/// Returns the metrics, as Prometheus reads them.
#[utoipa::path(
    tag = "operations",
    operation_id = "metrics",
    responses(
        (status = 200, description = "The metrics.", content_type = "text/plain", body = String),
        Problems,
    ),
    security(("bearer" = [])),
)]
#[get("/metrics")]
pub(super) async fn prometheus(
    _caller: Caller,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    // A part that doesn't answer leaves its metrics as they were: the other metrics matter more.
    let (counts, readiness) = join(counts(&state), readiness(&state)).await;
    if let Some(counts) = counts {
        metrics::show_jobs(&counts);
    }
    if let Ok(Ok(nodes)) = timeout(PART_WITHIN, state.nodes()).await {
        metrics::show_nodes(&nodes, &state.ports.shape.borrow().clone());
    }
    let power = state.query(|reply| ToPlacer::ReportPower { reply });
    if let Ok(Ok(power)) = timeout(PART_WITHIN, power).await {
        metrics::show_power(&power);
    }
    process_metrics::export(matches!(readiness, Readiness::Ready { .. }));
    figures::export_figures(&state.ports.figures.fresh());
    let text = metrics::exposition().map_err(|error| {
        tracing::error!(%error, "metrics not written");
        ApiError::Internal
    })?;
    Ok(HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(text))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the age of the kept counts is measured on the process' own clock"
)]
async fn counts(state: &State) -> Option<JobCounts> {
    let mut kept = COUNTS.lock().await;
    if let Some((at, counts)) = &*kept
        && at.elapsed() < COUNTS_KEPT
    {
        return Some(counts.clone());
    }
    let counts = timeout(PART_WITHIN, state.reads().counts()).await.ok()?.ok()?;
    *kept = Some((Instant::now(), counts.clone()));
    Some(counts)
}

/// Returns the description of the API.
#[utoipa::path(
    tag = "operations",
    operation_id = "openapi",
    responses((status = 200, description = "OpenAPI 3.1.", body = Object)),
)]
#[get("/openapi.json")]
pub(super) async fn openapi() -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(OPENAPI_JSON.as_str())
}

/// Leads to the documentation's first page.
#[get("/docs")]
pub(super) async fn docs() -> HttpResponse {
    HttpResponse::PermanentRedirect().insert_header((LOCATION, "/docs/")).finish()
}

/// Answers what no route takes: the path is unknown, or takes other methods.
pub(super) async fn elsewhere(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let allowed = methods_of(request.path());
    if allowed.is_empty() {
        return Err(ApiError::NotFound {
            what: format!("there is no route {}; /docs shows those that there are", request.path()),
        });
    }
    Err(ApiError::MethodNotAllowed {
        method: request.method().to_string(),
        allowed: allowed.join(", "),
    })
}
