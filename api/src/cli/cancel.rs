//! `tessera cancel`: jobs by name, or all of a user's, a state's or a name.

use clap::Args;
use tessera_model::JobRef;

use super::failure::Failure;
use super::jobs::{JobWord, act_on_all, flatten, job_word};
use super::queue::{StateList, states};
use super::session::Session;
use crate::client::Verb;
use crate::types::JobFilter;

/// Most jobs that one command cancels by filter; a second run takes the next ones.
const CANCEL_MAX: usize = 100_000;

#[derive(Args)]
pub struct Cancel {
    /// Jobs such as 42 (a whole array, if it is one), 42_7 or 42_[1-5]
    #[arg(value_name = "JOB", value_parser = job_word)]
    jobs: Vec<JobWord>,
    /// All jobs of this user
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// All jobs in these states, such as PD
    #[arg(short = 't', long, value_name = "STATES", value_parser = states)]
    state: Option<StateList>,
    /// All jobs of this name
    #[arg(short, long, value_name = "NAME")]
    name: Option<String>,
}

impl Cancel {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let filtered = self.user.is_some() || self.state.is_some() || self.name.is_some();
        let jobs = match (self.jobs.is_empty(), filtered) {
            (false, false) => flatten(&self.jobs),
            (true, true) => self.matching(session).await?,
            (true, false) => {
                return Err(Failure::Usage(
                    "say which jobs to cancel: cancel 42, cancel -u USER, cancel --state PD".into(),
                ));
            }
            (false, true) => {
                return Err(Failure::Usage(
                    "give either jobs, or --user, --state and --name, not both".into(),
                ));
            }
        };
        act_on_all(session, jobs, Verb::Cancel).await
    }

    async fn matching(self, session: &Session) -> Result<Vec<JobRef>, Failure> {
        let filter = JobFilter {
            state: Some(self.state.map_or_else(|| "active".to_owned(), |StateList(list)| list)),
            user: self.user,
            name: self.name,
            ..JobFilter::default()
        };
        let page = session.client.all_jobs(&filter, CANCEL_MAX).await?;
        let refused = |bad: tessera_model::ids::BadId| Failure::Refused(bad.to_string());
        page.items.iter().map(|job| job.name_id.parse().map_err(refused)).collect()
    }
}
