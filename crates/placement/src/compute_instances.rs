//! Jobs that name a compute instance (`1c.3g.20gb`), the same for every policy.
//!
//! None of the papers divides GPU instances. The following rules are ours:
//!
//! - Only an operator's layout cuts a GPU instance, and only a job that names a compute instance
//!   runs on one. It shares the memory with its co-runners, and nothing enforces how much each
//!   uses. A job is charged a part of the memory in proportion to its compute slices.
//! - All compute instances of a GPU instance belong to one user at a time: a fault of the GPU
//!   instance may hit all of them.
//! - Jobs fill a GPU instance up before they take the next one, so that whole ones stay free.
//! - A waiting job holds up later jobs that request the same. It also holds up jobs of other users
//!   that would keep its GPU instances from becoming free. So no job starves.
//!
//! Such jobs don't compete with other jobs, so they are placed before the policy decides.

mod messages;

use std::cmp::Reverse;
use std::sync::Arc;

use tessera_model::mig::Slot;
use tessera_model::mig::compute::{ComputeName, ComputeSlot};
use tessera_model::share::{ComputeShare, SliceShare};
use tessera_model::spec::GpuRequest;
use tessera_model::{Bytes, JobId};

use crate::decision::{Decision, JobPlacement, WaitReason};

use crate::fair::{OrderedJob, Quotas};
use crate::view::{
    ClosureKind, ClusterView, ComputeInstancesView, GpuView, InstanceState, QueuedJob, Tenancy,
};

/// The result for the head of a queue.
#[derive(Debug, Default)]
pub struct ComputePlacements<'q> {
    /// The decisions about jobs that name compute instances.
    pub decisions: Vec<Decision>,
    /// How many of them start.
    pub started: usize,
    /// All other jobs in their order, which the policy decides about.
    pub others: Vec<&'q QueuedJob>,
}

/// A divided GPU instance, with the decisions of this round applied.
#[derive(Clone, Debug)]
pub(crate) struct CutInstance<'c> {
    pub(crate) gpu: &'c GpuView,
    pub(crate) slot: Slot,
    compute: ComputeInstancesView,
    /// The user who has it, after this round's starts.
    pub(crate) user: Option<Arc<str>>,
    /// The jobs by compute instance, after this round's starts.
    pub(crate) taken: Vec<(JobId, ComputeSlot)>,
}

impl CutInstance<'_> {
    /// Returns the compute instances of a size that are free.
    fn free(&self, slices: u8) -> impl Iterator<Item = ComputeSlot> {
        let free = |slot: &ComputeSlot| self.taken.iter().all(|(_, taken)| !taken.overlaps(*slot));
        self.compute.cut.iter().filter(move |slot| slot.slices == slices).filter(free)
    }

    /// Returns whether it has compute instances of a size.
    pub(crate) fn has(&self, slices: u8) -> bool {
        self.compute.cut.iter().any(|slot| slot.slices == slices)
    }

    fn lets(&self, user: &Arc<str>) -> bool {
        self.user.as_ref().is_none_or(|there| there == user)
    }
}

/// A waiting job that holds up others.
struct WaitingRequest<'q> {
    name: &'q ComputeName,
    job: &'q QueuedJob,
}

/// The result for a queue, with the GPU instances on which its jobs were placed.
#[derive(Debug, Default)]
pub(crate) struct PlacedParts<'c, 'q> {
    pub(crate) decisions: Vec<Decision>,
    pub(crate) started: usize,
    pub(crate) others: Vec<OrderedJob<'q>>,
    pub(crate) instances: Vec<CutInstance<'c>>,
}

/// Places the jobs of a queue that name compute instances.
pub fn place_compute_jobs<'q>(
    cluster: &ClusterView,
    queue: &mut dyn Iterator<Item = &'q QueuedJob>,
    starts_max: usize,
) -> ComputePlacements<'q> {
    let ordered = queue.map(|job| OrderedJob { job, ranked_at: job.submitted }).collect();
    let PlacedParts { decisions, started, others, .. } =
        place_in_order(cluster, ordered, None, starts_max);
    ComputePlacements {
        decisions,
        started,
        others: others.into_iter().map(|ordered_job| ordered_job.job).collect(),
    }
}

/// Places jobs like [`place_compute_jobs`], in the given order and within quotas.
pub(crate) fn place_in_order<'c, 'q>(
    cluster: &'c ClusterView,
    queue: Vec<OrderedJob<'q>>,
    mut quotas: Option<&mut Quotas<'_>>,
    starts_max: usize,
) -> PlacedParts<'c, 'q> {
    let mut placed = PlacedParts::default();
    let mut instances = None;
    let mut heads: Vec<WaitingRequest<'q>> = Vec::new();
    for ordered_job in queue {
        let job = ordered_job.job;
        let GpuRequest::Compute(name) = &job.gpu else {
            placed.others.push(ordered_job);
            continue;
        };
        let held_up = heads.iter().any(|head| {
            let meets = head.name == name
                || (head.name.profile == name.profile && head.job.user != job.user);
            meets && have_gpus_in_common(cluster, head.job, job)
        });
        if held_up || placed.started >= starts_max {
            continue;
        }
        let instances = instances.get_or_insert_with(|| cut_instances(cluster));
        let found = best(instances, name, job);
        // A job that joins jobs of its user uses no more of the quota. A job that waits for its
        // quota blocks no other job.
        let alone = found.is_none_or(|(index, _)| instances[index].user.is_none());
        if let Some(quotas) = quotas.as_deref().filter(|quotas| alone && quotas.bars(job, 1)) {
            placed.decisions.push(quotas.wait(messages::POLICY, job, 1, None));
            continue;
        }
        match found {
            Some((index, part)) => {
                let why = messages::start(job, name, instances, index, part);
                let instance = &mut instances[index];
                instance.user = Some(Arc::clone(&job.user));
                instance.taken.push((job.id, part));
                let gpu = instance.gpu.id.clone();
                let place = JobPlacement {
                    gpu,
                    slot: Some(instance.slot),
                    steps: Vec::new(),
                    part: Some(part),
                    share: None,
                };
                let start = Decision::Start { job: job.id, place, why };
                if let Some(quotas) = &mut quotas {
                    quotas.count(&start);
                }
                placed.decisions.push(start);
                placed.started += 1;
            }
            None => {
                let allowed = instances.iter().filter(|instance| instance.gpu.is_allowed(job));
                let allowed: Vec<CutInstance<'_>> = allowed.cloned().collect();
                let part = job.place.as_ref().map(|place| cluster.within(place));
                let part = part.as_ref().unwrap_or(cluster);
                let reason = reason(part, &allowed, name);
                let why = messages::wait(job, name, part, &allowed, reason);
                placed.decisions.push(Decision::Wait { job: job.id, reason, why });
                heads.push(WaitingRequest { name, job });
            }
        }
    }
    placed.instances = instances.unwrap_or_default();
    placed
}

