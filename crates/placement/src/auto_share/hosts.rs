//! Hosts, which another job could join: jobs that start in this round, and jobs that run alone on a
//! shared slice.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::mig::{Profile, Slot};
use tessera_model::share::SliceShare;
use tessera_model::spec::Priority;
use tessera_model::{Bytes, JobId};

use super::memory_of;
use crate::decision::{Decision, JobPlacement, PlacementCandidate};
use crate::kernel_sharing::KernelSharer;
use crate::view::{ClusterView, GpuView, InstanceState, InstanceView, QueuedJob, Tenancy};

/// A job that another job could join, and its slice.
#[derive(Clone, Debug)]
pub(super) struct Host<'c> {
    pub(super) job: JobId,
    pub(super) user: Arc<str>,
    pub(super) gpu: &'c GpuView,
    pub(super) slot: Option<Slot>,
    /// The profile of its slice; `None` for a whole GPU with MIG off.
    pub(super) profile: Option<&'c Profile>,
    /// The memory of its slice.
    pub(super) memory: Bytes,
    /// The memory that the host has.
    pub(super) needs: Bytes,
    pub(super) sharer: KernelSharer,
    pub(super) state: HostState,
}

/// Whether a host's way of sharing is still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostState {
    /// It starts in this round.
    Starts,
    /// It runs with this part of its slice.
    Shares(SliceShare),
}

impl Host<'_> {
    /// Returns its slice as the chosen placement candidate.
    pub(super) fn candidate(&self) -> PlacementCandidate {
        let whole = || "whole GPU".to_owned();
        PlacementCandidate {
            gpu: self.gpu.id.clone(),
            node: self.gpu.node.clone(),
            gpu_index: self.gpu.index,
            profile: self.profile.map_or_else(whole, |profile| profile.name.to_string()),
            start: self.slot.map(|slot| slot.start),
            memory: self.memory,
            chosen: true,
            verdict: "chosen".to_owned(),
            reachability_after: None,
        }
    }
}

/// Finds the hosts: first those that start, in the order of their starts, then those that run.
pub(super) fn find_hosts<'c>(
    cluster: &'c ClusterView,
    queue: &[&QueuedJob],
    decisions: &[Decision],
) -> Vec<Host<'c>> {
    let queued: BTreeMap<JobId, &QueuedJob> = queue.iter().map(|job| (job.id, *job)).collect();
    let started = decisions.iter().filter_map(|decision| match decision {
        Decision::Start { job, place, .. } => starting(cluster, queued.get(job)?, place),
        Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    });
    let mut hosts: Vec<Host<'c>> = started.collect();
    let touched = |gpu: &GpuView, slot: Option<Slot>| {
        decisions.iter().any(|decision| match decision {
            Decision::Start { place, .. } => place.gpu == gpu.id && place.slot == slot,
            Decision::Reshape { reshape, .. } => reshape.gpu == gpu.id,
            Decision::Wait { .. } | Decision::Preempt { .. } => false,
        })
    };
    for gpu in cluster.gpus.iter().filter(|gpu| gpu.available) {
        let open = gpu.instances.iter().filter(|instance| !touched(gpu, instance.slot));
        hosts.extend(open.filter_map(|instance| sharing(gpu, instance)));
    }
    hosts
}

/// Returns a starting job as a host whose way of sharing is still open.
fn starting<'c>(
    cluster: &'c ClusterView,
    job: &QueuedJob,
    place: &JobPlacement,
) -> Option<Host<'c>> {
    let (sharer, needs) = (job.auto?, memory_of(job)?);
    if place.part.is_some() || place.share.is_some() {
        return None;
    }
    let gpu = cluster.gpus.iter().find(|gpu| gpu.id == place.gpu)?;
    if !is_slice(gpu, place.slot) {
        return None;
    }
    let profile = profile_at(gpu, place.slot);
    let state = HostState::Starts;
    let memory = profile.map_or(gpu.memory, |profile| profile.memory);
    let user = Arc::clone(&job.user);
    Some(Host { job: job.id, user, gpu, slot: place.slot, profile, memory, needs, sharer, state })
}

/// Returns the one job that is on a slice which may be shared.
fn sharing<'c>(gpu: &'c GpuView, instance: &'c InstanceView) -> Option<Host<'c>> {
    let InstanceState::Shared(tenancy) = &instance.state else { return None };
    let [(job, share)] = tenancy.sharers.as_slice() else { return None };
    let sharer = sharer_of(tenancy, *job).filter(|_| is_slice(gpu, instance.slot))?;
    // Next to a job in exclusive mode nothing runs.
    if sharer.exclusive {
        return None;
    }
    Some(Host {
        job: *job,
        user: Arc::clone(&tenancy.user),
        gpu,
        slot: instance.slot,
        profile: profile_at(gpu, instance.slot),
        memory: instance.memory,
        needs: share.memory(),
        sharer,
        state: HostState::Shares(*share),
    })
}

/// Returns the facts that are known about a sharing job. Under MPS its priority orders no kernels.
fn sharer_of(tenancy: &Tenancy, job: JobId) -> Option<KernelSharer> {
    tenancy.kernel_sharer(job).or_else(|| {
        let (_, client) = tenancy.clients.iter().find(|(known, _)| *known == job)?;
        let (online, busy) = (client.online, client.busy);
        Some(KernelSharer::new(Priority::DEFAULT, online, busy))
    })
}

/// Returns the profile of a slot; `None` for a whole GPU with MIG off.
fn profile_at(gpu: &GpuView, slot: Option<Slot>) -> Option<&Profile> {
    gpu.mig.as_deref()?.geometry.profile(slot?.profile)
}

/// Returns whether a slot is in the GPU's geometry, or is the whole of a GPU with MIG off.
fn is_slice(gpu: &GpuView, slot: Option<Slot>) -> bool {
    match slot {
        Some(_) => profile_at(gpu, slot).is_some(),
        None => gpu.mig.is_none(),
    }
}
