//! Waiting for the end of jobs and of whole arrays.

use indicatif::{ProgressBar, ProgressStyle};
use tessera_model::JobRef;

use super::failure::CommandFailure;
use super::session::CommandSession;
use tessera_api_types::{JobFilter, JobView};
use tessera_client::{ApiClient, ClientError, RetryPatience};

/// More tasks than an array can have.
const TASKS_MAX: usize = 100_000;

/// Waits until every job has ended; `42` stands for all tasks, if it is an array.
///
/// # Errors
///
/// [`CommandFailure::ApiClient`] if there is no such job, or the controller stays unreachable.
pub async fn wait_for(
    session: &CommandSession,
    jobs: &[JobRef],
) -> Result<Vec<JobView>, CommandFailure> {
    // A wait may last for days: it should outlive a restart of the controller.
    let client = session.client.with_patience(RetryPatience::LONG);
    let spinner = spinner(session);
    let mut ended = Vec::new();
    for job in jobs {
        ended.extend(wait_for_one(&client, *job, &spinner).await?);
    }
    spinner.finish_and_clear();
    Ok(ended)
}

async fn wait_for_one(
    client: &ApiClient,
    job: JobRef,
    spinner: &ProgressBar,
) -> Result<Vec<JobView>, ClientError> {
    let first = client.job(job).await?.job;
    match (job, first.array_id) {
        (JobRef::Job(id), Some(array)) if id.number() == array => {
            wait_for_array(client, array, spinner).await
        }
        _ => wait_for_job(client, job, spinner).await.map(|job| vec![job]),
    }
}

async fn wait_for_job(
    client: &ApiClient,
    job: JobRef,
    spinner: &ProgressBar,
) -> Result<JobView, ClientError> {
    loop {
        let now = client.wait_a_while(job).await?;
        if is_over(&now) {
            return Ok(now);
        }
        spinner.set_message(format!("{job} is {}", now.state));
    }
}

/// Waits for the tasks one after another, so that an array of thousands needs one open request.
async fn wait_for_array(
    client: &ApiClient,
    array: u64,
    spinner: &ProgressBar,
) -> Result<Vec<JobView>, ClientError> {
    let all = JobFilter { array: Some(array), ..JobFilter::default() };
    let active = JobFilter { state: Some("active".into()), limit: Some(1), ..all.clone() };
    while let Some(task) = client.jobs(&active).await?.items.pop() {
        spinner.set_message(format!("{} is {}", task.name_id, task.state));
        match task.name_id.parse() {
            Ok(name) => drop(client.wait_a_while(name).await?),
            Err(_) => tokio::time::sleep(std::time::Duration::from_secs(1)).await,
        }
    }
    Ok(client.all_jobs(&all, TASKS_MAX).await?.items)
}

fn spinner(session: &CommandSession) -> ProgressBar {
    if !session.screen.terminal || session.json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
    let spinner = ProgressBar::new_spinner();
    spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    spinner.enable_steady_tick(std::time::Duration::from_millis(120));
    spinner
}

/// Returns whether the job has ended.
pub fn is_over(job: &JobView) -> bool {
    job.state.parse().is_ok_and(tessera_model::life::JobState::is_final)
}

/// Returns the code that a shell would report: the program's own, 128 plus the number of the signal
/// that killed it, or 1 if it never ran.
pub fn exit_code(job: &JobView) -> u8 {
    let code = job.exit_code.as_deref().and_then(|text| {
        let (code, signal) = text.split_once(':')?;
        let (code, signal): (u8, u8) = (code.parse().ok()?, signal.parse().ok()?);
        Some(if signal > 0 { 128_u8.saturating_add(signal) } else { code })
    });
    match (job.state.as_str(), code) {
        ("succeeded", _) => 0,
        (_, None | Some(0)) => 1,
        (_, Some(code)) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_the_one_that_a_shell_would_have_seen() {
        let mut job: JobView = serde_json::from_value(serde_json::json!({
            "id": 1, "name_id": "1", "name": "a", "user": "u", "state": "failed",
            "state_short": "F", "gpu_request": "any slice", "class": "offline", "priority": 5,
            "submitted_at": "2026-01-01T00:00:00Z", "started_at": null, "ended_at": null,
            "attempts": 1
        }))
        .unwrap();
        for (state, ended_with, code) in [
            ("succeeded", Some("0:0"), 0),
            ("failed", Some("3:0"), 3),
            ("failed", Some("0:9"), 137),
            ("timed_out", Some("0:15"), 143),
            // A program that exits cleanly on SIGTERM was still cut short.
            ("timed_out", Some("0:0"), 1),
            ("cancelled", None, 1),
            ("failed", Some("nonsense"), 1),
        ] {
            job.state = state.to_owned();
            job.exit_code = ended_with.map(str::to_owned);

            assert_eq!(exit_code(&job), code, "{state} {ended_with:?}");
        }
    }
}
