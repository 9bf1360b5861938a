//! The events of a job: of its submission and its attempts, and those that were recorded.

use sqlx::PgConnection;
use tessera_api_types::{AttemptView, JobEventView, JobEvents, JobView};
use tessera_model::JobRef;
use tessera_model::life::JobState;
use time::OffsetDateTime;

use super::{attempts, jobs};
use crate::principal::JobScope;
use crate::store::StoreError;
use crate::store::columns::bigint;

/// An event, and the moment that it is sorted by.
type Sorted = (OffsetDateTime, JobEventView);

/// Returns what happened to a job, oldest first.
pub(super) async fn of_job(
    at: &mut PgConnection,
    job: JobRef,
    scope: &JobScope,
) -> Result<Option<JobEvents>, StoreError> {
    let Some(job) = jobs::one(at, job, scope).await? else { return Ok(None) };
    let runs = attempts::of_job(at, job.id).await?;
    let written = recorded(at, job.id).await?;
    let mut events: Vec<Sorted> = vec![(job.submitted_at, accepted(&job))];
    for (place, run) in runs.iter().enumerate() {
        events.extend(of_run(run, runs.get(place + 1), &job));
    }
    events.extend(written.into_iter().map(|event| (event.at, event)));
    // Stable: what happened at one moment keeps the order of the life cycle.
    events.sort_by_key(|(at, _)| *at);
    Ok(Some(JobEvents { items: events.into_iter().map(|(_, event)| event).collect() }))
}

/// Returns the events of one run. Its start and end are times of the node's clock, which may be off
/// by seconds: for the order they lie between the database's times around them.
fn of_run(run: &AttemptView, next: Option<&AttemptView>, job: &JobView) -> Vec<Sorted> {
    let within = |event: JobEventView, before: Option<OffsetDateTime>| {
        let at = before.map_or(event.at, |before| event.at.min(before)).max(run.placed_at);
        (at, event)
    };
    let after = next.map(|next| next.placed_at).or(job.ended_at);
    let end = ended(run, job, next.is_none()).map(|event| within(event, after));
    let latest_start = end.as_ref().map_or(after, |(at, _)| Some(*at));
    let start = started(run).map(|event| within(event, latest_start));
    [Some((run.placed_at, placed(run))), start, end].into_iter().flatten().collect()
}

fn accepted(job: &JobView) -> JobEventView {
    JobEventView {
        at: job.submitted_at,
        state: "queued".to_owned(),
        attempt: None,
        text: format!("accepted from {}; it requests {}", job.user, job.gpu_request),
    }
}

fn placed(run: &AttemptView) -> JobEventView {
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

fn started(run: &AttemptView) -> Option<JobEventView> {
    let slice = run.slice.as_deref().map(|slice| format!(", as {slice}")).unwrap_or_default();
    Some(JobEventView {
        at: run.started_at?,
        state: "running".to_owned(),
        attempt: Some(run.number),
        text: format!("run {} started on {}{slice}", run.number, run.node),
    })
}

fn ended(run: &AttemptView, job: &JobView, newest: bool) -> Option<JobEventView> {
    let at = run.ended_at?;
    let stays = newest && (job.ended_at.is_some() || job.state == JobState::Held.word());
    let after = if stays { job.state.as_str() } else { JobState::Queued.word() };
    let mut text = format!("run {} ended: {}", run.number, run.state.replace('_', " "));
    if let Some(exit) = &run.exit_code {
        text.push_str(&format!(", exit code {exit}"));
    }
    if let Some(detail) = &run.detail {
        text.push_str(&format!("; {detail}"));
    }
    if after == JobState::Queued.word() {
        text.push_str("; the job goes back to the queue");
    }
    Some(JobEventView { at, state: after.to_owned(), attempt: Some(run.number), text })
}

async fn recorded(at: &mut PgConnection, job: u64) -> Result<Vec<JobEventView>, StoreError> {
    let rows = sqlx::query!(
        "SELECT at, state, text FROM job_events WHERE job = $1 ORDER BY event",
        bigint(job),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the events of a job"))?;
    let event = |at, state, text| JobEventView { at, state, attempt: None, text };
    Ok(rows.into_iter().map(|row| event(row.at, row.state, row.text)).collect())
}
