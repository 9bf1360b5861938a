//! Commands of users on jobs: cancel, hold, release, update.

use actix_web::web::{Data, Json};
use actix_web::{delete, patch, post};
use tessera_api_types::{JobView, UpdateRequest};
use tessera_model::life::JobState;
use tessera_model::share::SliceShare;
use tessera_model::spec::TimeUpdate;
use tessera_model::{JobId, JobRef};

use super::dependency::new_dependency;
use super::error::ApiError;
use super::extract::{JsonBody, Named};
use super::identity::Caller;
use super::openapi::{BodyProblems, ChangeProblems, JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use super::submit::check_deadline;
use crate::ports::ToPlacer;
use crate::principal::JobScope;
use crate::store::reads::Targets;
use tessera_control::commands::{CommandResult, JobCommand};

/// Defines handlers of commands without a body. A doc comment is the route's REST documentation.
macro_rules! command_handlers {
    ($($(#[$doc:meta])+ $handler:ident: $operation:tt, $method:ident($route:tt), $command:ident;)+) => { $(
        $(#[$doc])+
        #[utoipa::path(
            tag = "jobs",
            operation_id = $operation,
            params(JobPath),
            responses(
                (status = 200, description = "The command is committed; the job in its current \
                                              state.", body = JobView),
                Problems, LookupProblems, ChangeProblems,
            ),
            security(("bearer" = [])),
        )]
        #[$method($route)]
        pub(super) async fn $handler(
            caller: Caller,
            job: Named<JobRef>,
            state: Data<State>,
        ) -> Result<Json<JobView>, ApiError> {
            carry_out(&state, job.0, &caller.jobs(), JobCommand::$command).await
        }
    )+ };
}

command_handlers! {
    /// Cancels a job: at once if it is waiting, else by `SIGTERM` and, after its grace period, `SIGKILL`.
    ///
    /// An array's number alone addresses all of its unfinished tasks. Cancelling a cancelled job
    /// changes nothing and succeeds.
    cancel: "cancel_job", post("/jobs/{job}/cancel"), Cancel;

    /// Ends a job, as `POST /v1/jobs/{job}/cancel` does. Its record stays.
    delete: "delete_job", delete("/jobs/{job}"), Cancel;

    /// Holds a waiting job: it does not start until it is released.
    ///
    /// An array's number alone addresses all of its unfinished tasks.
    hold: "hold_job", post("/jobs/{job}/hold"), Hold;

    /// Ends a running job's attempt, and puts the job back into the queue: `SIGTERM` and, after its grace
    /// period, `SIGKILL`. A job that has ended is put back into the queue, too. It keeps its number, and uses none of its
    /// retries.
    ///
    /// An array's number alone addresses all of its unfinished tasks, or, if there are none, all that have ended.
    requeue: "requeue_job", post("/jobs/{job}/requeue"), Requeue;

    /// Releases a held job.
    ///
    /// An array's number alone addresses all of its unfinished tasks.
    release: "release_job", post("/jobs/{job}/release"), Release;
}

/// Updates a job: its priority, its time limit, its deadline, what it waits for, its names and rules, or its share of a
/// slice.
///
/// - `priority`: a waiting job moves in the queue at once; a running job uses it when it waits
///   again.
/// - `time_limit_secs`: counted from the start of the attempt; 0 for none. It applies to a running job
///   at once, which ends if it has run for longer.
/// - `deadline`: by when it has to be done; placement plans for it at once. `no_deadline` removes it.
/// - `dependency`: the jobs that it waits for from now on, or none. It stays one that is cancelled if that can never be
///   met, or one that is not. A job that has started is refused, and so is one that would wait for itself.
/// - `begin`: before this time it does not start. A job that has started is refused.
/// - `array_limit`: how many tasks of its array may run at a time, given with the array's number. Those that run go on.
/// - `name`, `comment` and `on_lost` take effect at once. A running program keeps its variables.
/// - `sm_percent`: a running job gets its checkpoint signal, ends, and is started again with its new
///   share, which uses none of its retries. It must have been submitted with a `checkpoint_signal`.
///
/// An array's number alone addresses all of its unfinished tasks.
#[utoipa::path(
    tag = "jobs",
    operation_id = "update_job",
    params(JobPath),
    request_body = UpdateRequest,
    responses(
        (status = 200, description = "The command is committed; the job in its current \
                                      state.", body = JobView),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[patch("/jobs/{job}")]
pub(super) async fn update(
    caller: Caller,
    job: Named<JobRef>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<JobView>, ApiError> {
    let scope = caller.jobs();
    let request = body.parse::<UpdateRequest>()?;
    let waits_for = request.dependency.clone().filter(|text| !text.trim().is_empty());
    let (sm, mut update) = request.into_update()?;
    // Held until the change is committed, and thus seen by the next one.
    let _turn = match waits_for {
        Some(_) => Some(state.turn_to_change_dependencies().await?),
        None => None,
    };
    if let Some(text) = waits_for {
        update.dependency = Some(new_dependency(&state, &caller, job.0, &text).await?);
    }
    if let Some(limit) = update.array_limit.as_mut() {
        limit.tasks = count_tasks(&state, job.0, &scope).await?;
    }
    if let Some(TimeUpdate::To(deadline)) = update.deadline {
        check_deadline(deadline)?;
    }
    if let Some(sm) = sm {
        check_shares(&state, job.0, &scope).await?;
        let changed = carry_out(&state, job.0, &scope, JobCommand::Reshare(sm)).await?;
        if update.is_empty() {
            return Ok(changed);
        }
    }
    carry_out(&state, job.0, &scope, JobCommand::Update(update)).await
}

/// Returns how many tasks a job's array has.
async fn count_tasks(state: &State, job: JobRef, scope: &JobScope) -> Result<u32, ApiError> {
    let number = match job {
        JobRef::Job(job) | JobRef::Task { array: job, .. } => job,
    };
    let known = state.reads().submissions_of(vec![number], scope.clone()).await?;
    let shape = known.get(&number).ok_or_else(|| no_job(job))?;
    if shape.array_first.is_none() {
        return Err(ApiError::WrongState {
            problem: format!("job {job} is no array, so there is no number of tasks to limit"),
            expected: "an array".into(),
        });
    }
    Ok(shape.tasks.div_euclid(shape.members.max(1)))
}

/// Refuses a job that has no share of the multiprocessors.
async fn check_shares(state: &State, job: JobRef, scope: &JobScope) -> Result<(), ApiError> {
    let share = state.reads().share(job, scope).await?.ok_or_else(|| no_job(job))?;
    if share.part().and_then(SliceShare::sm).is_some() {
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

async fn carry_out(
    state: &State,
    job: JobRef,
    scope: &JobScope,
    command: JobCommand,
) -> Result<Json<JobView>, ApiError> {
    match state.reads().targets(job, scope).await?.ok_or_else(|| no_job(job))? {
        Targets::One(number) => command_one(state, job, number, command).await?,
        Targets::Tasks { array, span, unfinished } => {
            let jobs = match unfinished.is_empty() && command == JobCommand::Requeue {
                true => state.reads().ended_tasks(array, span).await?,
                false => unfinished,
            };
            command_tasks(state, job, jobs, command).await?;
        }
    }
    state.reads().job(job, scope).await?.map(Json).ok_or_else(|| no_job(job))
}

async fn command_one(
    state: &State,
    job: JobRef,
    number: JobId,
    command: JobCommand,
) -> Result<(), ApiError> {
    match send(state, vec![number], command.clone()).await?.first() {
        Some(CommandResult::Done) => Ok(()),
        Some(CommandResult::Refused { state }) if is_done_already(&command, state) => Ok(()),
        Some(CommandResult::Refused { state }) => Err(refused(job, state, &command)),
        Some(CommandResult::NoCheckpoint) => Err(no_checkpoint(job)),
        Some(CommandResult::NotFound) => Err(no_job(job)),
        None => Err(ApiError::Internal),
    }
}

/// A whole array takes a command if any of its tasks does.
async fn command_tasks(
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
            | JobCommand::Requeue
            | JobCommand::Reshare(_)
            | JobCommand::Update(_) => Err(refused(job, "finished", &command)),
        };
    }
    let results = send(state, unfinished, command.clone()).await?;
    let refusal = results.iter().find_map(|result| match result {
        CommandResult::Refused { state } if !is_done_already(&command, state) => {
            Some(refused(job, state, &command))
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
    Ok(state.query(|reply| ToPlacer::Command { command, jobs, reply }).await??)
}

/// A client that lost the answer to its cancel repeats the request.
fn is_done_already(command: &JobCommand, state: &str) -> bool {
    *command == JobCommand::Cancel && state == JobState::Cancelled.word()
}

fn no_checkpoint(job: JobRef) -> ApiError {
    ApiError::WrongState {
        problem: format!(
            "job {job} is running without a checkpoint signal, so its share can't be changed"
        ),
        expected: "a job that was submitted with a checkpoint_signal (--checkpoint), or a \
                   waiting job"
            .into(),
    }
}

fn refused(job: JobRef, state: &str, command: &JobCommand) -> ApiError {
    let (verb, expected) = match command {
        JobCommand::Cancel => ("cancelled", "a job that has not ended"),
        JobCommand::Hold => ("held", "a queued job; a running job can be cancelled"),
        JobCommand::Release => ("released", "a held job"),
        JobCommand::Requeue => ("requeued", "a running job, or one that has ended"),
        JobCommand::Update(changed) if changed.dependency.is_some() => {
            ("given another dependency", "a job that has not started yet")
        }
        JobCommand::Update(changed) if changed.begin.is_some() => {
            ("given another earliest start", "a job that has not started yet")
        }
        JobCommand::Reshare(_) | JobCommand::Update(_) => ("changed", "a waiting or running job"),
    };
    ApiError::WrongState {
        problem: format!("job {job} is {state} and can't be {verb}"),
        expected: expected.into(),
    }
}
