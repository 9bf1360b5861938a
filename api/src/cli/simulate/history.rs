//! `tessera simulate --since …`: what a controller's users did, fetched for a simulation.

use tessera_placement::record::{Record, Tape};
use time::OffsetDateTime;

use super::bar::Bar;
use super::past::{Past, PastGpu, past};
use super::period::{Period, exact, shown};
use crate::cli::failure::Failure;
use crate::cli::session::Session;
use crate::types::PastJob;

/// Most jobs that are fetched: beyond it a simulation in one process is no longer sensible.
const JOBS_MAX: usize = 2_000_000;
/// Changes of layouts that are counted.
const LAYOUTS_MAX: u32 = 1_000;

/// Fetches a period of a controller's history; of one user's jobs, if one is named.
pub async fn fetch(
    session: &Session,
    period: &Period,
    user: Option<&str>,
) -> Result<Past, Failure> {
    let (jobs, oldest) = jobs(session, period, user).await?;
    if jobs.is_empty() {
        return Err(Failure::Refused(nothing(period, user, oldest)));
    }
    let mut notes = Vec::new();
    if let Some(oldest) = oldest.filter(|oldest| *oldest > period.since) {
        notes.push(format!(
            "the oldest job that is kept was submitted at {}: what was before is not known \
             (the controller's --keep-history)",
            shown(oldest)
        ));
    }
    let gpus = match gpus_then(session, period).await? {
        Some(gpus) => gpus,
        None => {
            notes.push(
                "no round of the placement is recorded of that time: the GPUs are those of now"
                    .to_owned(),
            );
            gpus_now(session).await?
        }
    };
    if gpus.is_empty() {
        return Err(Failure::Refused(
            "the controller knows of no GPU: give the --cluster to simulate".to_owned(),
        ));
    }
    let mut past = past(jobs, &gpus, period).map_err(|bad| Failure::Refused(bad.to_string()))?;
    if past.workload.jobs.is_empty() {
        return Err(Failure::Refused(format!(
            "no job that was submitted {} ever ran, so that nothing is known of their times: {}",
            period.words(),
            past.notes.join("; ")
        )));
    }
    past.recorded.reconfigurations = cuts(session, period, &mut notes).await?;
    notes.append(&mut past.notes);
    past.notes = notes;
    Ok(past)
}

fn nothing(period: &Period, user: Option<&str>, oldest: Option<OffsetDateTime>) -> String {
    let whose = user.map_or_else(String::new, |user| format!(" by {user}"));
    let none = format!("no job was submitted{whose} {}", period.words());
    match oldest {
        None => format!("{none}: the controller has no jobs at all"),
        Some(oldest) if oldest > period.until => format!(
            "{none}: the oldest that is kept is of {}; choose a later --until, and keep jobs \
             longer with the controller's --keep-history",
            shown(oldest)
        ),
        Some(oldest) => {
            format!("{none}: choose an earlier --since (the oldest is of {})", shown(oldest))
        }
    }
}

async fn jobs(
    session: &Session,
    period: &Period,
    user: Option<&str>,
) -> Result<(Vec<PastJob>, Option<OffsetDateTime>), Failure> {
    let bar = Bar::counting("jobs fetched");
    let (since, until) = (exact(period.since), exact(period.until));
    let (mut jobs, mut cursor) = (Vec::new(), None);
    loop {
        let page = session.client.past_jobs((&since, &until), user, cursor.as_deref()).await?;
        jobs.extend(page.items);
        bar.set(u64::try_from(jobs.len()).unwrap_or(u64::MAX));
        if jobs.len() > JOBS_MAX {
            return Err(Failure::Refused(format!(
                "more than {JOBS_MAX} jobs were submitted {}: choose a shorter period",
                period.words()
            )));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            bar.finish();
            return Ok((jobs, page.oldest_at));
        }
    }
}

/// Returns the GPUs as the period began, by what was recorded; `None` if nothing was.
async fn gpus_then(session: &Session, period: &Period) -> Result<Option<Vec<PastGpu>>, Failure> {
    let bad = |problem: String| Failure::Refused(format!("a recorded round: {problem}"));
    let since = exact(period.since);
    let (mut tape, mut cursor) = (Tape::default(), None);
    loop {
        let page = session.client.recorded_rounds(&since, cursor.as_deref()).await?;
        for round in page.items {
            let seen = tape.cluster().is_some_and(|cluster| !cluster.gpus.is_empty());
            if seen && round.at > period.since {
                return Ok(gpus_of(&tape));
            }
            if round.at > period.until {
                return Ok(gpus_of(&tape));
            }
            let record: Record =
                serde_json::from_value(round.record).map_err(|problem| bad(problem.to_string()))?;
            tape.read(record, None).map_err(|problem| bad(problem.to_string()))?;
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(gpus_of(&tape));
        }
    }
}

fn gpus_of(tape: &Tape) -> Option<Vec<PastGpu>> {
    let gpus = tape.cluster()?.gpus.iter().map(|gpu| PastGpu {
        id: gpu.id.to_string(),
        node: gpu.node.to_string(),
        model: gpu.model.clone(),
        mig: gpu.mig.is_some(),
    });
    Some(gpus.collect::<Vec<_>>()).filter(|gpus| !gpus.is_empty())
}

async fn gpus_now(session: &Session) -> Result<Vec<PastGpu>, Failure> {
    let gpus = session.client.gpus().await?;
    let gpu = |gpu: crate::types::Gpu| PastGpu {
        id: gpu.id,
        node: gpu.node,
        model: gpu.model,
        mig: gpu.mig == "on",
    };
    Ok(gpus.items.into_iter().map(gpu).collect())
}

/// Counts the changes of layouts that were made in the period.
async fn cuts(session: &Session, period: &Period, notes: &mut Vec<String>) -> Result<u64, Failure> {
    let changes = session.client.layouts(None, LAYOUTS_MAX).await?;
    let oldest = changes.items.last().map(|change| change.ordered_at);
    if changes.next_cursor.is_some() && oldest.is_some_and(|oldest| oldest > period.since) {
        notes.push(format!("only the newest {LAYOUTS_MAX} changes of layouts are counted"));
    }
    let done = |change: &&crate::types::LayoutChange| {
        change.state == "done" && period.has(change.ordered_at)
    };
    let number = changes.items.iter().filter(done).count();
    Ok(u64::try_from(number).unwrap_or(u64::MAX))
}
