//! Jobs that wait for a placement.

use super::dependencies::DependencyTable;
use crate::answers::WaitReasonRun;
use crate::memory::MemoryRequest;
use crate::predictions::TaskFacts;
use crate::rows::submitted::OwnMemory;
use crate::rows::transitions::WaitReasonRow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use tessera_model::number::clamped;
use tessera_model::sizing::SizeSource;
use tessera_model::spec::{GpuRequest, QueueRank};
use tessera_model::{DecisionId, GangMember, JobId, Millis};
use tessera_placement::{Explanation, QueueKey, QueuedJob, WaitReason};
use uuid::Uuid;

/// The waiting jobs in service order.
#[derive(Debug, Default)]
pub(crate) struct JobQueue {
    /// The jobs in the order of service.
    pub(crate) waiting: BTreeMap<QueueKey, WaitingJob>,
    /// The first job of each run of equal jobs: the others differ from it by their numbers only.
    pub(crate) run_heads: BTreeSet<QueueKey>,
    pub(crate) ranks: HashMap<JobId, QueueRank>,
    /// The jobs by user: a round considers a limited number of each user's jobs.
    pub(crate) user_lines: BTreeMap<Arc<str>, BTreeSet<QueueKey>>,
    /// The jobs that may have to wait for a time, for another task of their array, or for other jobs.
    pub(crate) gated: BTreeSet<QueueKey>,
    /// What is known about the jobs that others depend on.
    pub(crate) dependencies: DependencyTable,
    /// Jobs that users changed recently, and when: those may be announced only after that.
    pub(crate) recently_commanded: BTreeMap<JobId, Millis>,
}

/// A job in the queue.
#[derive(Clone, Debug)]
pub(crate) struct WaitingJob {
    pub(crate) job: QueuedJob,
    /// The array that it may be a task of.
    pub(crate) array: Option<JobId>,
    pub(crate) attempts: u32,
    pub(crate) reason: Option<WaitReason>,
    /// The reasons for which it waited since this leader knows it, each once, in the order of their first times.
    pub(crate) reasons: Vec<WaitReason>,
    pub(crate) facts: Arc<TaskFacts>,
    /// How much of it is checkpointed, in millionths.
    pub(crate) done: u32,
    /// Its user's request.
    pub(crate) declared: GpuRequest,
    /// What its own attempts showed about its memory.
    pub(crate) own: OwnMemory,
    /// The memory that it requests for another reason than its user's request.
    pub(crate) memory: Option<MemoryRequest>,
}

impl WaitingJob {
    /// Returns whether only its number distinguishes it from a job that was submitted no later.
    pub(crate) fn equals(&self, before: &Self) -> bool {
        let (job, other) = (&self.job, &before.job);
        job.gang.is_none()
            && other.gang.is_none()
            && other.submitted <= job.submitted
            && (self.done, self.own) == (before.done, before.own)
            && (job.queue_rank, job.online) == (other.queue_rank, other.online)
            && (&job.gpu, &job.user, &job.share) == (&other.gpu, &other.user, &other.share)
            && (&job.auto, &job.place) == (&other.auto, &other.place)
            && (Arc::ptr_eq(&self.facts, &before.facts) || self.facts == before.facts)
    }

    /// Returns the index of its task in its array, from 0.
    pub(crate) fn place_in_array(&self) -> u32 {
        let first = self.array.unwrap_or(self.job.id).number();
        let members = self.job.gang.map_or(1, |member| member.shape.members());
        clamped::<u32>(self.job.id.number().saturating_sub(first)) / members
    }

    /// Returns the source of its size.
    pub(crate) fn size_source(&self) -> SizeSource {
        match (&self.memory, &self.declared) {
            (Some(request), _) => request.source(),
            (None, GpuRequest::Unknown) => SizeSource::Unknown,
            (None, _) => SizeSource::Declared,
        }
    }
}

/// Equal jobs in succession.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EqualRun<'q> {
    pub(crate) first: &'q WaitingJob,
    pub(crate) length: usize,
    run: (Bound<QueueKey>, Bound<QueueKey>),
}

/// Maximum number of jobs ahead in the queue that are placed first when a start is predicted.
pub(crate) const AHEAD_MAX: usize = 256;

