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
//! - It matters who joins whom: where that is predicted (kernel by kernel from how busy all are,
//!   [`crate::turns`]; under MPS as the forecast says, [`crate::Forecast::together`]), the slice is joined
//!   on which one more adds most, and none on which it adds little or would slow one that serves answers.
//!   Where it isn't, the user's wish decides.
//! - If there is none, it founds one: the tightest slice on which jobs like it fit together, that
//!   is with `memory * 100 / percent` of memory. Half a slice's multiprocessors go with half its
//!   memory, so that neither is left over. Where no slice is so large, the largest.
//! - How a slice is come by stays the policy's affair. `exclusive` never lets anyone join.

use std::cmp::Reverse;
use std::rc::Rc;

use tessera_model::JobId;

use crate::board::Gpu;
use crate::round::{Company, Offer, Rank, Way};
use crate::turns::Prospect;
use crate::view::{InstanceState, InstanceView, Sharer, Tenancy};
use crate::want::{Size, Want};

/// Returns the shared slice of a GPU that a sharer would join.
pub(crate) fn join(gpu: &Gpu<'_>, size: &Size) -> Option<Rc<Offer>> {
    let Want::Shared(sharer) = &size.want else { return None };
    if !gpu.view.shares(sharer.share) {
        return None;
    }
    let open = tenancies(gpu, sharer).filter(|(i, tenancy)| tenancy.has_room(sharer, i.memory));
    let welcome =
        open.filter_map(|(i, tenancy)| Some((i, tenancy, adds(gpu, i, tenancy, sharer)?)));
    let (instance, ..) = welcome.min_by_key(|(instance, tenancy, adds)| {
        let left = instance.memory.get().saturating_sub(tenancy.memory().get());
        (Reverse(*adds), instance.memory, left, instance.slot)
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

/// Returns what a sharer adds to a slice, in thousandths of a job alone: nothing that is known, where
/// nothing is predicted; `None` if it had better not come.
fn adds(gpu: &Gpu<'_>, instance: &InstanceView, tenancy: &Tenancy, sharer: &Sharer) -> Option<u64> {
    match prospect(gpu, instance, tenancy, sharer) {
        Prospect::Unknown => Some(0),
        Prospect::Adds(gain) => Some(gain),
        Prospect::Little(_) | Prospect::Slows(..) => None,
    }
}

/// Returns what is to be expected of one more on a slice that others share.
pub(crate) fn prospect(
    gpu: &Gpu<'_>,
    instance: &InstanceView,
    tenancy: &Tenancy,
    sharer: &Sharer,
) -> Prospect {
    if sharer.share.is_kernel() {
        return tenancy.prospect(sharer);
    }
    let profile = match (instance.slot, gpu.view.mig.as_deref()) {
        (Some(slot), Some(mig)) => mig.geometry.profile(slot.profile),
        (_, _) => None,
    };
    if profile.is_none() && instance.slot.is_some() {
        return Prospect::Unknown;
    }
    tenancy.prospect_beside(sharer, |clients| gpu.forecast.0.together(clients, gpu.view, profile))
}

/// Returns the sharers whose end alone would let another one in.
pub(crate) fn blockers(gpu: &Gpu<'_>, size: &Size) -> Vec<Vec<JobId>> {
    let Want::Shared(sharer) = &size.want else { return Vec::new() };
    let mut found = Vec::new();
    for (instance, tenancy) in tenancies(gpu, sharer) {
        for (job, _) in &tenancy.sharers {
            let mut without = tenancy.clone();
            without.remove(*job);
            if without.has_room(sharer, instance.memory)
                && adds(gpu, instance, &without, sharer).is_some()
            {
                found.push(vec![*job]);
            }
        }
    }
    found
}

/// Says why a sharer doesn't join a slice that has room for it: the first such slice of these GPUs.
pub(crate) fn declined<'g, 'c: 'g>(
    gpus: impl Iterator<Item = &'g Gpu<'c>>,
    size: &Size,
) -> Option<String> {
    let Want::Shared(sharer) = &size.want else { return None };
    let mut gpus = gpus.filter(|gpu| gpu.view.available && gpu.view.shares(sharer.share));
    gpus.find_map(|gpu| {
        let mut open = tenancies(gpu, sharer)
            .filter(|(instance, tenancy)| tenancy.has_room(sharer, instance.memory));
        open.find_map(|(instance, tenancy)| reason(gpu, instance, tenancy, sharer))
    })
}

fn reason(
    gpu: &Gpu<'_>,
    instance: &InstanceView,
    tenancy: &Tenancy,
    sharer: &Sharer,
) -> Option<String> {
    let jobs: Vec<String> = tenancy.sharers.iter().map(|(job, _)| job.to_string()).collect();
    let with = match jobs.as_slice() {
        [one] => format!("job {one}"),
        more => format!("jobs {}", more.join(", ")),
    };
    match prospect(gpu, instance, tenancy, sharer) {
        Prospect::Unknown | Prospect::Adds(_) => None,
        Prospect::Little(gain) => Some(format!(
            "it doesn't join {with}: that would add {} % of what a job does alone",
            gain / 10
        )),
        Prospect::Slows(whom, slowed) => {
            let whom = whom.and_then(|at| tenancy.sharers.get(at));
            let whom = whom.map_or("it".to_owned(), |(job, _)| format!("job {job}"));
            let longer = slowed.saturating_sub(1_000) / 10;
            let remedy = match sharer.share.is_kernel() {
                true => "; a better priority would let its kernels go first",
                false => "",
            };
            Some(format!(
                "it doesn't join {with}: {whom}, which serves answers, would take {longer} % longer\
                 {remedy}"
            ))
        }
    }
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
