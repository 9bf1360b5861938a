//! `tessera queue --start`: when waiting jobs are expected to start.

use serde::Serialize;
use tessera_api_types::{JobPage, JobView};
use tessera_model::{JobId, JobRef};

use super::super::failure::CommandFailure;
use super::super::session::{CommandSession, or_dash, table};
use super::{in_order, node_or_reason};

/// Maximum number of jobs whose start is predicted: each prediction runs the policy again.
const PREDICTED_MAX: usize = 50;

/// When a job is expected to start.
#[derive(Debug, Serialize)]
struct ExpectedStart {
    job: String,
    name: String,
    user: String,
    reason: String,
    in_secs: Option<f64>,
    text: Option<String>,
}

/// Prints when the waiting jobs of a page are expected to start, in the order in which they are
/// served.
pub async fn show(session: &CommandSession, page: &JobPage) -> Result<u8, CommandFailure> {
    let waits = |job: &&JobView| job.state == "queued";
    let waiting: Vec<&JobView> = in_order(page).into_iter().filter(waits).collect();
    let mut starts = Vec::new();
    for job in waiting.iter().take(PREDICTED_MAX) {
        let explained = session.client.explain(JobRef::Job(JobId::from_number(job.id))).await?;
        starts.push(ExpectedStart {
            job: job.name_id.clone(),
            name: job.name.clone(),
            user: job.user.clone(),
            reason: node_or_reason(job),
            in_secs: explained.expected_start_secs,
            text: explained.expected_start,
        });
    }
    session.print(&starts, |starts| {
        let header = ["JOBID", "NAME", "USER", "REASON", "EXPECTED START"];
        let row = |start: &ExpectedStart| {
            let (job, name, user) = (start.job.clone(), start.name.clone(), start.user.clone());
            vec![job, name, user, start.reason.clone(), or_dash(start.text.as_ref())]
        };
        table(Some(&header), starts.iter().map(row))
    })?;
    if waiting.len() > PREDICTED_MAX && !session.json {
        session.remark(&format!(
            "only the first {PREDICTED_MAX} of {} waiting jobs are shown; -j names others",
            waiting.len()
        ));
    }
    Ok(0)
}
