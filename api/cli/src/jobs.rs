//! Naming jobs on the command line, and holding, releasing and changing them.

use std::str::FromStr;

use clap::{ArgGroup, Args};
use tessera_model::{JobId, JobRef};

use super::clock_time::{BadClockTime, ClockTime};
use super::failure::CommandFailure;
use super::session::CommandSession;
use super::span::TimeLimit;
use tessera_api_types::{JobPage, JobView, UpdateRequest};
use tessera_client::{ClientError, JobVerb};

/// Maximum number of jobs that one argument such as `42_[1-500]` may name.
const EXPANSION_MAX: usize = 10_000;

/// One argument that names jobs: `42`, `42_7` or `42_[1-5,8]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobWord(pub Vec<JobRef>);

/// A text that does not name jobs as expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJobWord {
    /// It has none of the accepted forms.
    #[error("{text:?} is not a job; write 42, 42_7 or 42_[1-5]")]
    NoJobs {
        /// The given value.
        text: String,
    },
    /// It has none of the forms that name a single job.
    #[error("{text:?} is not a job; write 42, or 42_7 for a task")]
    NotOneJob {
        /// The given value.
        text: String,
    },
    /// It names too many at once.
    #[error("{text:?} names more than {EXPANSION_MAX} jobs")]
    TooManyJobs {
        /// The given value.
        text: String,
    },
}

/// Parses one argument that names jobs.
///
/// # Errors
///
/// [`BadJobWord`] states how to name jobs.
pub fn parse_jobs(text: &str) -> Result<JobWord, BadJobWord> {
    let bad = || BadJobWord::NoJobs { text: text.to_owned() };
    let Some((array, list)) = text.split_once("_[") else {
        return text.parse().map(|job| JobWord(vec![job])).map_err(|_| bad());
    };
    let array: JobId = array.parse().map_err(|_| bad())?;
    let list = list.strip_suffix(']').ok_or_else(bad)?;
    let mut jobs = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().map_err(|_| bad())?;
        let last: u32 = last.parse().map_err(|_| bad())?;
        for index in first..=last {
            if jobs.len() == EXPANSION_MAX {
                return Err(BadJobWord::TooManyJobs { text: text.to_owned() });
            }
            jobs.push(JobRef::Task { array, index });
        }
    }
    if jobs.is_empty() { Err(bad()) } else { Ok(JobWord(jobs)) }
}

/// Reads the name of a single job.
///
/// # Errors
///
/// [`BadJobWord`] states how to name a job.
pub fn parse_one_job(text: &str) -> Result<JobRef, BadJobWord> {
    text.parse().map_err(|_| BadJobWord::NotOneJob { text: text.to_owned() })
}

#[derive(Args)]
pub struct Hold {
    /// Jobs such as 42, 42_7 or 42_[1-5]
    #[arg(required = true, value_name = "JOB", value_parser = parse_jobs)]
    jobs: Vec<JobWord>,
}

#[derive(Args)]
pub struct Release {
    /// Jobs such as 42, 42_7 or 42_[1-5]
    #[arg(required = true, value_name = "JOB", value_parser = parse_jobs)]
    jobs: Vec<JobWord>,
}

#[derive(Args)]
pub struct Requeue {
    /// Running jobs such as 42 (for an array: all its tasks), 42_7 or 42_[1-5]
    #[arg(required = true, value_name = "JOB", value_parser = parse_jobs)]
    jobs: Vec<JobWord>,
}

#[derive(Args)]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
pub struct Update {
    /// Jobs such as 42 (for an array: all its tasks), 42_7 or 42_[1-5]
    #[arg(required = true, value_name = "JOB", value_parser = parse_jobs)]
    jobs: Vec<JobWord>,
    /// Percentage of its slice's multiprocessors, for a job that shares it (--share mps). A running
    /// job is restarted with its --checkpoint signal; this does not count as a retry
    #[arg(long, value_name = "PERCENT", group = "change",
          value_parser = clap::value_parser!(u8).range(1..=100))]
    sm: Option<u8>,
    /// Priority: 0 (highest) to 9; for a running job it takes effect if it is requeued
    #[arg(short, long, value_name = "0-9", group = "change",
          value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// Offset within its priority: 0 (first) to 2147483645
    #[arg(long, value_name = "N", group = "change", allow_negative_numbers = true)]
    nice: Option<i64>,
    /// Longest run time from its start, as for submit (90, 1:30:00, 2-0), or `unlimited`. It
    /// applies to a running job at once
    #[arg(short, long, visible_alias = "time", value_name = "TIME", group = "change")]
    time_limit: Option<TimeLimit>,
    /// Time by which the job has to be done, as for submit (18:00, 2027-01-31T18:00, now+2hours), or
    /// `none`. Placement plans for it at once
    #[arg(long, value_name = "TIME", group = "change")]
    deadline: Option<DeadlineWord>,
    /// Jobs that it waits for from now on, as for submit (afterok:42, afterany:42:43, singleton), or `none`. A job
    /// that has started takes none
    #[arg(short, long, value_name = "CONDITIONS", group = "change")]
    dependency: Option<String>,
    /// Name of the job
    #[arg(short = 'J', long, visible_alias = "job-name", value_name = "NAME", group = "change")]
    name: Option<String>,
    /// Comment that is stored with the job, or an empty one for none
    #[arg(long, value_name = "TEXT", group = "change")]
    comment: Option<String>,
    /// Time before which the job may not start, as for submit (18:00, now+2hours), or `now`. A job that has started
    /// takes none
    #[arg(long, value_name = "TIME", group = "change")]
    begin: Option<ClockTime>,
    /// What becomes of the job after its node was lost
    #[arg(long, value_name = "WHAT", group = "change", value_parser = ["requeue", "hold", "fail"])]
    on_lost: Option<String>,
    /// How many tasks of the array may run at a time; 0 for no limit
    #[arg(long, value_name = "N", group = "change")]
    array_limit: Option<u32>,
}

