//! What happened to a job: told from its submission, its attempts, and what was written down.

use sqlx::PgConnection;
use tessera_api::types::{Attempt, Job, JobEventView, JobEvents};
use tessera_model::JobRef;

use super::{attempts, jobs};
use crate::store::StoreError;

/// Returns what happened to a job, oldest first.
pub(super) async fn of_job(
    at: &mut PgConnection,
    job: JobRef,
) -> Result<Option<JobEvents>, StoreError> {
    let Some(job) = jobs::one(at, job).await? else { return Ok(None) };
    let runs = attempts::of_job(at, job.id).await?;
    let mut items = vec![accepted(&job)];
    for (place, run) in runs.iter().enumerate() {
        let newest = place + 1 == runs.len();
        items.push(placed(run));
        items.extend(started(run));
        items.extend(ended(run, &job, newest));
    }
    items.extend(written_down(at, job.id).await?);
    // Stable: what happened at one moment keeps the order of the life cycle.
    items.sort_by_key(|event| event.at);
    Ok(Some(JobEvents { items }))
}

fn accepted(job: &Job) -> JobEventView {
    JobEventView {
        at: job.submitted_at,
        state: "queued".to_owned(),
        attempt: None,
        text: format!("accepted from {}; it asks for {}", job.user, job.gpu_ask),
    }
}

fn placed(run: &Attempt) -> JobEventView {
    let slice = match run.start_slice {
        Some(start) => format!("{} at memory slice {start}", run.profile),
        None => run.profile.clone(),
    };
    let gpu = run.gpu_index.map_or_else(|| run.gpu.clone(), |index| format!("GPU {index}"));
    JobEventView {
        at: run.placed_at,
        state: "placing".to_owned(),
        attempt: Some(run.number),
        text: format!("run {} gets {slice} of {gpu} on {}", run.number, run.node),
    }
}

fn started(run: &Attempt) -> Option<JobEventView> {
    let slice = run.slice.as_deref().map(|slice| format!(", as {slice}")).unwrap_or_default();
    Some(JobEventView {
        at: run.started_at?,
        state: "running".to_owned(),
        attempt: Some(run.number),
        text: format!("run {} started on {}{slice}", run.number, run.node),
    })
}

fn ended(run: &Attempt, job: &Job, newest: bool) -> Option<JobEventView> {
    let at = run.ended_at?;
    let after = if newest && job.ended_at.is_some() { job.state.clone() } else { "queued".into() };
    let mut text = format!("run {} ended: {}", run.number, run.state.replace('_', " "));
    if let Some(exit) = &run.exit_code {
        text.push_str(&format!(", exit code {exit}"));
    }
    if let Some(detail) = &run.detail {
        text.push_str(&format!("; {detail}"));
    }
    if after == "queued" {
        text.push_str("; the job goes back to the queue");
    }
    Some(JobEventView { at, state: after, attempt: Some(run.number), text })
}

async fn written_down(at: &mut PgConnection, job: u64) -> Result<Vec<JobEventView>, StoreError> {
    let rows = sqlx::query!(
        "SELECT at, state, text FROM job_events WHERE job = $1 ORDER BY event",
        i64::try_from(job).unwrap_or(i64::MAX),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the events of a job"))?;
    let event = |at, state, text| JobEventView { at, state, attempt: None, text };
    Ok(rows.into_iter().map(|row| event(row.at, row.state, row.text)).collect())
}
