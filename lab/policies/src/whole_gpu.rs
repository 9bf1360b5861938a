//! Several jobs on each unpartitioned GPU: the placement of the baselines that differ only in the
//! way in which jobs share.

use tessera_model::mig::Slot;
use tessera_model::spec::GpuRequest;
use tessera_model::{Bytes, JobId};

use tessera_placement::decision::{Decision, PlacedJob, Reshape, WaitReason};
use tessera_placement::policy::planned_gpu::{PlannedGpu, because};
use tessera_placement::view::{ClusterView, InstanceState, QueuedJob};

/// Jobs that share one GPU. Source: MISO's program, for its baseline under MPS.
pub const SHARERS: usize = 3;

/// The differences between the baselines.
pub(crate) struct WholeGpuSharing<'c> {
    pub(crate) policy: &'c str,
    /// How a job is placed on a whole GPU.
    pub(crate) place: &'c dyn Fn(JobId, Slot) -> PlacedJob,
    /// The reason of a waiting job.
    pub(crate) full: &'c str,
}

impl WholeGpuSharing<'_> {
    /// Places jobs in the queue's order: the head is placed on the GPU with the fewest jobs on
    /// which its memory fits, or it waits with all jobs behind it.
    pub(crate) fn decide(
        &self,
        cluster: &ClusterView,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut planned_gpus = PlannedGpu::all(cluster);
        let mut left: Vec<Bytes> = planned_gpus.iter().map(free_memory).collect();
        let mut changed = std::collections::BTreeSet::new();
        let mut decisions = Vec::new();
        let mut starts = 0;
        while starts < starts_max {
            let Some(job) = queue.next() else { break };
            let needs = match &job.gpu {
                GpuRequest::Memory(bytes) => *bytes,
                GpuRequest::Unknown
                | GpuRequest::Profile(_)
                | GpuRequest::Whole
                | GpuRequest::Unpartitioned
                | GpuRequest::Compute(_) => Bytes::ZERO,
            };
            let target = (0..planned_gpus.len())
                .filter(|at| planned_gpus[*at].open && planned_gpus[*at].placements.len() < SHARERS)
                .filter(|at| left[*at] >= needs)
                .min_by_key(|at| (planned_gpus[*at].placements.len(), *at));
            let Some((at, whole)) = target.and_then(|at| Some((at, planned_gpus[at].whole()?)))
            else {
                let why = because(self.policy, self.full);
                decisions.push(Decision::Wait { job: job.id, reason: WaitReason::Resources, why });
                break;
            };
            planned_gpus[at].placements.push((self.place)(job.id, whole));
            left[at] = Bytes::new(left[at].get() - needs.get());
            changed.insert(at);
            starts += 1;
        }
        let starts = changed.into_iter().filter_map(|at| {
            let planned = &mut planned_gpus[at];
            let (layout, placements) = ([planned.whole()?].into(), planned.placements.clone());
            let reshape: Reshape = planned.take(layout, placements);
            let why = because(self.policy, "it shares the GPU with the fewest jobs");
            Some(Decision::Reshape { reshape, why })
        });
        starts.chain(decisions).collect()
    }
}

fn free_memory(planned: &PlannedGpu<'_>) -> Bytes {
    let whole = planned.mig.largest().map_or(Bytes::ZERO, |p| p.memory);
    let taken = planned.view.instances.iter().map(|instance| match &instance.state {
        InstanceState::Shared(tenancy) => tenancy.memory().get(),
        InstanceState::Idle => 0,
        InstanceState::Taken { .. }
        | InstanceState::Cut(_)
        | InstanceState::Foreign
        | InstanceState::Stuck
        | InstanceState::Leaving
        | InstanceState::Quarantined => instance.memory.get(),
    });
    Bytes::new(whole.get().saturating_sub(taken.sum()))
}
