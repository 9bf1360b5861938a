//! `earliest-deadline-first`: each job has one whole GPU, the one with the earliest deadline first.
//!
//! The classical reference for deadlines (Liu and Layland, 1973), without preemption: a job that began is not
//! stopped. Jobs without a deadline come last, in the order of the queue.

use tessera_model::{JobId, Millis};
use tessera_placement::policy::Exclusive;
use tessera_placement::{ClusterView, Decision, Knowledge, Policy, QueuedJob};

/// The policy `earliest-deadline-first`.
#[derive(Clone, Copy, Debug, Default)]
pub struct EarliestDeadline;

impl Policy for EarliestDeadline {
    fn name(&self) -> &'static str {
        "earliest-deadline-first"
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut order: Vec<&QueuedJob> = queue.collect();
        let deadline = |job: JobId| knowledge.jobs.facts(job).deadline;
        order.sort_by_key(|job| (deadline(job.id).is_none(), deadline(job.id)));
        Exclusive.decide_with(cluster, knowledge, &mut order.into_iter(), now, starts_max)
    }
}
