//! Waiting for a job's end.

use std::time::Duration;

use actix_web::get;
use actix_web::web::{Data, Json};
use serde::Deserialize;
use tessera_api_types::JobView;
use tessera_model::spec::BadField;
use tessera_model::{JobId, JobRef};
use tokio::time::{Instant, timeout_at};

use super::error::ApiError;
use super::extract::{Named, Params};
use super::identity::Caller;
use super::openapi::{JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use crate::principal::JobScope;
use crate::store::reads::Targets;

/// Longest wait of one request: proxies cut connections that stay silent for longer.
const TIMEOUT_SECS_MAX: u64 = 60;
/// How long a request waits by default.
const TIMEOUT_SECS_DEFAULT: u64 = 30;
/// How often a waiting request looks by itself, should another controller have moved the job.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often it looks for an array's end, of which it is not notified.
const LOOK_AT_ARRAY_EVERY: Duration = Duration::from_secs(1);

/// How long to wait.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitParams {
    /// 0 to 60, by default 30.
    #[param(minimum = 0, maximum = 60)]
    timeout_secs: Option<u64>,
}

impl WaitParams {
    fn deadline(self) -> Result<Instant, BadField> {
        match self.timeout_secs.unwrap_or(TIMEOUT_SECS_DEFAULT) {
            secs @ 0..=TIMEOUT_SECS_MAX => Ok(Instant::now() + Duration::from_secs(secs)),
            secs => Err(BadField::new(
                "timeout_secs",
                format!("{secs} is out of range"),
                format!("0 to {TIMEOUT_SECS_MAX}"),
            )),
        }
    }
}

/// Waits for a job's end, and returns the job as it is then, or when the time is up.
///
/// An array's number alone waits for all of its tasks, and returns one that has not ended, or
/// else the first.
#[utoipa::path(
    tag = "jobs",
    operation_id = "wait_for_job",
    params(
        JobPath,
        WaitParams,
    ),
    responses(
        (status = 200, description = "The job, ended or not.", body = JobView),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/jobs/{job}/wait")]
pub(super) async fn wait(
    caller: Caller,
    job: Named<JobRef>,
    params: Params<WaitParams>,
    state: Data<State>,
) -> Result<Json<JobView>, ApiError> {
    let job = job.0;
    let deadline = params.0.deadline()?;
    let _place = state.wait(&caller)?;
    let scope = caller.jobs();
    let waited = match state.reads().targets(job, &scope).await?.ok_or_else(|| no_job(job))? {
        Targets::One(number) => for_one(&state, number, &scope, deadline).await?,
        Targets::Tasks { array, .. } => for_tasks(&state, array, &scope, deadline).await?,
    };
    Ok(Json(waited))
}

async fn for_one(
    state: &State,
    number: JobId,
    scope: &JobScope,
    deadline: Instant,
) -> Result<JobView, ApiError> {
    let watching = state.watch.on(number)?;
    loop {
        let moved = watching.moved();
        let job = look(state, number, scope).await?;
        if job.ended_at.is_some() || Instant::now() >= deadline {
            return Ok(job);
        }
        // Woken or not, the next look decides.
        let _ = timeout_at(deadline.min(Instant::now() + LOOK_EVERY), moved).await;
    }
}

async fn for_tasks(
    state: &State,
    array: JobId,
    scope: &JobScope,
    deadline: Instant,
) -> Result<JobView, ApiError> {
    loop {
        let job = JobRef::Job(array);
        let targets = state.reads().targets(job, scope).await?.ok_or_else(|| no_job(job))?;
        let unfinished = match targets {
            Targets::One(_) => None,
            Targets::Tasks { unfinished, .. } => unfinished.first().copied(),
        };
        if unfinished.is_none() || Instant::now() >= deadline {
            return look(state, unfinished.unwrap_or(array), scope).await;
        }
        tokio::time::sleep_until(deadline.min(Instant::now() + LOOK_AT_ARRAY_EVERY)).await;
    }
}

async fn look(state: &State, number: JobId, scope: &JobScope) -> Result<JobView, ApiError> {
    let job = JobRef::Job(number);
    state.reads().job(job, scope).await?.ok_or_else(|| no_job(job))
}
