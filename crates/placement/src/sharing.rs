//! Sharers of one slice, under NVIDIA's Multi-Process Service or kernel by kernel.
//!
//! No paper that a policy here follows shares a slice: MIGM never does, Dyna-P's fixed layout has
//! one job a partition, and `exclusive` gives away whole GPUs. What follows is ours, the same for
//! every policy that has slices at all:
//!
//! - A job shares only if it says so, and only with jobs of the same user: under MPS a fault of
//!   one is a fault of all.
//! - Kernel by kernel, jobs join only their like: every job on the slice must stand in its queue.
//! - It joins a shared slice that has room, by multiprocessors and memory, before it takes a
//!   slice of its own: the tightest such slice, then the one with the least memory left over.
//! - If there is none, it founds one: the tightest slice on which jobs like it fit together, that
//!   is with `memory * 100 / percent` of memory. Half a slice's multiprocessors go with half its
//!   memory, so that neither is left over. Where no slice is so large, the largest.
//! - How a slice is come by stays the policy's affair. `exclusive` never lets anyone join.

use std::rc::Rc;

use tessera_model::JobId;

use crate::board::Gpu;
use crate::round::{Company, Offer, Rank, Way};
use crate::view::{InstanceState, InstanceView, Sharer, Tenancy};
use crate::want::{Size, Want};

/// Returns the shared slice of a GPU that a sharer would join.
pub(crate) fn join(gpu: &Gpu<'_>, size: &Size) -> Option<Rc<Offer>> {
    let Want::Shared(sharer) = &size.want else { return None };
    if !gpu.view.shares(sharer.share) {
        return None;
    }
    let open = tenancies(gpu, sharer).filter(|(i, tenancy)| tenancy.has_room(sharer, i.memory));
    let (instance, _) = open.min_by_key(|(instance, tenancy)| {
        let left = instance.memory.get().saturating_sub(tenancy.memory().get());
        (instance.memory, left, instance.slot)
    })?;
    Some(Rc::new(Offer {
        rank: Rank {
            company: Company::Joins,
            memory: instance.memory,
            way: Way::Join,
            compute_slices: 0,
            lost_futures: 0,
        },
        slot: instance.slot,
        steps: Vec::new(),
        futures: None,
        others: Vec::new(),
    }))
}

/// Returns the sharers whose end alone would let another one in.
pub(crate) fn blockers(gpu: &Gpu<'_>, size: &Size) -> Vec<Vec<JobId>> {
    let Want::Shared(sharer) = &size.want else { return Vec::new() };
    let mut found = Vec::new();
    for (instance, tenancy) in tenancies(gpu, sharer) {
        for (job, _) in &tenancy.sharers {
            let mut without = tenancy.clone();
            without.remove(*job);
            if without.has_room(sharer, instance.memory) {
                found.push(vec![*job]);
            }
        }
    }
    found
}

/// Tells what company a sharer would have on a slice of its own with this memory.
pub(crate) fn company(want: &Want, memory: tessera_model::Bytes) -> Company {
    match want {
        Want::Shared(sharer) if memory < sharer.share.roomy() => Company::Cramped,
        Want::Shared(_) | Want::AtLeast(_) | Want::Named(_) | Want::Whole | Want::Part(_) => {
            Company::Alone
        }
    }
}

fn tenancies<'g>(
    gpu: &'g Gpu<'_>,
    sharer: &'g Sharer,
) -> impl Iterator<Item = (&'g InstanceView, &'g Tenancy)> {
    gpu.instances.iter().filter_map(|instance| match &instance.state {
        InstanceState::Shared(tenancy) if tenancy.user == sharer.user => Some((instance, tenancy)),
        _ => None,
    })
}
