//! Why a job waits, or why it was placed where it is.

use std::time::Duration;

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::{AlternativeView, JobExplanation, JobView, SizeView};
use tessera_model::life::JobState;
use tessera_model::sizing::SizeSource;
use tessera_model::{Bytes, JobId, JobRef};

use super::error::ApiError;
use super::extract::Named;
use super::identity::Caller;
use super::openapi::{JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use super::submit::deadline_view;
use crate::clock;
use crate::store::reads::{Decided, candidate_view, memory_view, prediction_view};
use tessera_control::answers::{Alternative, WaitingExplanation};

/// How often an explanation is requested of placement that does not have a job yet: it receives a job a moment after
/// its submit was answered.
const MISSING_TRIES: u32 = 50;
/// How long to wait between them.
const MISSING_FOR: Duration = Duration::from_millis(20);

/// Explains why a job waits, or why it was placed where it is.
///
/// For a waiting job the answer is computed now; for any other job it is the recorded decision
/// about its newest attempt.
#[utoipa::path(
    tag = "jobs",
    operation_id = "explain_job",
    params(JobPath),
    responses(
        (status = 200, description = "The explanation.", body = JobExplanation),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/jobs/{job}/explain")]
pub(super) async fn explain(
    caller: Caller,
    job: Named<JobRef>,
    state: Data<State>,
) -> Result<Json<JobExplanation>, ApiError> {
    let job = job.0;
    let mut tries = 0;
    loop {
        let decided = state.reads().decided(job, &caller.jobs()).await?;
        let decided = decided.ok_or_else(|| no_job(job))?;
        if decided.job.state == JobState::Running.word() {
            let idle = idle_text(job, &caller, &state).await?;
            let mut explanation = recorded(decided, &state);
            explanation.summary.extend(idle.map(|text| format!("; {text}")));
            return Ok(Json(explanation));
        }
        if decided.job.state != JobState::Queued.word() {
            return Ok(Json(recorded(decided, &state)));
        }
        let number = JobId::from_number(decided.job.id);
        if let Some(view) = state.explain_wait(number).await? {
            return Ok(Json(waiting(decided.job, view)));
        }
        // It moved on since it was read, or placement does not have it yet.
        tries += 1;
        if tries > MISSING_TRIES {
            return Ok(Json(recorded(decided, &state)));
        }
        tokio::time::sleep(MISSING_FOR).await;
    }
}

/// Returns what its idle timeout means for a running job that does nothing now.
async fn idle_text(
    job: JobRef,
    caller: &Caller,
    state: &State,
) -> Result<Option<String>, ApiError> {
    let Some(detail) = state.reads().detail(job, &caller.jobs()).await? else { return Ok(None) };
    let attempt = detail.attempt_list.last().and_then(|attempt| attempt.id.parse().ok());
    let (Some(limit), Some(attempt)) = (detail.idle_timeout_secs, attempt) else { return Ok(None) };
    let reported = state.ports.figures.idle_of(&[attempt]);
    let idle = reported.first().map_or(0, |report| report.idle.get() / 1_000);
    let follows = match detail.idle_action.as_deref() {
        Some("requeue") => "it goes back to the queue",
        _ => "it ends",
    };
    Ok((idle > 0).then(|| {
        format!("its GPU has done nothing for {idle} s: after {limit} s {follows} (--idle-timeout)")
    }))
}

fn waiting(job: JobView, view: WaitingExplanation) -> JobExplanation {
    let expected = view.expected_start.as_ref();
    JobExplanation {
        job_id: job.id,
        state: job.state,
        reason: Some(view.reason.to_owned()),
        summary: view.why.summary,
        would_start_if: view.why.would_start_if,
        jobs_ahead: Some(view.jobs_ahead),
        policy: view.why.policy,
        decision: None,
        decided_at: None,
        candidates: view.why.candidates.into_iter().map(candidate_view).collect(),
        candidates_left_out: view.why.candidates_left_out,
        prediction: view.prediction.as_ref().map(prediction_view),
        memory_prediction: view.memory.as_ref().map(memory_view),
        size: Some(size_view(view.size.0, view.size.1)),
        alternatives: view.alternatives.into_iter().map(alternative_view).collect(),
        expected_start_secs: expected.and_then(|e| e.after).map(|t| t.duration().as_secs_f64()),
        expected_start: expected.map(|expected| expected.text.clone()),
        deadline: view.deadline.and_then(|forecast| deadline_view(&forecast, clock::unix())),
    }
}

fn recorded(decided: Decided, state: &State) -> JobExplanation {
    let Decided { job, decision, prediction, memory_prediction, size } = decided;
    let Some(decision) = decision else { return undecided(job, state.ports.about.policy) };
    let held = job.state == JobState::Held.word();
    JobExplanation {
        job_id: job.id,
        would_start_if: if held { Some(RELEASED.to_owned()) } else { None },
        summary: match (held, job.reason_text) {
            (true, Some(text)) => text,
            _ => decision.summary,
        },
        state: job.state,
        reason: decision.reason.or(job.reason),
        jobs_ahead: None,
        policy: decision.policy,
        decision: Some(decision.id),
        decided_at: Some(decision.at),
        candidates: decision.candidates,
        candidates_left_out: decision.candidates_left_out,
        prediction,
        memory_prediction,
        size: size.map(|(source, bytes)| size_view(source, Some(bytes))),
        alternatives: Vec::new(),
        expected_start_secs: None,
        expected_start: None,
        deadline: None,
    }
}

fn alternative_view(alternative: Alternative) -> AlternativeView {
    AlternativeView { change: alternative.change, effect: alternative.effect }
}

fn size_view(source: SizeSource, bytes: Option<Bytes>) -> SizeView {
    SizeView {
        source: source.word().to_owned(),
        memory_bytes: bytes.map(Bytes::get),
        text: source.text().to_owned(),
    }
}

/// What a held job waits for.
const RELEASED: &str = "it is released";

fn undecided(job: JobView, policy: &str) -> JobExplanation {
    let held = job.state == JobState::Held.word();
    JobExplanation {
        job_id: job.id,
        summary: job
            .reason_text
            .unwrap_or_else(|| "no decision has been made about it yet".to_owned()),
        would_start_if: held.then(|| RELEASED.to_owned()),
        state: job.state,
        reason: job.reason,
        jobs_ahead: None,
        policy: policy.to_owned(),
        decision: None,
        decided_at: None,
        candidates: Vec::new(),
        candidates_left_out: 0,
        prediction: None,
        memory_prediction: None,
        size: None,
        alternatives: Vec::new(),
        expected_start_secs: None,
        expected_start: None,
        deadline: None,
    }
}
