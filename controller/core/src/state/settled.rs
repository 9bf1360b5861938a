//! The requests that the last run of the policy could not place. An equal request needs no search as long as nothing
//! has changed since, for a hundred times as long as that run took and a second at most.
//!
//! One more waiting job may change the sizes that the policy chooses, and so start one that waits: such a start comes
//! that much later at most. If only attempts started and ended since, free capacity decides whether a search is needed
//! ([`crate::free_capacity`]).

use crate::predictions::TaskFacts;
use std::sync::Arc;
use std::time::Duration;
use tessera_model::Millis;
use tessera_model::number::clamped;
use tessera_model::spec::{GpuRequest, QueueRank};
use tessera_placement::{QueuedJob, SharingRequest};

/// How long the result of the policy's last run is used at most although nothing changed: waiting jobs
/// become more urgent. Chosen: a user does not notice the delay, and a wave of submits needs one
/// search instead of hundreds.
const SETTLED_FOR_MAX: Millis = Millis::from_secs(1);

/// The same as a multiple of the time that the run took. Chosen: searches for a wave of submits take a hundredth of the
/// time at most, and a small cluster decides about each job at once.
const SETTLED_FOR: u32 = 100;

/// Maximum number of kinds of requests that are remembered. Chosen: more than users have; each
/// further kind needs a search.
const REFUSED_MAX: usize = 64;

/// The requests for which nothing could start, since the policy last ran.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettledQueue {
    /// When the policy last ran, if only attempts started and ended since.
    searched: Option<Millis>,
    /// Until when its result is used, if nothing changed since.
    until: Option<Millis>,
    refused: Vec<RefusedRequest>,
}

/// A request without a placement.
#[derive(Clone, Debug)]
struct RefusedRequest {
    gpu: GpuRequest,
    share: Option<(Arc<str>, SharingRequest)>,
    limit: Option<Millis>,
    /// The best rank of the jobs that wait with it.
    rank: QueueRank,
}

impl SettledQueue {
    /// Forgets everything: something changed.
    pub(crate) const fn unsettle(&mut self) {
        self.searched = None;
        self.until = None;
    }

    /// Forgets what was refused: attempts started or ended.
    pub(crate) const fn forget_refusals(&mut self) {
        self.until = None;
    }

    /// Remembers that the policy ran, and nothing of its result.
    pub(crate) const fn note_search(&mut self, now: Millis) {
        self.searched = Some(now);
        self.until = None;
    }

    /// Remembers the jobs that a run of the policy left in the queue. A run that `took` no time was not measured.
    pub(crate) fn settle<'q>(
        &mut self,
        now: Millis,
        took: Duration,
        left: impl Iterator<Item = (&'q QueuedJob, &'q TaskFacts)>,
    ) {
        self.searched = Some(now);
        self.until = Some(now.plus(settled_for(took)));
        self.refused.clear();
        for (job, facts) in left {
            let refused = RefusedRequest::of(job, facts);
            let same = self.refused.iter().position(|known| known.is_same(&refused));
            if let Some(at) = same {
                self.refused[at].rank = self.refused[at].rank.min(refused.rank);
            } else if self.refused.len() < REFUSED_MAX {
                self.refused.push(refused);
            }
        }
    }

    /// Returns whether the policy need not run for a job that has just arrived.
    pub(crate) fn refuses(&self, now: Millis, job: &QueuedJob, facts: &TaskFacts) -> bool {
        let requested = RefusedRequest::of(job, facts);
        self.lasts(now)
            && job.gang.is_none()
            && self.refused.iter().any(|known| known.covers(&requested))
    }

    /// Returns whether the policy ran so recently that time alone changes nothing.
    pub(crate) fn lasts(&self, now: Millis) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns whether it ran so recently, and only attempts started and ended since.
    pub(crate) fn is_searched(&self, now: Millis) -> bool {
        self.searched.is_some_and(|at| now < at.plus(SETTLED_FOR_MAX))
    }
}

/// Returns how long the result of a run of the policy is used that took so long.
fn settled_for(took: Duration) -> Millis {
    match took.is_zero() {
        true => SETTLED_FOR_MAX,
        false => {
            Millis::new(clamped(took.saturating_mul(SETTLED_FOR).as_millis())).min(SETTLED_FOR_MAX)
        }
    }
}

impl RefusedRequest {
    fn of(job: &QueuedJob, facts: &TaskFacts) -> Self {
        Self {
            gpu: job.gpu.clone(),
            share: job.share.clone().map(|share| (Arc::clone(&job.user), share)),
            limit: facts.limit,
            rank: job.queue_rank,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.gpu, &self.share, self.limit) == (&other.gpu, &other.share, other.limit)
    }

