//! `tessera wait`: until jobs have ended.

use clap::Args;

use super::array_wait::{exit_code, wait_for};
use super::failure::Failure;
use super::jobs::{JobWord, flatten, job_word};
use super::session::Session;
use crate::types::{Job, JobPage};

#[derive(Args)]
pub struct Wait {
    /// Jobs such as 42 (a whole array, if it is one), 42_7 or 42_[1-5]
    #[arg(required = true, value_name = "JOB", value_parser = job_word)]
    jobs: Vec<JobWord>,
}

impl Wait {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let ended = wait_for(session, &flatten(&self.jobs)).await?;
        let code = worst(&ended);
        session.print(&JobPage { items: ended, next_cursor: None }, |page| {
            page.items.iter().map(told).collect()
        })?;
        Ok(code)
    }
}

/// Returns the highest code of all jobs, as Slurm does for arrays.
pub fn worst(jobs: &[Job]) -> u8 {
    jobs.iter().map(exit_code).max().unwrap_or(0)
}

fn told(job: &Job) -> String {
    let code = job.exit_code.as_deref().map(|code| format!(", exit code {code}"));
    let why = job.reason_text.as_deref().map(|text| format!(": {text}"));
    let (code, why) = (code.unwrap_or_default(), why.unwrap_or_default());
    format!("{} {}{code}{why}\n", job.name_id, job.state)
}
