//! `tessera replay`: submits a recorded trace at its own pace, as real jobs.
//!
//! Each row becomes a job that lasts its recorded time, both times divided by one scale, so
//! that months of a cluster's life run in minutes with the same mixture and the same rushes.

mod plan;
pub mod report;
mod run;
mod trace;

use std::num::ParseFloatError;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tessera_model::Bytes;

use self::plan::{Plan, Terms};
use self::report::Report;
use super::failure::Failure;
use super::session::Session;
use crate::client::Patience;

/// Submits a trace with its real arrival times, scaled, waits until every job has ended, and
/// counts what became of them.
///
/// The file is CSV with a line of headings. Needed columns: `job_id`, `submit_s` and
/// `duration_s` (seconds). Used if there: `gpu_fraction` (above 0, at most 1: the share of a
/// GPU's memory that the job asks for) and `class` (`online`; `offline` and `burstable` run as
/// offline). Other columns are passed over.
#[derive(Args)]
pub struct Replay {
    /// The trace
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// How many recorded seconds pass in one real second
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = scale)]
    time_scale: f64,
    /// Submit only the first N jobs
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Let no job last longer than so many real seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    max_duration: Option<Duration>,
    /// Program that is given the job's seconds as its one argument
    #[arg(long, value_name = "PROGRAM", default_value = "sleep")]
    program: String,
    /// Memory of the GPU that the trace's fractions count from
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    gpu_memory: Bytes,
    /// How many submits may be under way at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
}

impl Replay {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let text = std::fs::read_to_string(&self.file)
            .map_err(|bad| Failure::Refused(format!("{}: {bad}", self.file.display())))?;
        let file = self.file.display().to_string();
        let mut rows =
            trace::read(&file, &text).map_err(|bad| Failure::Refused(bad.to_string()))?;
        rows.truncate(self.limit.unwrap_or(usize::MAX));
        let terms = Terms {
            time_scale: self.time_scale,
            longest: self.max_duration,
            program: self.program,
            gpu_memory: self.gpu_memory,
            user: super::submit::user_name(&std::env::vars().collect()),
        };
        let plan = Plan::of(rows, &terms);
        let client = session.client.with_patience(Patience::LONG);
        let report = run::run(session, &client, plan, usize::from(self.concurrency)).await?;
        session.print(&report, Report::told)?;
        Ok(report.code())
    }
}

fn scale(text: &str) -> Result<f64, String> {
    let bad = "a number from 0.001 to 1000000000";
    let scale: f64 = text.parse().map_err(|_: ParseFloatError| bad.to_owned())?;
    if (0.001..=1e9).contains(&scale) { Ok(scale) } else { Err(bad.to_owned()) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let bad = "a positive number of seconds";
    let secs: f64 = text.parse().map_err(|_: ParseFloatError| bad.to_owned())?;
    Duration::try_from_secs_f64(secs)
        .ok()
        .filter(|span| !span.is_zero())
        .ok_or_else(|| bad.to_owned())
}
