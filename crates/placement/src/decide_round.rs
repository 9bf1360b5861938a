//! One round as a controller runs it: first jobs that name compute instances, then gangs and the
//! policy. All jobs have one order and count towards the same quotas.

use std::borrow::Cow;

use tessera_model::Millis;
use tessera_model::place::PlaceFilter;

use crate::auto_share::share_slices;
use crate::compute_instances;
use crate::decision::Decision;
use crate::fair::{OrderedJob, Quotas, order_jobs};
use crate::gangs;
use crate::places::{PlacePredictor, Places, UnmovedJobs};
use crate::policy::{Policy, SliceManner};
use crate::power::keep_below_cap;
use crate::predictor::{Knowledge, Predictor};
use crate::preemption_search::add_preemptions;
use crate::view::{ClusterView, GpuView, QueuedJob};
use crate::working_state::WorkingState;

/// Decides one round about the jobs of a queue, in service order; at most `starts_max` start.
///
/// Jobs that may run only on some nodes or models are decided together with all others ([`crate::places`]). If their
/// restrictions are too many, or the policy does not honour them, each kind of restriction is decided on the part of the
/// cluster that it allows. The kinds are ordered by their first jobs, and each kind sees what earlier ones started. Last,
/// jobs that found no slice may join others ([`share_slices`]), and what exceeds the cluster's power cap waits ([`crate::power`]). Online jobs that still
/// wait may send offline jobs back to the queue ([`crate::preemption`]).
pub fn decide_round(
    policy: &dyn Policy,
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    queue: &mut dyn Iterator<Item = &QueuedJob>,
    now: Millis,
    starts_max: usize,
) -> Vec<Decision> {
    let ordered = order_jobs(queue, knowledge.jobs, policy.shares_fairly());
    let waiting: Vec<&QueuedJob> = ordered.iter().map(|ordered_job| ordered_job.job).collect();
    let mut decisions = decide_places(policy, cluster, knowledge, ordered, now, starts_max);
    // A policy that gives whole GPUs gives each to one job.
    if policy.slice_manner() != SliceManner::WholeGpus {
        share_slices(cluster, knowledge, &waiting, &mut decisions, starts_max);
    }
    let mut decisions = keep_below_cap(cluster, &waiting, decisions);
    add_preemptions(policy, cluster, knowledge, &waiting, &mut decisions, now);
    decisions
}

/// Decides about all jobs together, or about each kind of restriction on places.
fn decide_places(
    policy: &dyn Policy,
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    ordered: Vec<OrderedJob<'_>>,
    now: Millis,
    starts_max: usize,
) -> Vec<Decision> {
    let places = Places::of(policy, cluster, knowledge.jobs, &ordered);
    if places.is_empty() {
        return decide_ordered(policy, cluster, knowledge, ordered, now, starts_max);
    }
    if policy.honours_places()
        && let Some(divided) = places.divide(cluster)
    {
        let predictor = PlacePredictor { predictor: knowledge.predictor, places: &places };
        let knowledge = Knowledge { predictor: &predictor, ..knowledge };
        return decide_ordered(policy, &divided, knowledge, ordered, now, starts_max);
    }
    let jobs = UnmovedJobs { jobs: knowledge.jobs, places: &places };
    let knowledge = Knowledge { jobs: &jobs, ..knowledge };
    let mut kinds: Vec<(Option<&PlaceFilter>, Vec<OrderedJob<'_>>)> = Vec::new();
    for ordered_job in ordered {
        let place = ordered_job.job.place.as_deref();
        match kinds.iter_mut().find(|(kind, _)| *kind == place) {
            Some((_, jobs)) => jobs.push(ordered_job),
            None => kinds.push((place, vec![ordered_job])),
        }
    }
    let mut decisions: Vec<Decision> = Vec::new();
    let mut left = starts_max;
    for (place, jobs) in kinds {
        let so_far = with_starts(cluster, knowledge.predictor, &decisions);
        let view = match place {
            Some(place) => Cow::Owned(so_far.within(place)),
            None => so_far,
        };
        let decided = decide_ordered(policy, &view, knowledge, jobs, now, left);
        let started = decided.iter().filter(|made| matches!(made, Decision::Start { .. })).count();
        left = left.saturating_sub(started);
        decisions.extend(decided);
    }
    decisions
}

/// Returns the cluster after starts that were decided in the same round. Partitioned GPUs on which
/// a job starts take no other kind of job until the next round: their layout may be changing until
/// then.
pub(crate) fn with_starts<'c>(
    cluster: &'c ClusterView,
    predictor: &dyn Predictor,
    decisions: &[Decision],
) -> Cow<'c, ClusterView> {
    let starts = |decision: &Decision| matches!(decision, Decision::Start { .. });
    if !decisions.iter().any(starts) {
        return Cow::Borrowed(cluster);
    }
    let mut state = WorkingState::new(cluster, predictor);
    let mut changed = vec![false; cluster.gpus.len()];
    for decision in decisions {
        let Decision::Start { job, place, .. } = decision else { continue };
        let at = cluster.gpus.iter().position(|gpu| gpu.id == place.gpu);
        if let Some(at) = at {
            // A slice that another kind of job shares counts as taken in this round.
            state.gpus[at].take(*job, None, place.slot, &place.steps);
            changed[at] = true;
        }
    }
    let gpus = state.gpus.into_iter().zip(changed).map(|(gpu, is_changed)| {
        let is_closed = is_changed && gpu.view.mig.is_some();
        let available = gpu.view.available && !is_closed;
        GpuView { available, instances: gpu.instances, ..gpu.view.clone() }
    });
    Cow::Owned(ClusterView::new(gpus.collect(), cluster.power_cap))
}

fn decide_ordered<'q>(
    policy: &dyn Policy,
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    ordered: Vec<OrderedJob<'q>>,
    now: Millis,
    starts_max: usize,
) -> Vec<Decision> {
    let names_parts =
        |job: &QueuedJob| matches!(job.gpu, tessera_model::spec::GpuRequest::Compute(_));
    let special = ordered
        .iter()
        .any(|ordered_job| ordered_job.job.gang.is_some() || names_parts(ordered_job.job));
    // If all jobs have the same restriction, the policy decides alone.
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
