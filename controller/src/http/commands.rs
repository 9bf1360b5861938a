//! What a user tells a job: cancel, hold, release.

use actix_web::web::{Data, Json};
use actix_web::{delete, post};
use tessera_api::types::Job;
use tessera_model::life::JobState;
use tessera_model::{JobId, JobRef};

use super::error::ApiError;
use super::extract::Named;
use super::openapi::{ChangeProblems, JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use crate::ports::{CommandResult, JobCommand, ToPlacer};
use crate::store::reads::Targets;

/// Ends a job: at once if it waits, else by `SIGTERM` and, after its grace, `SIGKILL`.
///
/// An array's number alone addresses all of its unfinished tasks. Cancelling a cancelled job
/// changes nothing and succeeds.
#[utoipa::path(
    tag = "jobs",
    operation_id = "cancel_job",
    params(JobPath),
    responses(
        (status = 200, description = "It is committed; the job as it stands now.", body = Job),
        Problems, LookupProblems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/jobs/{job}/cancel")]
pub(super) async fn cancel(job: Named<JobRef>, state: Data<State>) -> Result<Json<Job>, ApiError> {
    carry_out(&state, job.0, JobCommand::Cancel).await
}

/// Ends a job, as `POST /v1/jobs/{job}/cancel` does. Its record stays.
#[utoipa::path(
    tag = "jobs",
    operation_id = "delete_job",
    params(JobPath),
    responses(
        (status = 200, description = "It is committed; the job as it stands now.", body = Job),
        Problems, LookupProblems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[delete("/jobs/{job}")]
pub(super) async fn delete(job: Named<JobRef>, state: Data<State>) -> Result<Json<Job>, ApiError> {
    carry_out(&state, job.0, JobCommand::Cancel).await
}

/// Keeps a job that waits from starting, until it is released.
///
/// An array's number alone addresses all of its unfinished tasks.
#[utoipa::path(
    tag = "jobs",
    operation_id = "hold_job",
    params(JobPath),
    responses(
        (status = 200, description = "It is committed; the job as it stands now.", body = Job),
        Problems, LookupProblems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/jobs/{job}/hold")]
pub(super) async fn hold(job: Named<JobRef>, state: Data<State>) -> Result<Json<Job>, ApiError> {
    carry_out(&state, job.0, JobCommand::Hold).await
}

/// Lets a held job go on.
///
/// An array's number alone addresses all of its unfinished tasks.
#[utoipa::path(
    tag = "jobs",
    operation_id = "release_job",
    params(JobPath),
    responses(
        (status = 200, description = "It is committed; the job as it stands now.", body = Job),
        Problems, LookupProblems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/jobs/{job}/release")]
pub(super) async fn release(job: Named<JobRef>, state: Data<State>) -> Result<Json<Job>, ApiError> {
    carry_out(&state, job.0, JobCommand::Release).await
}

async fn carry_out(state: &State, job: JobRef, command: JobCommand) -> Result<Json<Job>, ApiError> {
    match state.reads().targets(job).await?.ok_or_else(|| no_job(job))? {
        Targets::One(number) => to_one(state, job, number, command).await?,
        Targets::Tasks { unfinished, .. } => to_tasks(state, job, unfinished, command).await?,
    }
    state.reads().job(job).await?.map(Json).ok_or_else(|| no_job(job))
}

async fn to_one(
    state: &State,
    job: JobRef,
    number: JobId,
    command: JobCommand,
) -> Result<(), ApiError> {
    match send(state, vec![number], command).await?.first() {
        Some(CommandResult::Done) => Ok(()),
        Some(CommandResult::Refused { state }) if is_done_already(command, state) => Ok(()),
        Some(CommandResult::Refused { state }) => Err(refused(job, state, command)),
        Some(CommandResult::NotFound) => Err(no_job(job)),
        None => Err(ApiError::Internal),
    }
}

/// A whole array takes a command if any of its tasks does.
async fn to_tasks(
    state: &State,
    job: JobRef,
    unfinished: Vec<JobId>,
    command: JobCommand,
) -> Result<(), ApiError> {
    if unfinished.is_empty() {
        return match command {
            JobCommand::Cancel => Ok(()),
            JobCommand::Hold | JobCommand::Release => Err(refused(job, "finished", command)),
        };
    }
    let results = send(state, unfinished, command).await?;
    let refusal = results.iter().find_map(|result| match result {
        CommandResult::Refused { state } if !is_done_already(command, state) => Some(state),
        CommandResult::Refused { .. } | CommandResult::Done | CommandResult::NotFound => None,
    });
    match refusal {
        Some(state) if !results.contains(&CommandResult::Done) => Err(refused(job, state, command)),
        _ => Ok(()),
    }
}

async fn send(
    state: &State,
    jobs: Vec<JobId>,
    command: JobCommand,
) -> Result<Vec<CommandResult>, ApiError> {
    Ok(state.ask(|reply| ToPlacer::Command { command, jobs, reply }).await??)
}

/// A client that lost the answer to its cancel asks again.
fn is_done_already(command: JobCommand, state: &str) -> bool {
    command == JobCommand::Cancel && state == JobState::Cancelled.word()
}

fn refused(job: JobRef, state: &str, command: JobCommand) -> ApiError {
    let (verb, expected) = match command {
        JobCommand::Cancel => ("cancelled", "a job that has not ended"),
        JobCommand::Hold => ("held", "a job that is queued; cancel one that runs"),
        JobCommand::Release => ("released", "a job that is held"),
    };
    ApiError::WrongState {
        problem: format!("job {job} is {state} and can't be {verb}"),
        expected: expected.into(),
    }
}
