//! Carries a plan out: submits at the planned times, then waits until every job has ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use time::OffsetDateTime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::plan::{PlannedJob, ReplayPlan};
use super::report::ReplayReport;
use crate::failure::CommandFailure;
use crate::session::CommandSession;
use tessera_api_types::{JobFilter, JobView, SubmitRequest};
use tessera_client::{ApiClient, ClientError, SubmitKey};

/// How often the running jobs are counted; each count reads one or two pages of a listing.
const COUNT_EVERY: Duration = Duration::from_secs(2);
/// How often a line is written where no progress bar can be drawn.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// More jobs than a controller lists in reasonable time; a trace has far fewer.
const LISTED_MAX: usize = 10_000_000;

/// How one submit ended.
struct SubmitOutcome {
    late: Duration,
    result: Result<u64, ClientError>,
}

/// Submits the plan's jobs and waits until all accepted ones have ended.
///
/// # Errors
///
/// [`CommandFailure::ApiClient`] if the controller stays unreachable. A refused job is counted, not
/// an error.
#[expect(clippy::disallowed_methods, reason = "measures the time that the user waits")]
pub async fn run(
    session: &CommandSession,
    client: &ApiClient,
    plan: ReplayPlan,
    concurrency: usize,
) -> Result<ReplayReport, CommandFailure> {
    let started = Instant::now();
    let mut replay = RunningReplay {
        client: client.clone(),
        progress: ReplayProgress::new(session, plan.jobs.len()),
        accepted: BTreeSet::new(),
        report: ReplayReport {
            planned: plan.jobs.len() as u64,
            notes: plan.notes.clone(),
            ..ReplayReport::default()
        },
    };
    tokio::select! {
        done = replay.carry_out(plan, concurrency) => done?,
        _ = tokio::signal::ctrl_c() => replay.report.interrupted = true,
    }
    if replay.report.interrupted {
        // Only a short wait, since the user requested to stop.
        let count = tokio::time::timeout(Duration::from_secs(5), replay.count());
        if let Ok(Err(failure)) = count.await {
            session.remark(&format!("the jobs' states can't be read: {failure}"));
        }
    }
    replay.progress.finish();
    replay.report.seconds = started.elapsed().as_secs_f64();
    Ok(replay.report)
}

struct RunningReplay {
    client: ApiClient,
    progress: ReplayProgress,
    accepted: BTreeSet<u64>,
    report: ReplayReport,
}

impl RunningReplay {
    async fn carry_out(
        &mut self,
        plan: ReplayPlan,
        concurrency: usize,
    ) -> Result<(), CommandFailure> {
        self.submit_all(plan, concurrency).await?;
        while self.active().await? > 0 {
            tokio::time::sleep(COUNT_EVERY).await;
        }
        self.count().await
    }

