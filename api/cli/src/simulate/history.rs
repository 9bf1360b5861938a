//! `tessera simulate --since …`: fetches a controller's history for a simulation.

use tessera_placement::record::{RoundRecord, RoundReplay};
use time::OffsetDateTime;

use super::bar::SimulationProgress;
use super::past::{PastAccounts, PastGpu, RecordedHistory, past};
use super::period::{HistoryPeriod, exact, shown};
use crate::failure::CommandFailure;
use crate::session::CommandSession;
use tessera_api_types::PastJob;

/// Maximum number of jobs that are fetched: more are too many for a simulation in one process.
const JOBS_MAX: usize = 2_000_000;
/// Maximum number of layout plans that are counted.
const LAYOUTS_MAX: u32 = 1_000;

/// Fetches a period of a controller's history; only jobs of `user`, if given.
pub async fn fetch(
    session: &CommandSession,
    period: &HistoryPeriod,
    user: Option<&str>,
) -> Result<RecordedHistory, CommandFailure> {
    let (jobs, oldest) = jobs(session, period, user).await?;
    if jobs.is_empty() {
        return Err(CommandFailure::refused(nothing(period, user, oldest)));
    }
    let mut notes = Vec::new();
    if let Some(oldest) = oldest.filter(|oldest| *oldest > period.since) {
        notes.push(format!(
            "the oldest kept job was submitted at {}; earlier ones were deleted (the controller's \
             --keep-history)",
            shown(oldest)
        ));
    }
    let gpus = match gpus_then(session, period).await? {
        Some(gpus) => gpus,
        None => {
            notes.push(
                "no scheduling round is recorded of that time: the present GPUs are used"
                    .to_owned(),
            );
            gpus_now(session).await?
        }
    };
    if gpus.is_empty() {
        return Err(CommandFailure::refused(
            "the controller has no GPU; name a cluster to simulate with --cluster",
        ));
    }
    let accounts = PastAccounts::of(&session.client.usage().await?);
    let mut past = past(jobs, &gpus, &accounts, period).map_err(CommandFailure::refused)?;
    if past.workload.jobs.is_empty() {
        return Err(CommandFailure::refused(format!(
            "no job that was submitted {} ever ran, so no run time is known: {}",
            period.describe(),
            past.notes.join("; ")
        )));
    }
    past.recorded.reconfigurations = cuts(session, period, &mut notes).await?;
    notes.append(&mut past.notes);
    past.notes = notes;
    Ok(past)
}

fn nothing(period: &HistoryPeriod, user: Option<&str>, oldest: Option<OffsetDateTime>) -> String {
    let whose = user.map_or_else(String::new, |user| format!(" by {user}"));
    let none = format!("no job was submitted{whose} {}", period.describe());
    match oldest {
        None => format!("{none}: the controller has no jobs at all"),
        Some(oldest) if oldest > period.until => format!(
            "{none}: the oldest kept job is of {}; choose a later --until, and keep jobs \
             longer with the controller's --keep-history",
            shown(oldest)
        ),
        Some(oldest) => {
            format!("{none}: choose an earlier --since (the oldest is of {})", shown(oldest))
        }
    }
}

async fn jobs(
    session: &CommandSession,
    period: &HistoryPeriod,
    user: Option<&str>,
) -> Result<(Vec<PastJob>, Option<OffsetDateTime>), CommandFailure> {
    let bar = SimulationProgress::counting("jobs fetched");
    let (since, until) = (exact(period.since), exact(period.until));
    let (mut jobs, mut cursor) = (Vec::new(), None);
    loop {
        let page = session.client.past_jobs((&since, &until), user, cursor.as_deref()).await?;
        jobs.extend(page.items);
        bar.set(jobs.len() as u64);
        if jobs.len() > JOBS_MAX {
            return Err(CommandFailure::refused(format!(
                "more than {JOBS_MAX} jobs were submitted {}: choose a shorter period",
                period.describe()
            )));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            bar.finish();
            return Ok((jobs, page.oldest_at));
        }
    }
}

/// Returns the recorded GPUs at the start of the period; `None` if no round was recorded.
async fn gpus_then(
    session: &CommandSession,
    period: &HistoryPeriod,
) -> Result<Option<Vec<PastGpu>>, CommandFailure> {
    let bad = |problem: &dyn std::fmt::Display| {
        CommandFailure::refused(format!("a recorded round: {problem}"))
    };
    let since = exact(period.since);
    let (mut replay, mut cursor) = (RoundReplay::default(), None);
    loop {
        let page = session.client.recorded_rounds(&since, cursor.as_deref()).await?;
        for round in page.items {
            let seen = replay.cluster().is_some_and(|cluster| !cluster.gpus.is_empty());
            if seen && round.at > period.since {
                return Ok(gpus_of(&replay));
            }
            if round.at > period.until {
                return Ok(gpus_of(&replay));
            }
            let record: RoundRecord =
                serde_json::from_value(round.record).map_err(|problem| bad(&problem))?;
            replay.read_record(record, None).map_err(|problem| bad(&problem))?;
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(gpus_of(&replay));
        }
    }
}

fn gpus_of(replay: &RoundReplay) -> Option<Vec<PastGpu>> {
    let gpus = replay.cluster()?.gpus.iter().map(|gpu| PastGpu {
        id: gpu.id.to_string(),
        node: gpu.node.to_string(),
        model: gpu.model.clone(),
        mig: gpu.mig.is_some(),
    });
    Some(gpus.collect::<Vec<_>>()).filter(|gpus| !gpus.is_empty())
}

async fn gpus_now(session: &CommandSession) -> Result<Vec<PastGpu>, CommandFailure> {
    let gpus = session.client.gpus().await?;
    let gpu = |gpu: tessera_api_types::GpuDetails| PastGpu {
        id: gpu.id,
        node: gpu.node,
        model: gpu.model,
        mig: gpu.mig == "on",
    };
    Ok(gpus.items.into_iter().map(gpu).collect())
}

/// Counts the layout plans that were carried out in the period.
async fn cuts(
    session: &CommandSession,
    period: &HistoryPeriod,
    notes: &mut Vec<String>,
) -> Result<u64, CommandFailure> {
    let changes = session.client.layouts(None, LAYOUTS_MAX).await?;
    let oldest = changes.items.last().map(|change| change.planned_at);
    if changes.next_cursor.is_some() && oldest.is_some_and(|oldest| oldest > period.since) {
        notes.push(format!("only the newest {LAYOUTS_MAX} layout plans are counted"));
    }
    let done = |change: &&tessera_api_types::LayoutPlan| {
        change.state == "done" && period.has(change.planned_at)
    };
    Ok(changes.items.iter().filter(done).count() as u64)
}