    /// Returns whether any placement for this job would also have suited the other one: this job
    /// needs at least as much, for at least as long.
    fn covers(&self, other: &Self) -> bool {
        let needs_no_less = match (&self.gpu, &other.gpu) {
            (GpuRequest::Unknown, GpuRequest::Memory(_)) => true,
            (GpuRequest::Memory(refused), GpuRequest::Memory(requested)) => refused <= requested,
            (refused, requested) => refused == requested,
        };
        let stays_no_shorter = match (self.limit, other.limit) {
            (None, Some(_)) => false,
            (Some(refused), Some(requested)) => refused <= requested,
            (_, None) => true,
        };
        needs_no_less && stays_no_shorter && self.share == other.share && self.rank <= other.rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::{Bytes, JobId};

    fn job(number: u64, gpu: GpuRequest) -> QueuedJob {
        QueuedJob {
            id: JobId::from_number(number),
            gpu,
            user: "ada".into(),
            share: None,
            auto: None,
            online: false,
            queue_rank: QueueRank::default(),
            submitted: Millis::ZERO,
            gang: None,
            place: None,
        }
    }

    fn limited(seconds: u64) -> TaskFacts {
        TaskFacts { limit: Some(Millis::from_secs(seconds)), ..TaskFacts::default() }
    }

    fn gib(count: u64) -> GpuRequest {
        GpuRequest::Memory(Bytes::from_mib(1_024 * count))
    }

    fn settled(left: &QueuedJob, facts: &TaskFacts) -> SettledQueue {
        let mut queue = SettledQueue::default();
        queue.settle(Millis::ZERO, Duration::ZERO, [(left, facts)].into_iter());
        queue
    }

    #[test]
    fn a_job_that_needs_more_than_a_waiting_one_needs_no_search() {
        let queue = settled(&job(1, gib(4)), &TaskFacts::default());

        for more in [gib(4), gib(10)] {
            assert!(queue.refuses(Millis::ZERO, &job(2, more), &TaskFacts::default()));
        }
        for other in [gib(3), GpuRequest::Unknown, GpuRequest::Whole] {
            assert!(!queue.refuses(Millis::ZERO, &job(2, other), &TaskFacts::default()));
        }
    }

    #[test]
    fn a_job_that_ends_sooner_may_fill_a_gap() {
        let queue = settled(&job(1, gib(4)), &limited(600));

        assert!(queue.refuses(Millis::ZERO, &job(2, gib(4)), &limited(600)));
        assert!(queue.refuses(Millis::ZERO, &job(2, gib(4)), &TaskFacts::default()));
        assert!(!queue.refuses(Millis::ZERO, &job(2, gib(4)), &limited(60)));
    }

    #[test]
    fn a_job_of_a_higher_priority_is_considered_at_once() {
        let queue = settled(&job(1, gib(4)), &TaskFacts::default());
        let mut urgent = job(2, gib(4));
        urgent.queue_rank.priority = 0_u8.try_into().unwrap();

        assert!(!queue.refuses(Millis::ZERO, &urgent, &TaskFacts::default()));
    }

    #[test]
    fn a_result_is_used_for_a_second_or_until_something_changes() {
        let mut queue = settled(&job(1, gib(4)), &TaskFacts::default());
        let again = job(2, gib(4));

        assert!(!queue.refuses(SETTLED_FOR_MAX, &again, &TaskFacts::default()));
        queue.forget_refusals();
        assert!(!queue.refuses(Millis::ZERO, &again, &TaskFacts::default()));
        assert!(queue.is_searched(Millis::ZERO) && !queue.is_searched(SETTLED_FOR_MAX));
        queue.unsettle();
        assert!(!queue.is_searched(Millis::ZERO));
    }

    #[test]
    fn a_short_search_is_repeated_sooner() {
        let mut queue = SettledQueue::default();
        let (left, facts) = (job(1, gib(4)), TaskFacts::default());
        let mut lasts = |took: Duration, at: u64| {
            queue.settle(Millis::ZERO, took, [(&left, &facts)].into_iter());
            queue.lasts(Millis::new(at))
        };

        assert!(lasts(Duration::from_micros(400), 39) && !lasts(Duration::from_micros(400), 40));
        assert!(lasts(Duration::from_secs(3), 999) && !lasts(Duration::from_secs(3), 1_000));
    }
}
