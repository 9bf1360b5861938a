//! Looking at jobs.

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::{
    JobCounts, JobDetail, JobEvents, JobFilter, JobPage, JobScriptView, JobView,
};
use tessera_model::{Bytes, JobRef};

use super::error::ApiError;
use super::extract::{Named, Params};
use super::identity::Caller;
use super::openapi::{ChangeProblems, JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use crate::store::reads::JobQuery;

/// Lists jobs, newest first.
///
/// A user gets the jobs of others, too, as in other batch systems, but without exit codes and the
/// texts about their ends.
#[utoipa::path(
    tag = "jobs",
    operation_id = "list_jobs",
    params(JobFilter),
    responses((status = 200, description = "A page of jobs.", body = JobPage), Problems),
    security(("bearer" = [])),
)]
#[get("/jobs")]
pub(super) async fn list_jobs(
    caller: Caller,
    filter: Params<JobFilter>,
    state: Data<State>,
) -> Result<Json<JobPage>, ApiError> {
    let query = JobQuery::parse(filter.0)?;
    let mut page = state.reads().jobs(query).await?;
    for job in page.items.iter_mut().filter(|job| !caller.sees(&job.user)) {
        hide_outcome(job);
    }
    Ok(Json(page))
}

/// Reduces another user's job to what a queue shows: what a program wrote about its own end may
/// name files.
fn hide_outcome(job: &mut JobView) {
    if job.ended_at.is_some() {
        job.reason_text = None;
        job.exit_code = None;
    }
}

/// Counts the jobs by state.
#[utoipa::path(
    tag = "jobs",
    operation_id = "count_jobs",
    responses((status = 200, description = "Every state with its jobs.", body = JobCounts), Problems),
    security(("bearer" = [])),
)]
#[get("/jobs/summary")]
pub(super) async fn count_jobs(
    _caller: Caller,
    state: Data<State>,
) -> Result<Json<JobCounts>, ApiError> {
    Ok(Json(state.reads().counts().await?))
}

/// Returns one job with everything that is known about it.
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
    caller: Caller,
    job: Named<JobRef>,
    state: Data<State>,
) -> Result<Json<JobDetail>, ApiError> {
    let job = job.0;
    let mut detail = state.reads().detail(job, &caller.jobs()).await?.ok_or_else(|| no_job(job))?;
    for attempt in detail.attempt_list.iter_mut().filter(|attempt| attempt.ended_at.is_none()) {
        // What its node reported so far; the final figures come with its end.
        let figures = attempt.id.parse().ok().and_then(|id| state.ports.figures.of_attempt(id));
        if let Some(figures) = figures {
            attempt.gpu_memory_bytes = figures.memory_used.map(Bytes::get);
            attempt.gpu_energy_joules = figures.energy_mj.map(joules);
            let peak = figures.memory_peak.max(figures.memory_used).map(Bytes::get);
            attempt.gpu_memory_peak_bytes = attempt.gpu_memory_peak_bytes.max(peak);
        }
    }
    Ok(Json(detail))
}

fn joules(millijoules: u64) -> f64 {
    std::time::Duration::from_millis(millijoules).as_secs_f64()
}

/// Returns the script of a job as it was submitted, so that it can be run again as it was.
#[utoipa::path(
    tag = "jobs",
    operation_id = "get_job_script",
    params(JobPath),
    responses(
        (status = 200, description = "The script.", body = JobScriptView),
        Problems,
        LookupProblems,
        ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/jobs/{job}/script")]
pub(super) async fn show_script(
    caller: Caller,
    job: Named<JobRef>,
    state: Data<State>,
) -> Result<Json<JobScriptView>, ApiError> {
    let job = job.0;
    let script = state.reads().script(job, &caller.jobs()).await?.ok_or_else(|| no_job(job))?;
    if script.is_empty() {
        return Err(ApiError::WrongState {
            problem: format!("job {job} runs a command, and no script"),
            expected: "a job that was submitted with a script".into(),
        });
    }
    Ok(Json(JobScriptView { script }))
}

/// Lists what happened to a job, oldest first.
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
    caller: Caller,
    job: Named<JobRef>,
    state: Data<State>,
) -> Result<Json<JobEvents>, ApiError> {
    let job = job.0;
    state.reads().events(job, &caller.jobs()).await?.map(Json).ok_or_else(|| no_job(job))
}