/// A waiting job's position in the service order.
#[derive(Clone, Debug)]
pub(crate) struct QueuePosition {
    pub(crate) job: JobId,
    /// The first jobs ahead of it, at most [`AHEAD_MAX`].
    pub(crate) ahead: Vec<JobId>,
    pub(crate) jobs_ahead: u64,
}

impl QueuePosition {
    pub(crate) fn of(job: JobId, before: &[JobId]) -> Self {
        Self {
            job,
            ahead: before.iter().copied().take(AHEAD_MAX).collect(),
            jobs_ahead: clamped(before.len()),
        }
    }
}

impl JobQueue {
    /// Returns the jobs ahead of a queue position.
    pub(crate) fn ahead<'c>(
        &'c self,
        line: &'c QueuePosition,
    ) -> impl Iterator<Item = &'c QueuedJob> {
        line.ahead.iter().filter_map(|job| Some(&self.queued(*job)?.job))
    }

    /// Adds a job.
    pub(crate) fn enqueue(&mut self, mut waiting: WaitingJob) {
        let key = waiting.job.key();
        self.ranks.insert(waiting.job.id, waiting.job.queue_rank);
        // One text in memory for all jobs of a user: a round compares the users of thousands of jobs.
        if let Some((known, _)) = self.user_lines.get_key_value(&waiting.job.user) {
            waiting.job.user = Arc::clone(known);
        }
        let user = Arc::clone(&waiting.job.user);
        self.user_lines.entry(user).or_default().insert(key);
        if waiting.facts.rules.has_gate() {
            self.gated.insert(key);
        }
        if let Some(dependency) = &waiting.facts.rules.dependency {
            self.dependencies.add(waiting.job.id, waiting.place_in_array(), dependency);
        }
        let before = self.waiting.range(..key).next_back();
        if before.is_none_or(|(_, before)| !waiting.equals(before)) {
            self.run_heads.insert(key);
        }
        if self.waiting.insert(key, waiting).is_some() {
            // It replaces one that may have been the first of a run.
            self.mark_head(key);
        }
        self.mark_head_after(key);
    }

    /// Returns the first `most` jobs as runs of equal ones. It passes over the queue once and compares keys only: jobs that
    /// all differ cost no look-up each.
    pub(crate) fn runs(&self, most: usize) -> impl Iterator<Item = EqualRun<'_>> {
        let mut jobs = self.waiting.iter().take(most).peekable();
        let mut heads = self.run_heads.iter();
        heads.next();
        std::iter::from_fn(move || {
            let (head, first) = jobs.next()?;
            let end = heads.next();
            let mut length = 1;
            while jobs.next_if(|(key, _)| end != Some(*key)).is_some() {
                length += 1;
            }
            let end = end.map_or(Bound::Unbounded, |next| Bound::Excluded(*next));
            Some(EqualRun { first, run: (Bound::Included(*head), end), length })
        })
    }

    /// Returns the first job of each run, without looking at the others.
    pub(crate) fn distinct(&self) -> impl Iterator<Item = &WaitingJob> {
        self.run_heads.iter().filter_map(|head| self.waiting.get(head))
    }

    /// Returns the first jobs of a run.
    pub(crate) fn first_of<'c>(
        &'c self,
        run: &EqualRun<'c>,
        most: usize,
    ) -> impl Iterator<Item = &'c WaitingJob> {
        self.waiting.range(run.run).take(most.min(run.length)).map(|(_, waiting)| waiting)
    }

    /// Finds the runs of equal jobs again, after requests of waiting jobs changed.
    pub(crate) fn find_runs(&mut self) {
        self.run_heads = self.all_heads();
    }

    /// Returns the first job of each run, by reading the whole queue.
    fn all_heads(&self) -> BTreeSet<QueueKey> {
        let mut before: Option<&WaitingJob> = None;
        let waiting = self.waiting.iter();
        let heads = waiting.filter(|(_, waiting)| {
            let before = before.replace(waiting);
            before.is_none_or(|before| !waiting.equals(before))
        });
        heads.map(|(key, _)| *key).collect()
    }

    /// Checks that the runs that are kept are those of the whole queue.
    #[cfg(test)]
    pub(crate) fn check_runs(&self) {
        assert_eq!(self.run_heads, self.all_heads(), "the runs of equal jobs differ");
    }

    /// Does the same where only the requests of `changed` did.
    pub(crate) fn find_runs_of(&mut self, changed: &[QueueKey]) {
        // Each takes some look-ups, and all together one pass over the queue.
        if changed.len() > self.waiting.len() / 16 {
            self.find_runs();
            return;
        }
        for key in changed {
            self.mark_head(*key);
            self.mark_head_after(*key);
        }
    }

    /// Records whether a job is the first of a run.
    fn mark_head(&mut self, key: QueueKey) {
        let Some(waiting) = self.waiting.get(&key) else { return };
        let before = self.waiting.range(..key).next_back();
        match before.is_none_or(|(_, before)| !waiting.equals(before)) {
            true => self.run_heads.insert(key),
            false => self.run_heads.remove(&key),
        };
    }

    fn mark_head_after(&mut self, key: QueueKey) {
        let after = self.waiting.range((Bound::Excluded(key), Bound::Unbounded)).next();
        if let Some((next, _)) = after {
            self.mark_head(*next);
        }
    }

    /// Removes every job, since the state is read again from the store.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.run_heads.clear();
        self.ranks.clear();
        self.user_lines.clear();
        self.gated.clear();
        self.dependencies.clear();
    }

    /// Records why a job waits, if the reason changed.
    pub(crate) fn record_wait(
        &mut self,
        job: JobId,
        reason: WaitReason,
        why: Explanation,
        new_id: &mut dyn FnMut() -> Uuid,
        waits: &mut Vec<WaitReasonRow>,
    ) {
        let Some(rank) = self.ranks.get(&job) else { return };
        let Some(waiting) = self.waiting.get_mut(&(*rank, job)) else { return };
        // A reason is recorded only when it changes: an hour's wait is one row, not one row for
        // each round.
        if waiting.reason == Some(reason) {
            return;
        }
        waiting.reason = Some(reason);
        if !waiting.reasons.contains(&reason) {
            waiting.reasons.push(reason);
        }
        let decision = DecisionId::from_uuid(new_id());
        waits.push(WaitReasonRow { job, decision, reason: reason.word(), why });
    }

    /// Returns why the jobs wait for which this is known, by number.
    pub(crate) fn wait_reasons(&self) -> Vec<WaitReasonRun> {
        // Tasks of an array follow each other in the order of service, too.
        let mut runs: Vec<WaitReasonRun> = Vec::new();
        for waiting in self.waiting.values() {
            let Some(reason) = waiting.reason.map(WaitReason::word) else { continue };
            let job = waiting.job.id;
            match runs.last_mut() {
                Some(run) if run.reason == reason && run.last.number() + 1 == job.number() => {
                    run.last = job;
                }
                _ => runs.push(WaitReasonRun { first: job, last: job, reason }),
            }
        }
        runs.sort_unstable_by_key(|run| run.first);
        runs
    }

    /// Returns a waiting job.
    pub(crate) fn queued(&self, job: JobId) -> Option<&WaitingJob> {
        self.waiting.get(&(*self.ranks.get(&job)?, job))
    }

    pub(crate) fn gang_of(&self, job: JobId) -> Option<GangMember> {
        self.queued(job)?.job.gang
    }

    /// Returns a waiting job with the other members of its gang, as if they requested the same.
    pub(crate) fn with_gang(&self, job: &QueuedJob) -> Vec<QueuedJob> {
        let Some(member) = job.gang else { return vec![job.clone()] };
        let one = |id: JobId| {
            let rank = self.gang_of(id)?.rank;
            Some(QueuedJob { id, gang: Some(GangMember { rank, ..member }), ..job.clone() })
        };
        member.all().filter_map(one).collect()
    }

    pub(crate) fn dequeue(&mut self, job: JobId) -> Option<WaitingJob> {
        let rank = self.ranks.remove(&job)?;
        let waiting = self.waiting.remove(&(rank, job))?;
        self.run_heads.remove(&(rank, job));
        self.mark_head_after((rank, job));
        self.gated.remove(&(rank, job));
        self.dependencies.remove(job);
        let user = &waiting.job.user;
        if let Some(line) = self.user_lines.get_mut(user) {
            line.remove(&(rank, job));
            if line.is_empty() {
                self.user_lines.remove(user);
            }
        }
        Some(waiting)
    }
}
