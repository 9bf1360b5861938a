//! Geometries that no GPU has, and ways to walk through their states.

use proptest::prelude::*;
use tessera_model::Bytes;
use tessera_model::mig::{
    Geometry, Layout, MediaEngines, MigState, Profile, ProfileId, Slot, StateSpace, catalog,
};

/// Builds a profile that starts wherever it fits, or only on `starts`.
pub fn profile(id: u32, compute: u8, memory: u8, max_instances: u8, starts: Vec<u8>) -> Profile {
    Profile {
        id: ProfileId(id),
        name: format!("{compute}g.{}gb", u32::from(memory) * 8 + id).parse().unwrap(),
        compute_slices: compute,
        memory_slices: memory,
        max_instances,
        memory: Bytes::from_mib(u64::from(memory) * 4_864),
        sms: u16::from(compute) * 14,
        copy_engines: 1,
        media: MediaEngines::default(),
        starts,
    }
}

/// A small GPU of an unknown kind: starts with holes, tight counts, engines that bind.
pub fn small() -> impl Strategy<Value = Geometry> {
    let one = (1_u8..=5, any::<u8>(), 1_u8..=5, 0_u32..3, 0_u32..3, 0_u8..=2);
    prop::collection::vec(one, 1..=5).prop_map(|kinds| {
        let profiles = kinds.into_iter().zip(0_u32..).map(|(kind, id)| {
            let (memory, starts, max_instances, decoders, jpeg, fewer) = kind;
            let starts = (0..8 - memory + 1).filter(|s| starts & (1 << s) != 0).collect();
            let compute = memory.saturating_sub(fewer).max(1);
            let mut made = profile(id, compute, memory, max_instances, starts);
            made.media = MediaEngines { decoders, jpeg, ..MediaEngines::default() };
            made
        });
        Geometry::new(profiles.collect())
    })
}

/// A known GPU or a small invented one.
pub fn any_gpu() -> impl Strategy<Value = Geometry> {
    let known: Vec<Geometry> = catalog::models().values().map(|m| m.geometry()).collect();
    prop_oneof![prop::sample::select(known), small()]
}

/// A GPU of sixteen slices on which eight sizes may start anywhere: 94 placements, and far too
/// many states to list.
pub fn vast() -> Geometry {
    let sizes = [1, 2, 3, 4, 6, 8, 12, 16];
    let profiles = sizes.into_iter().zip(0_u32..);
    let profiles =
        profiles.map(|(size, id)| profile(id, size, size, 16, (0..=16 - size).collect()));
    Geometry::new(profiles.collect())
}

/// Every slot that a driver with this geometry knows.
pub fn slots(geometry: &Geometry) -> Vec<Slot> {
    let of = |p: &Profile| p.starts.iter().map(|start| (*start, p.id)).collect::<Vec<_>>();
    let slots = geometry.profiles.iter().flat_map(of);
    slots.map(|(start, profile)| Slot { start, profile }).collect()
}

/// Generates the choice at each fork of a walk.
pub fn forks() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..24)
}

/// Walks from the empty GPU, taking one of the legal allocations at each fork.
pub fn arrive(space: &StateSpace, forks: &[prop::sample::Index]) -> MigState {
    forks.iter().fold(MigState::EMPTY, |state, fork| {
        let ways = space.successors(state);
        if ways.is_empty() { state } else { ways[fork.index(ways.len())].1 }
    })
}

/// The layout at the end of a walk.
pub fn arrived(space: &StateSpace, forks: &[prop::sample::Index]) -> Layout {
    space.layout(arrive(space, forks))
}
