//! Recorded gangs: their members start and end together in the simulation, too.

use std::collections::BTreeMap;

use tessera_model::GangShape;
use tessera_simulator::cluster::job::{GangMembership, SliceTimes};

use super::KnownJob;

/// Links the members of gangs, and returns the number of jobs that are left out because members of
/// their gangs are missing.
///
/// A process waits for the others of its gang, so each gets the longest run time of all members.
pub(super) fn link_gangs(known: &mut Vec<KnownJob>) -> u64 {
    let mut gangs: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, known) in known.iter().enumerate() {
        if let Some(gang) = known.past.gang {
            gangs.entry(gang.id).or_default().push(at);
        }
    }
    let mut left_out = vec![false; known.len()];
    for members in gangs.into_values() {
        if !link_members(known, &members) {
            members.iter().for_each(|at| left_out[*at] = true);
        }
    }
    let before = known.len();
    let mut flags = left_out.into_iter();
    known.retain(|_| !flags.next().unwrap_or(false));
    (before - known.len()) as u64
}

/// Sets each member's rank and run times; returns whether all members are known.
fn link_members(known: &mut [KnownJob], members: &[usize]) -> bool {
    let Some(gang) = members.first().and_then(|at| known[*at].past.gang) else { return false };
    let Ok(shape) = GangShape::new(gang.nodes, gang.gpus_per_node) else { return false };
    let ranks: Vec<u32> = members
        .iter()
        .filter_map(|at| u32::try_from(known[*at].past.id.checked_sub(gang.id)?).ok())
        .collect();
    if !ranks.iter().copied().eq(0..shape.members()) {
        return false;
    }
    let mut longest: BTreeMap<String, SliceTimes> = BTreeMap::new();
    for at in members {
        for (model, times) in &known[*at].job.times {
            let all = longest.entry(model.clone()).or_default();
            for (slices, time) in times {
                let most = all.entry(*slices).or_insert(*time);
                *most = (*most).max(*time);
            }
        }
    }
    for (at, rank) in members.iter().zip(ranks) {
        let job = &mut known[*at].job;
        job.times.clone_from(&longest);
        job.gang = Some(GangMembership { shape, rank });
    }
    true
}