/// Returns the cluster with the placements of this round, on which quotas are computed.
pub(crate) fn laid_over(cluster: &ClusterView, given: &[CutInstance<'_>]) -> ClusterView {
    let mut view = cluster.clone();
    for cut in given {
        let Some(user) = &cut.user else { continue };
        let of = |gpu: &&mut GpuView| gpu.id == cut.gpu.id;
        let instances =
            view.gpus.iter_mut().find(of).into_iter().flat_map(|gpu| &mut gpu.instances);
        let sits = |(job, slot): &(JobId, ComputeSlot)| {
            (*job, SliceShare::Compute(ComputeShare { slot: *slot, memory: Bytes::ZERO }))
        };
        for instance in instances.filter(|instance| instance.slot == Some(cut.slot)) {
            if let InstanceState::Cut(compute) = &mut instance.state {
                let sharers = cut.taken.iter().map(sits).collect();
                compute.tenancy = Some(Tenancy::of(Arc::clone(user), sharers));
            }
        }
    }
    view
}

/// Returns whether there are GPUs on which both of two jobs may run.
fn have_gpus_in_common(cluster: &ClusterView, one: &QueuedJob, other: &QueuedJob) -> bool {
    one.place == other.place
        || cluster.gpus.iter().any(|gpu| gpu.is_allowed(one) && gpu.is_allowed(other))
}

/// Lists the divided GPU instances, in the cluster's order.
fn cut_instances(cluster: &ClusterView) -> Vec<CutInstance<'_>> {
    let of = |gpu| {
        move |instance: &crate::view::InstanceView| {
            let InstanceState::Cut(compute) = &instance.state else { return None };
            Some(CutInstance {
                gpu,
                slot: instance.slot?,
                compute: compute.clone(),
                user: compute.tenancy.as_ref().map(|tenancy| Arc::clone(&tenancy.user)),
                taken: compute.taken().collect(),
            })
        }
    };
    cluster.gpus.iter().flat_map(|gpu| gpu.instances.iter().filter_map(of(gpu))).collect()
}

/// Returns whether a name means compute instances of a GPU instance.
pub(crate) fn is_of(instance: &CutInstance<'_>, name: &ComputeName) -> bool {
    instance.gpu.cuttable(name).is_some_and(|profile| profile.id == instance.slot.profile)
}

/// Finds the placement with the most co-runners, the first among equals.
fn best(
    instances: &[CutInstance<'_>],
    name: &ComputeName,
    job: &QueuedJob,
) -> Option<(usize, ComputeSlot)> {
    let open = instances.iter().enumerate().filter(|(_, instance)| {
        instance.gpu.available
            && instance.gpu.is_allowed(job)
            && is_of(instance, name)
            && instance.lets(&job.user)
    });
    let placements = open.filter_map(|(index, instance)| {
        Some((Reverse(instance.taken.len()), index, instance.free(name.slices).next()?))
    });
    placements.min().map(|(_, index, part)| (index, part))
}

fn reason(cluster: &ClusterView, instances: &[CutInstance<'_>], name: &ComputeName) -> WaitReason {
    if cluster.gpus.is_empty() {
        return WaitReason::NodeUnavailable;
    }
    let holders: Vec<_> = cluster.gpus.iter().filter(|gpu| gpu.cuttable(name).is_some()).collect();
    if holders.is_empty() {
        return WaitReason::BadConstraints;
    }
    let cut =
        || instances.iter().filter(|instance| is_of(instance, name) && instance.has(name.slices));
    if cut().any(|instance| instance.gpu.available) {
        return WaitReason::Resources;
    }
    // If no GPU instance is divided like this, an operator has to do it, provided that a suitable
    // node exists.
    let gpus: Vec<&GpuView> = match cut().next() {
        None if holders.iter().any(|gpu| gpu.available) => return WaitReason::MigFragmentation,
        None => holders,
        Some(_) => cut().map(|instance| instance.gpu).collect(),
    };
    let closed: Option<Vec<ClosureKind>> =
        gpus.iter().map(|gpu| gpu.operator.closed.as_ref().map(|closed| closed.how)).collect();
    match closed {
        None => WaitReason::NodeUnavailable,
        Some(closed) if closed.contains(&ClosureKind::Kept) => WaitReason::Resources,
        Some(closed) if closed.contains(&ClosureKind::Drained) => WaitReason::NodeDrained,
        Some(_) => WaitReason::GpuQuarantined,
    }
}
