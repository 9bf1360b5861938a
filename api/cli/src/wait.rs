//! `tessera wait`: until jobs have ended.

use clap::Args;

use super::array_wait::{exit_code, wait_for};
use super::failure::CommandFailure;
use super::jobs::{JobWord, flatten, parse_jobs};
use super::session::CommandSession;
use tessera_api_types::{JobPage, JobView};

#[derive(Args)]
pub struct Wait {
    /// Jobs such as 42 (for an array: all its tasks), 42_7 or 42_[1-5]
    #[arg(required = true, value_name = "JOB", value_parser = parse_jobs)]
    jobs: Vec<JobWord>,
}

impl Wait {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let ended = wait_for(session, &flatten(&self.jobs)).await?;
        let code = worst(&ended);
        session.print(&JobPage { items: ended, next_cursor: None }, |page| {
            page.items.iter().map(describe_end).collect()
        })?;
        Ok(code)
    }
}

/// Returns the highest code of all jobs, as Slurm does for arrays. Of a gang, only members that
/// ended by themselves count, since the failure of one ends the others by a signal.
pub fn worst(jobs: &[JobView]) -> u8 {
    let ended_itself = |job: &&JobView| {
        job.gang.is_none() || job.exit_code.as_deref().is_some_and(|code| code.ends_with(":0"))
    };
    let own = jobs.iter().filter(ended_itself).map(exit_code).max().filter(|code| *code > 0);
    own.or_else(|| jobs.iter().map(exit_code).max()).unwrap_or(0)
}

fn describe_end(job: &JobView) -> String {
    let code = job.exit_code.as_deref().map(|code| format!(", exit code {code}"));
    let why = job.reason_text.as_deref().map(|text| format!(": {text}"));
    let (code, why) = (code.unwrap_or_default(), why.unwrap_or_default());
    format!("{} {}{code}{why}\n", job.name_id, job.state)
}
