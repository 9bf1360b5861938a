//! What is known about the jobs that others depend on.
//!
//! The store knows how jobs ended, also those that ended long ago. So each condition is a query to
//! the store, which the commit of a round answers. It is repeated whenever a round changes one of
//! the jobs.

use crate::round::JobWrites;
use std::collections::{BTreeMap, BTreeSet};
use tessera_model::JobId;
use tessera_model::dependency::{
    Dependency, DependencyFacts, DependencyQuestion, DependencyVerdict, JobRange,
};
use tessera_model::spec::ARRAY_TASKS_MAX;

/// Maximum number of queries that one commit answers. Chosen: they take the database a few
/// milliseconds, and the rest follows in the next rounds.
const QUESTIONS_MAX: usize = 500;

/// The queries of waiting jobs, with the known answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct DependencyTable {
    /// The queries of each waiting job.
    of_job: BTreeMap<JobId, Vec<DependencyQuestion>>,
    /// The queries with the jobs that they are about, as far as these are known, and the waiting
    /// jobs.
    watched: BTreeMap<DependencyQuestion, KnownFacts>,
    /// The ranges that have several jobs.
    arrays: BTreeSet<JobRange>,
    /// The jobs that wait for a job of the same name.
    same_name: BTreeMap<JobId, BTreeSet<JobId>>,
    /// The queries for the store.
    open: BTreeSet<DependencyQuestion>,
    /// The waiting jobs with new answers.
    changed: BTreeSet<JobId>,
}

/// A query with its answer.
#[derive(Clone, Debug, Default)]
struct KnownFacts {
    known: Option<DependencyFacts>,
    by: BTreeSet<JobId>,
}

impl DependencyTable {
    /// Adds a waiting job.
    pub(crate) fn add(&mut self, job: JobId, place: u32, dependency: &Dependency) {
        let questions: Vec<_> = dependency.questions(job, place).collect();
        for question in &questions {
            if let Some(range) = range_of(*question).filter(|range| range.jobs > 1) {
                self.arrays.insert(range);
            }
            let watched = self.watched.entry(*question).or_default();
            watched.by.insert(job);
            if watched.known.is_none() {
                self.open.insert(*question);
            }
        }
        self.changed.insert(job);
        self.of_job.insert(job, questions);
    }

    /// Removes a job that no longer waits.
    pub(crate) fn remove(&mut self, job: JobId) {
        for question in self.of_job.remove(&job).unwrap_or_default() {
            let Some(watched) = self.watched.get_mut(&question) else { continue };
            watched.by.remove(&job);
            if !watched.by.is_empty() {
                continue;
            }
            if let Some(DependencyFacts::Earlier(Some(earlier))) = watched.known {
                self.forget_same_name(earlier, job);
            }
            self.watched.remove(&question);
            self.open.remove(&question);
            if let Some(range) = range_of(question)
                && !questions_about(range).iter().any(|other| self.watched.contains_key(other))
            {
                self.arrays.remove(&range);
            }
        }
        self.changed.remove(&job);
    }

    fn forget_same_name(&mut self, earlier: JobId, job: JobId) {
        if let Some(by) = self.same_name.get_mut(&earlier) {
            by.remove(&job);
            if by.is_empty() {
                self.same_name.remove(&earlier);
            }
        }
    }

    /// Removes everything, since the state is read again from the store.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Records the store's answers.
    pub(crate) fn learn(&mut self, known: Vec<(DependencyQuestion, DependencyFacts)>) {
        for (question, facts) in known {
            let Some(watched) = self.watched.get_mut(&question) else { continue };
            let before = watched.known.replace(facts);
            self.changed.extend(&watched.by);
            if let DependencyQuestion::Earlier(job) = question {
                if let Some(DependencyFacts::Earlier(Some(earlier))) = before {
                    self.forget_same_name(earlier, job);
                }
                if let DependencyFacts::Earlier(Some(earlier)) = facts {
                    self.same_name.entry(earlier).or_default().insert(job);
                }
            }
        }
    }

    /// Repeats the queries about all jobs that a round changes.
    pub(crate) fn note_changes(&mut self, jobs: &JobWrites) {
        if self.watched.is_empty() {
            return;
        }
        let ended = jobs.ended.iter().filter(|end| end.to.is_final()).map(|end| end.job);
        let started = jobs.started.iter().map(|start| start.job);
        let commanded = jobs.commands.iter().filter(|command| command.change.to().is_some());
        for job in ended.chain(started).chain(commanded.map(|command| command.job)) {
            self.reopen(job);
        }
    }

    fn reopen(&mut self, job: JobId) {
        let alone = JobRange { first: job, jobs: 1 };
        // An array has no more tasks, so that an earlier one can't contain the job.
        let earliest = job.number().saturating_sub(u64::from(ARRAY_TASKS_MAX));
        let from = JobRange { first: JobId::from_number(earliest.max(1)), jobs: 0 };
        let to = JobRange { first: job, jobs: u32::MAX };
        let arrays = self.arrays.range(from..=to).filter(|range| range.contains(job));
        for range in arrays.copied().chain([alone]) {
            let known = questions_about(range).into_iter().filter(|q| self.watched.contains_key(q));
            self.open.extend(known);
        }
        let same_name = self.same_name.get(&job).into_iter().flatten();
        self.open.extend(same_name.map(|waiting| DependencyQuestion::Earlier(*waiting)));
    }

    /// Takes the queries for the next commit.
    pub(crate) fn take_questions(&mut self) -> Vec<DependencyQuestion> {
        let taken: Vec<_> = self.open.iter().take(QUESTIONS_MAX).copied().collect();
        for question in &taken {
            self.open.remove(question);
        }
        taken
    }

    /// Takes the waiting jobs with new answers.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<JobId> {
        std::mem::take(&mut self.changed)
    }

    /// Decides whether a waiting job may start; `None` while the store has not answered.
    pub(crate) fn verdict(
        &self,
        job: JobId,
        place: u32,
        dependency: &Dependency,
    ) -> Option<DependencyVerdict> {
        self.is_known(job)
            .then(|| dependency.verdict(job, place, |question| self.watched.get(&question)?.known))
    }

    /// Returns whether the store has answered all queries of a job.
    pub(crate) fn is_known(&self, job: JobId) -> bool {
        let is_answered = |question: &DependencyQuestion| {
            self.watched.get(question).is_some_and(|w| w.known.is_some())
        };
        self.of_job.get(&job).is_some_and(|questions| questions.iter().all(is_answered))
    }

    /// Copies the known answers of some jobs.
    pub(crate) fn excerpt(&self, jobs: impl Iterator<Item = JobId>) -> Self {
        let mut copy = Self::default();
        for job in jobs {
            let Some(questions) = self.of_job.get(&job) else { continue };
            copy.of_job.insert(job, questions.clone());
            for question in questions {
                let known = self.watched.get(question).and_then(|watched| watched.known);
                copy.watched.insert(*question, KnownFacts { known, by: BTreeSet::new() });
            }
        }
        copy
    }
}

const fn range_of(question: DependencyQuestion) -> Option<JobRange> {
    match question {
        DependencyQuestion::Ends(range) | DependencyQuestion::Starts(range) => Some(range),
        DependencyQuestion::Earlier(_) => None,
    }
}

const fn questions_about(range: JobRange) -> [DependencyQuestion; 2] {
    [DependencyQuestion::Ends(range), DependencyQuestion::Starts(range)]
}
