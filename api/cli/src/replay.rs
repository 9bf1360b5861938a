//! `tessera replay`: submits a recorded trace at its recorded times, as real jobs.
//!
//! Each row becomes a job with its recorded duration. Arrival times and durations are divided by
//! one scale, so that months of a trace run in minutes with the same mixture and the same peaks.

mod plan;
pub mod report;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tessera_model::Bytes;
use tessera_simulator::cluster::workload;

use self::plan::{ReplayPlan, ReplayTerms};
use self::report::ReplayReport;
use super::failure::CommandFailure;
use super::session::CommandSession;
use tessera_client::RetryPatience;

/// Submits a trace with its arrival times, scaled; waits until every job has ended, and counts
/// their final states.
///
/// The file has the format of `tessera simulate` (see `docs/policies.md`): CSV with a line of
/// headings, or JSON lines if its name ends in .jsonl. A job runs for its `duration_s`, or else for
/// the entry of its `times_s` that belongs to its slice; on a GPU without slices, for the smallest
/// entry. It requests its `memory_mib`, or `gpu_fraction` of a GPU's memory, or no amount. `class`,
/// `priority`, gangs (`nodes`, `gpus_per_node`) and with --users `user` are submitted unchanged;
/// `deadline_s` counts from the job's submit. Other fields are for simulators only.
#[derive(Args)]
pub struct Replay {
    /// The trace
    #[arg(value_name = "FILE.csv|FILE.jsonl")]
    file: PathBuf,
    /// Number of recorded seconds in one real second
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = parse_scale, allow_hyphen_values = true)]
    time_scale: f64,
    /// Submit only the first N jobs
    #[arg(long, value_name = "N", value_parser = parse_job_count, allow_hyphen_values = true)]
    limit: Option<usize>,
    /// Maximum duration of a job in real seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_hyphen_values = true)]
    max_duration: Option<Duration>,
    /// Program to run, with the job's duration in seconds as its only argument
    #[arg(long, value_name = "PROGRAM", default_value = "sleep")]
    program: String,
    /// GPU memory that the trace's fractions refer to
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    gpu_memory: Bytes,
    /// Submit each job as the user that the trace names; by default all jobs are yours
    #[arg(long)]
    users: bool,
    /// Maximum number of concurrent submits
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = parse_concurrency)]
    concurrency: u16,
}

impl Replay {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let text = std::fs::read_to_string(&self.file)
            .map_err(|bad| CommandFailure::refused(format!("{}: {bad}", self.file.display())))?;
        let file = self.file.display().to_string();
        let mut rows = workload::file::rows(&file, &text)
            .map_err(|bad| CommandFailure::refused(format!("{file}, {bad}")))?;
        // Stable: jobs that came in the same second stay in the trace's order.
        rows.sort_by(|(one, _), (other, _)| one.submit_s.total_cmp(&other.submit_s));
        rows.truncate(self.limit.unwrap_or(usize::MAX));
        let terms = ReplayTerms {
            time_scale: self.time_scale,
            longest: self.max_duration,
            program: self.program,
            gpu_memory: self.gpu_memory,
            // The controller's view of the caller: the user's name on this machine proves nothing.
            user: session.client.who_am_i().await?.user,
            users: self.users,
        };
        let plan = ReplayPlan::new(rows, &terms);
        let client = session.client.with_patience(RetryPatience::LONG);
        let report = run::run(session, &client, plan, usize::from(self.concurrency)).await?;
        session.print(&report, ReplayReport::describe)?;
        Ok(report.code())
    }
}

/// A value of an option of `replay` that can't be used; clap names the option and the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum BadReplayOption {
    #[error("write a whole number from 1, such as 100")]
    JobCount,
    #[error("write a whole number from 1 to 256")]
    Concurrency,
    #[error("write a number from 0.001 to 1000000000")]
    Scale,
    #[error("write seconds above 0, such as 1.5")]
    Seconds,
}

fn parse_job_count(text: &str) -> Result<usize, BadReplayOption> {
    text.parse().ok().filter(|number| *number > 0).ok_or(BadReplayOption::JobCount)
}

fn parse_concurrency(text: &str) -> Result<u16, BadReplayOption> {
    let number = text.parse().ok().filter(|number| (1..=256).contains(number));
    number.ok_or(BadReplayOption::Concurrency)
}

fn parse_scale(text: &str) -> Result<f64, BadReplayOption> {
    let scale = text.parse().ok().filter(|scale| (0.001..=1e9).contains(scale));
    scale.ok_or(BadReplayOption::Scale)
}

fn parse_seconds(text: &str) -> Result<Duration, BadReplayOption> {
    let span = text.parse().ok().and_then(|secs| Duration::try_from_secs_f64(secs).ok());
    span.filter(|span| !span.is_zero()).ok_or(BadReplayOption::Seconds)
}
