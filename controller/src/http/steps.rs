//! Reports of steps: the callers of `srun` state what they start, and how it ended.

use actix_web::post;
use actix_web::web::{Data, Json};
use tessera_api_types::{StepReceipt, StepReport};
use tessera_model::spec::BadField;
use tessera_model::{AttemptId, JobRef};

use super::error::ApiError;
use super::extract::{JsonBody, Named, read_id};
use super::identity::Caller;
use super::openapi::{BodyProblems, JobPath, LookupProblems, Problems};
use super::sessions::check_own_job;
use super::state::{State, no_job};
use crate::store::steps::ReportedStep;

/// Longest name of a step's program, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// Longest list of a step's nodes, in bytes: `n[1-2]` stands for many.
const NODES_BYTES_MAX: usize = 4_096;
/// Longest time for which a step can have run: ten years.
const RAN_MS_MAX: i64 = 10 * 365 * 86_400 * 1_000;

/// Records that `srun` starts a step of a job, or that the step has ended.
///
/// The same report may be sent again. Reports about an attempt that has ended change nothing: what ran then has ended with
/// it. A process of the job needs no token.
#[utoipa::path(
    tag = "jobs",
    operation_id = "report_step",
    params(JobPath),
    request_body = StepReport,
    responses(
        (status = 200, description = "Whether the report was recorded.", body = StepReceipt),
        Problems, LookupProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/jobs/{job}/steps")]
pub(super) async fn report_step(
    caller: Caller,
    job: Named<JobRef>,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<StepReceipt>, ApiError> {
    check_own_job(&caller, job.0)?;
    let number = match (job.0, caller.job()) {
        // Its node names it, and a script may start steps one after another: nothing has to be looked up.
        (JobRef::Job(own), Some(_)) => own.number(),
        (job, _) => find_job(&state, &caller, job).await?,
    };
    let step = read_report(body.parse()?, number)?;
    Ok(Json(StepReceipt { recorded: state.ports.steps.record(step).await? }))
}

/// Returns the number of a job whose steps a user may report.
async fn find_job(state: &State, caller: &Caller, job: JobRef) -> Result<u64, ApiError> {
    let known = state.reads().job(job, &caller.jobs()).await?.ok_or_else(|| no_job(job))?;
    if !caller.may_act_for(&known.user) {
        return Err(ApiError::Forbidden {
            problem: format!("job {job} belongs to {}", known.user),
            expected: "its own user, or an operator".to_owned(),
        });
    }
    Ok(known.id)
}

/// Checks a report about a step of a job.
fn read_report(report: StepReport, job: u64) -> Result<ReportedStep, ApiError> {
    let attempt: AttemptId = read_id("attempt", &report.attempt)?;
    let is_plain = |text: &str, most: usize| {
        !text.is_empty() && text.len() <= most && !text.chars().any(char::is_control)
    };
    for (field, text, most) in
        [("name", &report.name, NAME_BYTES_MAX), ("nodes", &report.nodes, NODES_BYTES_MAX)]
    {
        if !is_plain(text, most) {
            return Err(BadField::new(
                field,
                "it is empty, too long, or holds control characters",
                format!("1 to {most} bytes of plain text"),
            )
            .into());
        }
    }
    let is_code = |text: &String| {
        text.split_once(':').is_some_and(|(code, signal)| {
            code.parse::<u8>().is_ok() && signal.parse::<u8>().is_ok()
        })
    };
    if !report.exit_code.as_ref().is_none_or(is_code) {
        return Err(
            BadField::new("exit_code", "it is no exit code", "code:signal, as in 0:9").into()
        );
    }
    let too_large =
        |field: &'static str| BadField::new(field, "it is too large", "a smaller number");
    let small = |field, number: u32| i32::try_from(number).map_err(|_| too_large(field));
    let large = |field, number: Option<u64>| {
        number.map(|number| i64::try_from(number).map_err(|_| too_large(field))).transpose()
    };
    if report.tasks == 0 {
        return Err(BadField::new("tasks", "it is 0", "the number of the step's processes").into());
    }
    Ok(ReportedStep {
        job: tessera_model::JobId::from_number(job),
        attempt: attempt.as_uuid(),
        step: small("step", report.step)?,
        name: report.name,
        tasks: small("tasks", report.tasks)?,
        nodes: report.nodes,
        // No step is older than its job; a wrong clock must not make the database fail.
        ran_ms: i64::try_from(report.ran_ms).map_or(RAN_MS_MAX, |ran| ran.min(RAN_MS_MAX)),
        exit_code: report.exit_code,
        user_ms: large("user_ms", report.user_ms)?,
        system_ms: large("system_ms", report.system_ms)?,
        max_rss: large("max_rss_bytes", report.max_rss_bytes)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(change: impl FnOnce(&mut StepReport)) -> StepReport {
        let mut report = StepReport {
            attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(7)).to_string(),
            name: "python".to_owned(),
            tasks: 2,
            nodes: "n[1-2]".to_owned(),
            exit_code: Some("0:9".to_owned()),
            ..StepReport::default()
        };
        change(&mut report);
        report
    }

    #[test]
    fn a_report_is_checked_once() {
        let read = read_report(report(|_| ()), 42).unwrap();

        assert_eq!((read.job.number(), read.tasks, read.step), (42, 2, 0));
        let longest = read_report(report(|report| report.ran_ms = u64::MAX), 42).unwrap();
        assert_eq!(longest.ran_ms, RAN_MS_MAX);
        for wrong in [
            report(|report| report.attempt = "42".to_owned()),
            report(|report| report.name = "a\nb".to_owned()),
            report(|report| report.nodes = String::new()),
            report(|report| report.tasks = 0),
            report(|report| report.step = u32::MAX),
            report(|report| report.exit_code = Some("9".to_owned())),
            report(|report| report.max_rss_bytes = Some(u64::MAX)),
        ] {
            assert!(read_report(wrong.clone(), 42).is_err(), "{wrong:?}");
        }
    }
}
