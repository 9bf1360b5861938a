//! Dependencies between jobs, like `--dependency` of batch schedulers.
//!
//! [`DependencyRequest`] is what a user writes. [`Dependency`] is the same with the jobs looked up: it is stored
//! with the job, and [`Dependency::verdict`] decides from the facts about those jobs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{BadId, JobId, JobRef};
use crate::life::words;
use crate::spec::BadField;
use crate::units::Millis;

/// Maximum number of jobs that one job may wait for: its specification stays small, and each one
/// needs a look-up.
pub const DEPENDENCY_JOBS_MAX: usize = 1_000;
/// Maximum number of minutes between a start and a dependent job, a year: longer times are typing
/// errors.
const DELAY_MINUTES_MAX: u64 = 366 * 24 * 60;

words! {
    /// The kinds of conditions.
    DependencyKind {
        /// The other jobs have started or were cancelled.
        After = "after",
        /// The other jobs have ended.
        AfterAny = "afterany",
        /// The other jobs have succeeded.
        AfterOk = "afterok",
        /// The other jobs have ended, and one of them did not succeed.
        AfterNotOk = "afternotok",
        /// The task of the other array with the same index has succeeded.
        AfterCorr = "aftercorr",
        /// All earlier jobs of the same name and user have ended.
        Singleton = "singleton",
    }
}

/// The text of `--dependency`, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencyRequest {
    /// Whether one condition is enough (`?` between them).
    pub any: bool,
    /// All or one of these have to be satisfied.
    pub conditions: Vec<RequestedCondition>,
}

/// One condition that a user wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedCondition {
    /// What has to happen to the other job.
    pub kind: DependencyKind,
    /// The job, unless it is `singleton`.
    pub job: Option<JobRef>,
    /// How many minutes have to pass since the start, with `after`.
    pub minutes: u64,
}

/// A dependency with the jobs looked up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// Whether one condition is enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
    /// Whether the job is cancelled once the conditions can never be met.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_if_never: bool,
    /// All or one of these have to be satisfied.
    pub conditions: Vec<Condition>,
}

/// One condition of a dependency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// What has to happen to the other job.
    pub kind: DependencyKind,
    /// The jobs, unless it is `singleton`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<JobRange>,
    /// How the user named them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// How long after the start, with `after`.
    #[serde(default, skip_serializing_if = "Millis::is_zero")]
    pub delay: Millis,
    /// With `aftercorr`: the place in the other array that the first task of this one corresponds to.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shift: i64,
    /// With `aftercorr`: how many jobs a task of the other array is.
    #[serde(default = "one_job", skip_serializing_if = "is_one")]
    pub members: u32,
}

/// Jobs with consecutive numbers: one job, one task, or all tasks of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobRange {
    /// The first one.
    pub first: JobId,
    /// The number.
    pub jobs: u32,
}

/// A query about jobs that decides a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DependencyQuestion {
    /// How jobs ended.
    Ends(JobRange),
    /// When jobs started.
    Starts(JobRange),
    /// Which earlier job of the same name and user as this one has not ended.
    Earlier(JobId),
}

/// The answer to a [`DependencyQuestion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependencyFacts {
    /// The ends or starts of jobs.
    Ends {
        /// How many have not ended.
        unfinished: u32,
        /// How many ended without success.
        unsuccessful: u32,
    },
    /// The ends or starts of jobs.
    Starts {
        /// How many neither started nor ended.
        waiting: u32,
        /// When the last one started, or was cancelled before it did, in milliseconds since 1970.
        last: Millis,
    },
    /// The newest earlier job of the same name and user that has not ended.
    Earlier(Option<JobId>),
}

/// Whether a job's dependency allows its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependencyVerdict {
    /// It may start.
    Met,
    /// It may start from this time on, in milliseconds since 1970.
    MetAt(Millis),
    /// It has to wait.
    Unmet,
    /// It can never start.
    Never,
}

const fn is_zero(number: &i64) -> bool {
    *number == 0
}

const fn one_job() -> u32 {
    1
}

const fn is_one(number: &u32) -> bool {
    *number == 1
}

fn bad(problem: String, expected: &str) -> BadField {
    BadField::new("dependency", problem, expected)
}