    #[expect(clippy::disallowed_methods, reason = "measures the time that the user waits")]
    async fn submit_all(
        &mut self,
        plan: ReplayPlan,
        concurrency: usize,
    ) -> Result<(), CommandFailure> {
        let run = SubmitKey::new_unique();
        let started = Instant::now();
        let slots = Arc::new(Semaphore::new(concurrency));
        let mut under_way = JoinSet::new();
        for (index, job) in plan.jobs.into_iter().enumerate() {
            let moment = tokio::time::Instant::from_std(started + job.at);
            // Answers are received while the next submit is awaited, so that none accumulate.
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(moment) => break,
                    Some(answer) = under_way.join_next() => self.take(answer.map_err(broken)?)?,
                }
            }
            let slot = Arc::clone(&slots).acquire_owned().await.map_err(|_| closed())?;
            let client = self.client.clone();
            let key = SubmitKey::named(format!("{}-{index}", run.as_str()));
            under_way.spawn(async move {
                let answer = submit(&client, job, &key, started).await;
                drop(slot);
                answer
            });
        }
        while let Some(answer) = under_way.join_next().await {
            self.take(answer.map_err(broken)?)?;
        }
        Ok(())
    }

    fn take(&mut self, answer: SubmitOutcome) -> Result<(), CommandFailure> {
        let late = answer.late.as_secs_f64();
        self.report.latest_submit_seconds = self.report.latest_submit_seconds.max(late);
        match answer.result {
            Ok(job) => {
                self.accepted.insert(job);
                self.report.accepted += 1;
            }
            Err(refused) if refused.status().is_some() => {
                self.report.refused += 1;
                *self.report.refusals.entry(refused.to_string()).or_default() += 1;
            }
            Err(broken) => return Err(broken.into()),
        }
        self.progress.submitted(self.report.accepted + self.report.refused);
        Ok(())
    }

    /// Counts the accepted jobs that have not ended.
    async fn active(&mut self) -> Result<usize, CommandFailure> {
        let filter = JobFilter { state: Some("active".into()), ..JobFilter::default() };
        let page = self.client.all_jobs(&filter, LISTED_MAX).await?;
        let active = page.items.iter().filter(|job| self.accepted.contains(&job.id)).count();
        self.progress.waiting(self.accepted.len(), active);
        Ok(active)
    }

    /// Counts every accepted job by its state.
    async fn count(&mut self) -> Result<(), CommandFailure> {
        self.report.by_state.clear();
        let Some(oldest) = self.accepted.first().copied() else { return Ok(()) };
        for job in self.listed_back_to(oldest).await? {
            if self.accepted.contains(&job.id) {
                *self.report.by_state.entry(job.state).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Lists all jobs from the newest back to `oldest`.
    async fn listed_back_to(&self, oldest: u64) -> Result<Vec<JobView>, ClientError> {
        let mut filter = JobFilter { limit: Some(1_000), ..JobFilter::default() };
        let mut jobs: Vec<JobView> = Vec::new();
        loop {
            let page = self.client.jobs(&filter).await?;
            jobs.extend(page.items);
            filter.cursor = page.next_cursor;
            if filter.cursor.is_none() || jobs.last().is_some_and(|job| job.id < oldest) {
                return Ok(jobs);
            }
        }
    }
}

async fn submit(
    client: &ApiClient,
    job: PlannedJob,
    key: &SubmitKey,
    started: Instant,
) -> SubmitOutcome {
    let late = started.elapsed().saturating_sub(job.at);
    #[expect(clippy::disallowed_methods, reason = "deadlines are stated on the wall clock")]
    let request = SubmitRequest {
        deadline: job.due_after.map(|after| OffsetDateTime::now_utc() + after),
        ..job.request
    };
    let result = client.submit(&request, key).await.map(|submitted| submitted.job_id);
    SubmitOutcome { late, result }
}

fn broken(bug: tokio::task::JoinError) -> CommandFailure {
    CommandFailure::refused(format!("a submit was not carried out: {bug}"))
}

fn closed() -> CommandFailure {
    CommandFailure::refused("no more submits are possible")
}

/// A progress bar on a terminal, otherwise an occasional line.
struct ReplayProgress {
    bar: ProgressBar,
    lines: bool,
    reported: Instant,
    planned: usize,
}

impl ReplayProgress {
    #[expect(clippy::disallowed_methods, reason = "measures the time that the user waits")]
    fn new(session: &CommandSession, planned: usize) -> Self {
        let length = planned as u64;
        let lines = !session.screen.terminal;
        let bar = if lines { ProgressBar::hidden() } else { ProgressBar::new(length) };
        let style = ProgressStyle::with_template("{msg:>10} {bar:40} {pos}/{len} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message("submitted");
        Self { bar, lines, reported: Instant::now(), planned }
    }

    fn submitted(&mut self, count: u64) {
        self.bar.set_position(count);
        self.report(|planned| format!("{count} of {planned} submitted"));
    }

    fn waiting(&mut self, accepted: usize, active: usize) {
        self.bar.set_message("over");
        self.bar.set_length(accepted as u64);
        self.bar.set_position((accepted - active) as u64);
        self.report(|_| format!("{} of {accepted} ended", accepted - active));
    }

    #[expect(clippy::disallowed_methods, reason = "measures the time that the user waits")]
    fn report(&mut self, line: impl FnOnce(usize) -> String) {
        if self.lines && self.reported.elapsed() >= REPORT_EVERY {
            self.reported = Instant::now();
            eprintln!("tessera: {}", line(self.planned));
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
