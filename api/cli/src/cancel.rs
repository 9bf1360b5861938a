//! `tessera cancel`: cancels jobs by number, or all jobs of a user, in a state or with a name.

use clap::Args;
use tessera_model::JobRef;

use super::failure::CommandFailure;
use super::jobs::{JobWord, act_on_all, flatten, parse_jobs};
use super::queue::{StateList, parse_states};
use super::session::CommandSession;
use tessera_api_types::{JobFilter, JobView};
use tessera_client::JobVerb;

/// Maximum number of jobs that one command cancels by filter; a second run cancels the next ones.
const CANCEL_MAX: usize = 100_000;

#[derive(Args)]
pub struct Cancel {
    /// Jobs such as 42 (for an array: all its tasks), 42_7 or 42_[1-5]
    #[arg(value_name = "JOB", value_parser = parse_jobs)]
    jobs: Vec<JobWord>,
    /// Cancel all jobs of this user
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Cancel all jobs in these states, such as PD
    #[arg(short = 't', long, value_name = "STATES", value_parser = parse_states)]
    state: Option<StateList>,
    /// Cancel all jobs with this name
    #[arg(short, long, value_name = "NAME")]
    name: Option<String>,
}

impl Cancel {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let filtered = self.user.is_some() || self.state.is_some() || self.name.is_some();
        let jobs = match (self.jobs.is_empty(), filtered) {
            (false, false) => flatten(&self.jobs),
            (true, true) => self.matching(session).await?,
            (true, false) => {
                return Err(CommandFailure::usage(
                    "no job is named: write cancel 42, cancel -u USER, or cancel --state PD",
                ));
            }
            (false, true) => {
                return Err(CommandFailure::usage(
                    "jobs and filters can't be combined: give either jobs, or --user, --state and --name",
                ));
            }
        };
        act_on_all(session, jobs, JobVerb::Cancel).await
    }

    async fn matching(self, session: &CommandSession) -> Result<Vec<JobRef>, CommandFailure> {
        // A user's command addresses the user's own jobs; those of others would not be found.
        let mut user = self.user;
        if user.is_none()
            && let Ok(who) = session.client.who_am_i().await
            && who.role == "user"
        {
            user = Some(who.user);
        }
        let filter = JobFilter {
            state: Some(self.state.map_or_else(|| "active".to_owned(), |StateList(list)| list)),
            user,
            name: self.name,
            ..JobFilter::default()
        };
        let page = session.client.all_jobs(&filter, CANCEL_MAX).await?;
        let named = |job: &JobView| job.name_id.parse::<JobRef>().map_err(CommandFailure::refused);
        page.items.iter().map(named).collect()
    }
}