/// The form of a dependency.
const FORM: &str = "conditions such as afterok:42, afterany:42:43_7, after:42+5 or singleton, separated by \
                    commas, or by question marks if one is enough";

impl FromStr for DependencyRequest {
    type Err = BadField;

    fn from_str(text: &str) -> Result<Self, BadField> {
        let any = text.contains('?');
        if any && text.contains(',') {
            return Err(bad("it has commas and question marks".into(), "one of them"));
        }
        let mut conditions = Vec::new();
        for part in text.split(if any { '?' } else { ',' }) {
            read_conditions(part.trim(), &mut conditions)?;
        }
        match conditions.len() {
            0 => Err(bad("it is empty".into(), FORM)),
            1..=DEPENDENCY_JOBS_MAX => Ok(Self { any, conditions }),
            many => {
                let most =
                    format!("at most {DEPENDENCY_JOBS_MAX}; name an array by its own number");
                Err(bad(format!("it names {many} jobs"), &most))
            }
        }
    }
}

/// Reads `afterok:12:13`.
fn read_conditions(part: &str, conditions: &mut Vec<RequestedCondition>) -> Result<(), BadField> {
    let (word, jobs) = part.split_once(':').map_or((part, None), |(word, jobs)| (word, Some(jobs)));
    let kind: DependencyKind = match word.to_ascii_lowercase().as_str() {
        other @ ("afterburstbuffer" | "expand") => {
            return Err(bad(format!("{other} is not supported"), FORM));
        }
        // In Slurm, a bare number is a job to wait for.
        number if jobs.is_none() && number.starts_with(|c: char| c.is_ascii_digit()) => {
            return read_jobs(DependencyKind::AfterAny, number, conditions);
        }
        other => other
            .parse()
            .map_err(|unknown: BadId| bad(format!("{other:?} is unknown"), unknown.expected))?,
    };
    match (kind, jobs) {
        (DependencyKind::Singleton, None) => {
            conditions.push(RequestedCondition { kind, job: None, minutes: 0 });
            Ok(())
        }
        (DependencyKind::Singleton, Some(_)) => {
            Err(bad("singleton names jobs".into(), "singleton without jobs"))
        }
        (_, None) => Err(bad(format!("{word} names no job"), FORM)),
        (_, Some(jobs)) => read_jobs(kind, jobs, conditions),
    }
}

fn read_jobs(
    kind: DependencyKind,
    jobs: &str,
    conditions: &mut Vec<RequestedCondition>,
) -> Result<(), BadField> {
    for job in jobs.split(':') {
        let (job, minutes) = match job.split_once('+') {
            None => (job, 0),
            Some((job, minutes)) if kind == DependencyKind::After => {
                let read = minutes.parse().ok().filter(|minutes| *minutes <= DELAY_MINUTES_MAX);
                let no_number = || bad(format!("{minutes:?} is no number of minutes"), FORM);
                (job, read.ok_or_else(no_number)?)
            }
            Some(_) => return Err(bad(format!("{kind} has minutes"), "minutes only with after")),
        };
        // All tasks of an array, which the array's own number also means.
        let plain = job.strip_suffix("_*").unwrap_or(job);
        let named = plain.parse().map_err(|_| bad(format!("{job:?} is no job"), FORM))?;
        conditions.push(RequestedCondition { kind, job: Some(named), minutes });
    }
    Ok(())
}

impl Dependency {
    /// Returns the jobs that it names.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.conditions.iter().filter_map(|condition| Some(condition.on?.first))
    }

    /// Decides whether a job may start. `facts` returns the known answers; `place` is the job's
    /// index in its array, from 0.
    pub fn verdict(
        &self,
        job: JobId,
        place: u32,
        facts: impl Fn(DependencyQuestion) -> Option<DependencyFacts>,
    ) -> DependencyVerdict {
        let verdicts = self.conditions.iter().map(|condition| {
            let Some(question) = condition.question(job, place) else {
                return DependencyVerdict::Met;
            };
            facts(question).map_or(DependencyVerdict::Unmet, |facts| condition.verdict(facts))
        });
        match self.any {
            true => verdicts.fold(DependencyVerdict::Never, DependencyVerdict::or),
            false => verdicts.fold(DependencyVerdict::Met, DependencyVerdict::and),
        }
    }

    /// Returns the queries that [`Dependency::verdict`] needs.
    pub fn questions(&self, job: JobId, place: u32) -> impl Iterator<Item = DependencyQuestion> {
        self.conditions.iter().filter_map(move |condition| condition.question(job, place))
    }
}

