//! Looking at jobs.

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api::types::{JobCounts, JobDetail, JobEvents, JobFilter, JobPage};
use tessera_model::JobRef;

use super::error::ApiError;
use super::extract::{Named, Params};
use super::openapi::{JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use crate::store::reads::JobQuery;

/// Lists jobs, newest first.
#[utoipa::path(
    tag = "jobs",
    operation_id = "list_jobs",
    params(JobFilter),
    responses((status = 200, description = "A page of jobs.", body = JobPage), Problems),
    security(("bearer" = [])),
)]
#[get("/jobs")]
pub(super) async fn list_jobs(
    filter: Params<JobFilter>,
    state: Data<State>,
) -> Result<Json<JobPage>, ApiError> {
    let query = JobQuery::parse(filter.0)?;
    Ok(Json(state.reads().jobs(query).await?))
}

/// Counts the jobs by state.
#[utoipa::path(
    tag = "jobs",
    operation_id = "count_jobs",
    responses((status = 200, description = "Every state with its jobs.", body = JobCounts), Problems),
    security(("bearer" = [])),
)]
#[get("/jobs/summary")]
pub(super) async fn count_jobs(state: Data<State>) -> Result<Json<JobCounts>, ApiError> {
    Ok(Json(state.reads().counts().await?))
}

/// Returns one job with everything that is known of it.
///
/// An array's number alone names its first task.
#[utoipa::path(
    tag = "jobs",
    operation_id = "get_job",
    params(JobPath),
    responses(
        (status = 200, description = "The job.", body = JobDetail),
        Problems,
        LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/jobs/{job}")]
pub(super) async fn show_job(
    job: Named<JobRef>,
    state: Data<State>,
) -> Result<Json<JobDetail>, ApiError> {
    let job = job.0;
    state.reads().detail(job).await?.map(Json).ok_or_else(|| no_job(job))
}

/// Tells what happened to a job, oldest first.
#[utoipa::path(
    tag = "jobs",
    operation_id = "list_job_events",
    params(JobPath),
    responses(
        (status = 200, description = "The events.", body = JobEvents),
        Problems,
        LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/jobs/{job}/events")]
pub(super) async fn list_events(
    job: Named<JobRef>,
    state: Data<State>,
) -> Result<Json<JobEvents>, ApiError> {
    let job = job.0;
    state.reads().events(job).await?.map(Json).ok_or_else(|| no_job(job))
}