/// A deadline, or `none`.
#[derive(Clone, Copy, Debug)]
enum DeadlineWord {
    None,
    At(ClockTime),
}

impl FromStr for DeadlineWord {
    type Err = BadClockTime;

    fn from_str(word: &str) -> Result<Self, BadClockTime> {
        match word {
            "none" => Ok(Self::None),
            time => time.parse().map(Self::At),
        }
    }
}

impl Update {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let deadline = match self.deadline {
            Some(DeadlineWord::At(time)) => {
                let at = time.after_now();
                Some(at.map_err(|wrong| CommandFailure::refused(wrong.to_string()))?)
            }
            Some(DeadlineWord::None) | None => None,
        };
        let change = UpdateRequest {
            deadline,
            no_deadline: matches!(self.deadline, Some(DeadlineWord::None)),
            sm_percent: self.sm,
            priority: self.priority,
            nice: self.nice,
            time_limit_secs: self.time_limit.map(|limit| limit.secs().unwrap_or(0)),
            dependency: self.dependency.map(|word| match word.as_str() {
                "none" => String::new(),
                _ => word,
            }),
            name: self.name,
            comment: self.comment,
            begin: self
                .begin
                .map(ClockTime::after_now)
                .transpose()
                .map_err(|wrong| CommandFailure::refused(wrong.to_string()))?,
            on_lost: self.on_lost,
            array_limit: self.array_limit,
        };
        let update = |job| session.client.update(job, &change);
        on_all(session, flatten(&self.jobs), "update", update).await
    }
}

impl Hold {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        act_on_all(session, flatten(&self.jobs), JobVerb::Hold).await
    }
}

impl Release {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        act_on_all(session, flatten(&self.jobs), JobVerb::Release).await
    }
}

impl Requeue {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        act_on_all(session, flatten(&self.jobs), JobVerb::Requeue).await
    }
}

/// Returns all jobs that the words name.
pub fn flatten(words: &[JobWord]) -> Vec<JobRef> {
    words.iter().flat_map(|JobWord(jobs)| jobs.iter().copied()).collect()
}

/// Applies a verb to each job; an error of one job does not stop the others.
pub async fn act_on_all(
    session: &CommandSession,
    jobs: Vec<JobRef>,
    verb: JobVerb,
) -> Result<u8, CommandFailure> {
    on_all(session, jobs, verb.word(), |job| session.client.act(job, verb)).await
}

async fn on_all<F>(
    session: &CommandSession,
    jobs: Vec<JobRef>,
    word: &str,
    act: impl Fn(JobRef) -> F,
) -> Result<u8, CommandFailure>
where
    F: Future<Output = Result<JobView, ClientError>>,
{
    let mut done: Vec<JobView> = Vec::new();
    let mut code = 0;
    for job in jobs {
        match act(job).await {
            Ok(job) => done.push(job),
            Err(refused) if refused.status().is_some() => {
                session.remark(&format!("{word} {job}: {refused}"));
                code = 1;
            }
            Err(broken) => return Err(broken.into()),
        }
    }
    // Success prints nothing, as with `scancel`; programs get the jobs' new state.
    if session.json {
        session.print(&JobPage { items: done, next_cursor: None }, |_| String::new())?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        parse_jobs(text).unwrap().0.iter().map(JobRef::to_string).collect()
    }

    #[test]
    fn jobs_tasks_and_ranges_of_tasks_are_named() {
        assert_eq!(shown("42"), ["42"]);
        assert_eq!(shown("42_7"), ["42_7"]);
        assert_eq!(shown("42_[1-3,8]"), ["42_1", "42_2", "42_3", "42_8"]);
    }

    #[test]
    fn what_names_no_job_is_refused() {
        for text in ["", "x", "0", "42_", "42_[", "42_[]", "42_[3-1]", "42_[1-", "42_[a]"] {
            assert!(parse_jobs(text).is_err(), "{text:?}");
        }
        let refused = parse_jobs("1_[0-4294967295]").unwrap_err().to_string();
        assert!(refused.contains("more than 10000"), "{refused}");
    }
}