impl Condition {
    /// Returns the query; `None` if there is nothing to wait for.
    fn question(&self, job: JobId, place: u32) -> Option<DependencyQuestion> {
        let range = match (self.kind, self.on) {
            (DependencyKind::Singleton, _) | (_, None) => {
                return (self.kind == DependencyKind::Singleton)
                    .then_some(DependencyQuestion::Earlier(job));
            }
            (DependencyKind::After, Some(range)) => {
                return Some(DependencyQuestion::Starts(range));
            }
            // A task without a counterpart waits for nothing, as in Slurm.
            (DependencyKind::AfterCorr, Some(range)) => {
                range.task(i64::from(place) + self.shift, self.members)?
            }
            (_, Some(range)) => range,
        };
        Some(DependencyQuestion::Ends(range))
    }

    fn verdict(&self, facts: DependencyFacts) -> DependencyVerdict {
        use DependencyVerdict::{Met, MetAt, Never, Unmet};

        match (self.kind, facts) {
            (_, DependencyFacts::Starts { waiting: 1.., .. }) => Unmet,
            (_, DependencyFacts::Starts { .. }) if self.delay == Millis::ZERO => Met,
            (_, DependencyFacts::Starts { last, .. }) => MetAt(last.plus(self.delay)),
            (_, DependencyFacts::Earlier(earlier)) => earlier.map_or(Met, |_| Unmet),
            (
                DependencyKind::AfterOk | DependencyKind::AfterCorr,
                DependencyFacts::Ends { unsuccessful: 1.., .. },
            ) => Never,
            (_, DependencyFacts::Ends { unfinished: 1.., .. }) => Unmet,
            (DependencyKind::AfterNotOk, DependencyFacts::Ends { unsuccessful: 0, .. }) => Never,
            (_, DependencyFacts::Ends { .. }) => Met,
        }
    }
}

impl DependencyVerdict {
    /// Both have to be met.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::Unmet, _) | (_, Self::Unmet) => Self::Unmet,
            (Self::MetAt(one), Self::MetAt(two)) => Self::MetAt(one.max(two)),
            (Self::MetAt(at), Self::Met) | (Self::Met, Self::MetAt(at)) => Self::MetAt(at),
            (Self::Met, Self::Met) => Self::Met,
        }
    }

    /// One of them has to be met.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Met, _) | (_, Self::Met) => Self::Met,
            (Self::MetAt(one), Self::MetAt(two)) => Self::MetAt(one.min(two)),
            (Self::MetAt(at), _) | (_, Self::MetAt(at)) => Self::MetAt(at),
            (Self::Unmet, _) | (_, Self::Unmet) => Self::Unmet,
            (Self::Never, Self::Never) => Self::Never,
        }
    }
}

impl JobRange {
    /// Returns the jobs of one task by its place, if each task is `members` jobs.
    fn task(self, place: i64, members: u32) -> Option<Self> {
        let offset = u32::try_from(place).ok()?.checked_mul(members)?;
        let first = JobId::from_number(self.first.number().saturating_add(u64::from(offset)));
        (offset < self.jobs).then_some(Self { first, jobs: members })
    }

    /// Returns whether a job is among them.
    pub fn contains(self, job: JobId) -> bool {
        let behind = job.number().checked_sub(self.first.number());
        behind.is_some_and(|behind| behind < u64::from(self.jobs))
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, condition) in self.conditions.iter().enumerate() {
            if place > 0 {
                f.write_str(if self.any { "?" } else { "," })?;
            }
            write!(f, "{condition}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.word())?;
        if self.on.is_some() {
            write!(f, ":{}", self.name)?;
        }
        match self.delay.get() / 60_000 {
            0 => Ok(()),
            minutes => write!(f, "+{minutes}"),
        }
    }
}

#[cfg(test)]
mod tests;
