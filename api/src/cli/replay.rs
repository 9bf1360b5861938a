//! `tessera replay`: submits a recorded trace at its own pace, as real jobs.
//!
//! Each row becomes a job that lasts its recorded time, both times divided by one scale, so
//! that months of a cluster's life run in minutes with the same mixture and the same rushes.

mod plan;
pub mod report;
mod run;

use std::num::ParseFloatError;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tessera_model::Bytes;
use tessera_sim::cluster::workload;

use self::plan::{Plan, Terms};
use self::report::Report;
use super::failure::Failure;
use super::session::Session;
use crate::client::Patience;

/// Submits a trace with its real arrival times, scaled, waits until every job has ended, and
/// counts what became of them.
///
/// The file is one that `tessera simulate` takes, too (`docs/policies.md` describes the format):
/// CSV with a line of headings, or JSON lines if its name ends in .jsonl. A job lasts its
/// `duration_s`, or else what its `times_s` say of the slice that it gets (the least of them on a
/// GPU without slices); it asks for its `memory_mib`, or for `gpu_fraction` of a GPU's memory, or
/// says nothing of memory. `class`, `priority` and gangs (`nodes`, `gpus_per_node`) are submitted as
/// they are, and with --users `user`. What else the format has only a simulator can use: of
/// `deadline_s` the report says so, since controllers keep no deadlines.
#[derive(Args)]
pub struct Replay {
    /// The trace
    #[arg(value_name = "FILE.csv|FILE.jsonl")]
    file: PathBuf,
    /// How many recorded seconds pass in one real second
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = scale, allow_hyphen_values = true)]
    time_scale: f64,
    /// Submit only the first N jobs
    #[arg(long, value_name = "N", value_parser = jobs, allow_hyphen_values = true)]
    limit: Option<usize>,
    /// Let no job last longer than so many real seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true)]
    max_duration: Option<Duration>,
    /// Program that is given the job's seconds as its one argument
    #[arg(long, value_name = "PROGRAM", default_value = "sleep")]
    program: String,
    /// Memory of the GPU that the trace's fractions count from
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    gpu_memory: Bytes,
    /// Submit each job as the user that the trace names, if it names one; else all are yours
    #[arg(long)]
    users: bool,
    /// How many submits may be under way at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = submits)]
    concurrency: u16,
}

impl Replay {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let text = std::fs::read_to_string(&self.file)
            .map_err(|bad| Failure::Refused(format!("{}: {bad}", self.file.display())))?;
        let file = self.file.display().to_string();
        let mut rows = workload::file::rows(&file, &text)
            .map_err(|bad| Failure::Refused(format!("{file}, {bad}")))?;
        // Stable: jobs that came in the same second stay in the trace's order.
        rows.sort_by(|(one, _), (other, _)| one.submit_s.total_cmp(&other.submit_s));
        rows.truncate(self.limit.unwrap_or(usize::MAX));
        let terms = Terms {
            time_scale: self.time_scale,
            longest: self.max_duration,
            program: self.program,
            gpu_memory: self.gpu_memory,
            user: super::submit::user_name(&std::env::vars().collect()),
            users: self.users,
        };
        let plan = Plan::of(rows, &terms);
        let client = session.client.with_patience(Patience::LONG);
        let report = run::run(session, &client, plan, usize::from(self.concurrency)).await?;
        session.print(&report, Report::told)?;
        Ok(report.code())
    }
}

fn jobs(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "write a whole number from 1, such as 100".to_owned())
}

fn submits(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=256).contains(number));
    number.ok_or_else(|| "write a whole number from 1 to 256".to_owned())
}

fn scale(text: &str) -> Result<f64, String> {
    let bad = "write a number from 0.001 to 1000000000";
    let scale: f64 = text.parse().map_err(|_: ParseFloatError| bad.to_owned())?;
    if (0.001..=1e9).contains(&scale) { Ok(scale) } else { Err(bad.to_owned()) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let bad = "write seconds above 0, such as 1.5";
    let secs: f64 = text.parse().map_err(|_: ParseFloatError| bad.to_owned())?;
    Duration::try_from_secs_f64(secs)
        .ok()
        .filter(|span| !span.is_zero())
        .ok_or_else(|| bad.to_owned())
}
