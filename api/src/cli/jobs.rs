//! Naming jobs on the command line, and holding, releasing and changing them.

use clap::{ArgGroup, Args};
use tessera_model::{JobId, JobRef};

use super::failure::Failure;
use super::session::Session;
use super::span::TimeLimit;
use crate::client::{ClientError, Verb};
use crate::types::{Job, JobPage, UpdateRequest};

/// Most jobs that one word such as `42_[1-500]` may stand for.
const EXPANSION_MAX: usize = 10_000;

/// One word that names jobs: `42`, `42_7` or `42_[1-5,8]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobWord(pub Vec<JobRef>);

/// Reads one word that names jobs.
///
/// # Errors
///
/// A sentence that says how to name a job.
pub fn job_word(text: &str) -> Result<JobWord, String> {
    let bad = || format!("{text:?} names no job; write 42, 42_7 or 42_[1-5]");
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
                return Err(format!("{text:?} names more than {EXPANSION_MAX} jobs"));
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
/// A sentence that says how to name a job.
pub fn one_job(text: &str) -> Result<JobRef, String> {
    text.parse().map_err(|_| format!("{text:?} names no job; write 42, or 42_7 for a task"))
}

#[derive(Args)]
pub struct Hold {
    /// Jobs such as 42, 42_7 or 42_[1-5]
    #[arg(required = true, value_name = "JOB", value_parser = job_word)]
    jobs: Vec<JobWord>,
}

#[derive(Args)]
pub struct Release {
    /// Jobs such as 42, 42_7 or 42_[1-5]
    #[arg(required = true, value_name = "JOB", value_parser = job_word)]
    jobs: Vec<JobWord>,
}

#[derive(Args)]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
pub struct Update {
    /// Jobs such as 42 (a whole array, if it is one), 42_7 or 42_[1-5]
    #[arg(required = true, value_name = "JOB", value_parser = job_word)]
    jobs: Vec<JobWord>,
    /// Percent of its slice's multiprocessors, for a job that shares it (--share mps); one that
    /// runs is started again through its --checkpoint signal, at no cost to its retries
    #[arg(long, value_name = "PERCENT", group = "change",
          value_parser = clap::value_parser!(u8).range(1..=100))]
    sm: Option<u8>,
    /// Rank in the queue: 0 (highest) to 9; one that runs has it when it waits again
    #[arg(short, long, value_name = "0-9", group = "change",
          value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// Longest run time from its start, as for submit (90, 1:30:00, 2-0), or `unlimited`; one that runs
    /// is held to it at once
    #[arg(short, long, visible_alias = "time", value_name = "TIME", group = "change")]
    time_limit: Option<TimeLimit>,
}

impl Update {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let change = UpdateRequest {
            sm_percent: self.sm,
            priority: self.priority,
            time_limit_secs: self.time_limit.map(|limit| limit.secs().unwrap_or(0)),
        };
        let update = |job| session.client.update(job, &change);
        on_all(session, flatten(&self.jobs), "update", update).await
    }
}

impl Hold {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        act_on_all(session, flatten(&self.jobs), Verb::Hold).await
    }
}

impl Release {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        act_on_all(session, flatten(&self.jobs), Verb::Release).await
    }
}

/// Returns all jobs that the words name.
pub fn flatten(words: &[JobWord]) -> Vec<JobRef> {
    words.iter().flat_map(|JobWord(jobs)| jobs.iter().copied()).collect()
}

/// Does the same to each job; one that can't be changed doesn't keep the others from it.
pub async fn act_on_all(session: &Session, jobs: Vec<JobRef>, verb: Verb) -> Result<u8, Failure> {
    on_all(session, jobs, verb.word(), |job| session.client.act(job, verb)).await
}

async fn on_all<F>(
    session: &Session,
    jobs: Vec<JobRef>,
    word: &str,
    act: impl Fn(JobRef) -> F,
) -> Result<u8, Failure>
where
    F: Future<Output = Result<Job, ClientError>>,
{
    let mut done: Vec<Job> = Vec::new();
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
    // Silence is consent, as with `scancel`; programs get what became of the jobs.
    if session.json {
        session.print(&JobPage { items: done, next_cursor: None }, |_| String::new())?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        job_word(text).unwrap().0.iter().map(JobRef::to_string).collect()
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
            assert!(job_word(text).is_err(), "{text:?}");
        }
        assert!(job_word("1_[0-4294967295]").unwrap_err().contains("more than"));
    }
}
