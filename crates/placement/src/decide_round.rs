//! One round, as a controller has it decided: first who names a compute instance, then gangs, around
//! the policy. All stand in one order, and draw on the same quotas.

use std::borrow::Cow;

use tessera_model::Millis;

use crate::compute_instances;
use crate::decision::Decision;
use crate::fair::{Quotas, order_jobs};
use crate::gangs;
use crate::policy::Policy;
use crate::predictor::Knowledge;
use crate::view::{ClusterView, QueuedJob};

/// Decides one round about the jobs of a queue, in service order; at most `starts_max` start.
pub fn decide_round(
    policy: &dyn Policy,
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    queue: &mut dyn Iterator<Item = &QueuedJob>,
    now: Millis,
    starts_max: usize,
) -> Vec<Decision> {
    let ordered = order_jobs(queue, knowledge.jobs, policy.shares_fairly());
    let names_parts =
        |job: &QueuedJob| matches!(job.gpu, tessera_model::spec::GpuRequest::Compute(_));
    let special = ordered
        .iter()
        .any(|ordered_job| ordered_job.job.gang.is_some() || names_parts(ordered_job.job));
    // Where there is nobody else, the policy sees to it alone.
    let mut quotas = match special {
        true => {
            Quotas::of(cluster, knowledge.jobs, ordered.iter().map(|ordered_job| ordered_job.job))
        }
        false => None,
    };
    let compute_instances::PlacedParts { mut decisions, started, others, instances } =
        compute_instances::place_in_order(cluster, ordered, quotas.as_mut(), starts_max);
    let left = starts_max.saturating_sub(started);
    let cluster = match quotas.is_some() && started > 0 {
        true => Cow::Owned(compute_instances::laid_over(cluster, &instances)),
        false => Cow::Borrowed(cluster),
    };
    let input = gangs::GangInput { policy, cluster: &cluster, knowledge, now, starts_max: left };
    decisions.extend(gangs::decide(input, others, quotas));
    decisions
}
