//! Checks whether the cluster could ever hold a request, so that impossible requests are refused.

use std::collections::BTreeMap;

use tessera_model::Bytes;
use tessera_model::mig::Profile;
use tessera_model::share::SharingMode;
use tessera_model::spec::GpuRequest;

use crate::request::SliceRequest;
use crate::view::{ClusterView, GpuView, MigView, SharingRequest};

/// Whether a GPU that was ever seen could hold a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feasibility {
    /// Some available GPU could, once it is free.
    Yes,
    /// Only GPUs that are unavailable now could.
    OnlyUnavailable,
    /// The job requests to share a slice, and no node that was ever seen can do that.
    NoSharing,
    /// No GPU could.
    Never {
        /// The most memory that one job can get; `None` if no GPU was ever seen.
        largest: Option<Bytes>,
        /// The profiles that GPUs offer, by name, each once.
        profiles: Vec<String>,
    },
}

/// Returns the most memory that one job can get: the largest plain profile of the partitioned
/// GPUs, or the GPU's memory where MIG is off. `None` if no GPU was ever seen.
pub fn largest_possible(cluster: &ClusterView) -> Option<Bytes> {
    cluster.gpus.iter().filter_map(largest_of).max()
}

/// Returns the most memory that one job can get on the GPU.
pub(crate) fn largest_of(gpu: &GpuView) -> Option<Bytes> {
    match &gpu.mig {
        Some(mig) => mig.plain().next_back().map(|p| p.memory),
        None => Some(gpu.memory),
    }
}

/// Returns whether any GPU could ever hold a job, by its geometry alone. Its current instances and
/// jobs don't matter, so the answer is the same for every policy.
pub fn could_ever_fit(
    cluster: &ClusterView,
    gpu_request: &GpuRequest,
    share: SharingMode,
) -> Feasibility {
    let sharer = share.part().map(|share| SharingRequest::new("", share));
    if let Some(sharer) = &sharer
        && !cluster.gpus.iter().any(|gpu| gpu.shares(sharer.share))
    {
        return Feasibility::NoSharing;
    }
    let request = SliceRequest::of(gpu_request, sharer.as_ref());
    let mut holders = cluster.gpus.iter().filter(|gpu| holds(gpu, &request)).peekable();
    if holders.peek().is_none() {
        return Feasibility::Never {
            largest: largest_possible(cluster),
            profiles: offered_profiles(cluster),
        };
    }
    if holders.any(|gpu| gpu.available) { Feasibility::Yes } else { Feasibility::OnlyUnavailable }
}

/// Returns whether an instance of the profile is large enough for a job that is alone on it.
pub fn could_hold(gpu_request: &GpuRequest, mig: &MigView, profile: &Profile) -> bool {
    match gpu_request {
        GpuRequest::Unknown => true,
        GpuRequest::Memory(bytes) => profile.memory >= *bytes,
        GpuRequest::Profile(name) => profile.name == *name,
        GpuRequest::Whole => mig.largest().is_some_and(|whole| whole.id == profile.id),
        // With MIG on, no instance is the whole GPU with MIG off.
        GpuRequest::Unpartitioned => false,
        // A compute instance is only a part of a GPU instance.
        GpuRequest::Compute(_) => false,
    }
}

/// Returns whether the GPU's geometry has an instance for the request.
pub(crate) fn holds(gpu: &GpuView, request: &SliceRequest) -> bool {
    if let SliceRequest::Shared(sharer) = request
        && !gpu.shares(sharer.share)
    {
        return false;
    }
    if let SliceRequest::Part(name) = request {
        return gpu.cuttable(name).is_some();
    }
    match &gpu.mig {
        Some(mig) => !request.tight(mig).is_empty(),
        None => request.suits_unpartitioned(gpu.memory),
    }
}

fn offered_profiles(cluster: &ClusterView) -> Vec<String> {
    let memory_by_name: BTreeMap<_, _> = cluster
        .gpus
        .iter()
        .filter_map(|gpu| gpu.mig.as_deref())
        .flat_map(|mig| &mig.geometry.profiles)
        .map(|profile| (&profile.name, profile.memory))
        .collect();
    let mut offered: Vec<_> = memory_by_name.into_iter().collect();
    offered.sort_by_key(|(name, memory)| (*memory, *name));
    offered.into_iter().map(|(name, _)| name.to_string()).collect()
}
