//! What a user tells a job: cancel, hold, release, change.

use actix_web::web::{Data, Json};
use actix_web::{delete, patch, post};
use tessera_api::types::{Job, UpdateRequest};
use tessera_model::life::JobState;
use tessera_model::share::{Part, SmPercent};
use tessera_model::spec::{BadField, Priority, time_limit};
use tessera_model::{JobId, JobRef};

use super::error::ApiError;
use super::extract::{JsonBody, Named};
use super::openapi::{BodyProblems, ChangeProblems, JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use crate::ports::{CommandResult, JobCommand, Limit, Terms, ToPlacer};
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

/// Changes a job: its rank, its time limit, or its part of a slice that it shares.
///
/// - `priority`: one that waits stands elsewhere in the queue at once; one that runs has it when it
///   waits again.
/// - `time_limit_secs`: counted from the start of the attempt; 0 for none. One that runs is held to it
///   at once, and ends if it has run for longer.
/// - `sm_percent`: a job that waits simply changes. One that runs gets its checkpoint signal, ends, and
///   is started again with its new part, which costs none of its retries; it must have been submitted
///   with a `checkpoint_signal`.
///
/// An array's number alone addresses all of its unfinished tasks.
#[utoipa::path(
    tag = "jobs",
    operation_id = "update_job",
    params(JobPath),
    request_body = UpdateRequest,
    responses(
        (status = 200, description = "It is committed; the job as it stands now.", body = Job),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[patch("/jobs/{job}")]
pub(super) async fn update(
    job: Named<JobRef>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<Job>, ApiError> {
    let UpdateRequest { sm_percent, priority, time_limit_secs } = body.parse()?;
    let terms = Terms {
        priority: priority.map(Priority::try_from).transpose()?,
        limit: time_limit_secs.map(limit).transpose()?,
    };
    let sm = sm_percent.map(SmPercent::try_from).transpose()?;
    if sm.is_none() && terms == Terms::default() {
        return Err(BadField::new(
            "priority",
            "there is nothing to change",
            "priority, time_limit_secs or sm_percent",
        )
        .into());
    }
    if let Some(sm) = sm {
        shares(&state, job.0).await?;
        let changed = carry_out(&state, job.0, JobCommand::Reshare(sm)).await?;
        if terms == Terms::default() {
            return Ok(changed);
        }
    }
    carry_out(&state, job.0, JobCommand::Amend(terms)).await
}

/// Reads a new time limit; 0 takes it away.
fn limit(secs: u64) -> Result<Limit, BadField> {
    if secs == 0 { Ok(Limit::Unlimited) } else { time_limit(secs).map(Limit::Of) }
}

/// Refuses a job that has no share of the multiprocessors.
async fn shares(state: &State, job: JobRef) -> Result<(), ApiError> {
    let share = state.reads().share(job).await?.ok_or_else(|| no_job(job))?;
    if share.part().and_then(Part::sm).is_some() {
        return Ok(());
    }
    Err(ApiError::WrongState {
        problem: format!(
            "job {job} has no share of the multiprocessors to change: it is {}",
            share.word()
        ),
        expected: "a job that was submitted with share = mps".into(),
    })
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
        Some(CommandResult::NoCheckpoint) => Err(no_checkpoint(job)),
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
            JobCommand::Hold
            | JobCommand::Release
            | JobCommand::Reshare(_)
            | JobCommand::Amend(_) => Err(refused(job, "finished", command)),
        };
    }
    let results = send(state, unfinished, command).await?;
    let refusal = results.iter().find_map(|result| match result {
        CommandResult::Refused { state } if !is_done_already(command, state) => {
            Some(refused(job, state, command))
        }
        CommandResult::NoCheckpoint => Some(no_checkpoint(job)),
        CommandResult::Refused { .. } | CommandResult::Done | CommandResult::NotFound => None,
    });
    match refusal {
        Some(refusal) if !results.contains(&CommandResult::Done) => Err(refusal),
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

fn no_checkpoint(job: JobRef) -> ApiError {
    ApiError::WrongState {
        problem: format!(
            "job {job} runs, and its share can't be changed under it: it has no checkpoint signal"
        ),
        expected: "a job that was submitted with a checkpoint_signal (--checkpoint), or one that \
                   waits"
            .into(),
    }
}

fn refused(job: JobRef, state: &str, command: JobCommand) -> ApiError {
    let (verb, expected) = match command {
        JobCommand::Cancel => ("cancelled", "a job that has not ended"),
        JobCommand::Hold => ("held", "a job that is queued; cancel one that runs"),
        JobCommand::Release => ("released", "a job that is held"),
        JobCommand::Reshare(_) | JobCommand::Amend(_) => ("changed", "a job that waits or runs"),
    };
    ApiError::WrongState {
        problem: format!("job {job} is {state} and can't be {verb}"),
        expected: expected.into(),
    }
}
