//! Random clusters and queues.

use proptest::prelude::*;
use proptest::sample::Index;
use tessera_model::mig::MigState;
use tessera_model::spec::GpuRequest;
use tessera_model::{Bytes, JobId};
use tessera_placement::{ClusterView, GpuView, InstanceState, InstanceView, QueuedJob};

use crate::build;

/// GPU models that differ in slices, media engines and starts.
const MODELS: [&str; 5] =
    ["a100-40gb", "a30-24gb", "a100-80gb", "h100-80gb-sxm", "rtx-pro-6000-96gb"];

/// Profiles that some of the models have, and one that none has.
const NAMES: [&str; 7] =
    ["1g.5gb", "1g.10gb", "2g.10gb", "1g.5gb+me", "4g.24gb", "1g.6gb+me", "9g.9gb"];

/// Up to eight GPUs in any state that an agent could report.
pub fn cluster() -> impl Strategy<Value = ClusterView> {
    prop::collection::vec(gpu(), 0..8).prop_map(build::cluster)
}

/// Up to forty jobs.
pub fn queue() -> impl Strategy<Value = Vec<QueuedJob>> {
    prop::collection::vec(gpu_request(), 0..40).prop_map(build::queue)
}

fn gpu_request() -> impl Strategy<Value = GpuRequest> {
    prop_oneof![
        2 => Just(GpuRequest::Unknown),
        6 => (1_u64..30_000).prop_map(build::mib),
        1 => (30_000_u64..100_000).prop_map(build::mib),
        2 => prop::sample::select(&NAMES[..]).prop_map(build::named),
        1 => Just(GpuRequest::Whole),
        1 => Just(GpuRequest::Unpartitioned),
    ]
}

fn gpu() -> impl Strategy<Value = GpuView> {
    let partitioned =
        (prop::sample::select(&MODELS[..]), walk(), prop::collection::vec(state(), 16)).prop_map(
            |(model, forks, states)| {
                let mut gpu = build::gpu(model, &[]);
                gpu.instances = standing(&gpu, &forks, &states);
                gpu
            },
        );
    let whole = state().prop_map(|state| build::unpartitioned(24_576, state));
    let flags = (prop::bool::weighted(0.9), prop::bool::weighted(0.2));
    (prop_oneof![7 => partitioned, 1 => whole], flags).prop_map(|(gpu, (available, changing))| {
        let changing = changing && gpu.mig.is_some();
        GpuView { available, changing, ..gpu }
    })
}

/// The choice at each step of a random walk through the states of all profiles.
fn walk() -> impl Strategy<Value = Vec<Index>> {
    prop::collection::vec(any::<Index>(), 0..7)
}

fn standing(gpu: &GpuView, forks: &[Index], states: &[InstanceState]) -> Vec<InstanceView> {
    let mig = gpu.mig.as_ref().unwrap();
    let layout = forks.iter().fold(MigState::EMPTY, |state, fork| {
        let ways = mig.all().successors(state);
        if ways.is_empty() { state } else { ways[fork.index(ways.len())].1 }
    });
    let slots = mig.all().layout(layout).into_iter();
    slots
        .zip(states)
        .map(|(slot, state)| InstanceView {
            slot: Some(slot),
            memory: mig.geometry.profile(slot.profile).map_or(Bytes::ZERO, |p| p.memory),
            state: state.clone(),
        })
        .collect()
}

fn state() -> impl Strategy<Value = InstanceState> {
    prop_oneof![
        6 => Just(InstanceState::Idle),
        6 => (1_000_u64..2_000).prop_map(|n| InstanceState::Taken { job: JobId::from_number(n) }),
        1 => Just(InstanceState::Foreign),
        1 => Just(InstanceState::Stuck),
        1 => Just(InstanceState::Quarantined),
    ]
}
