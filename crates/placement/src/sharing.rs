//! Sharers of one slice, under NVIDIA's Multi-Process Service or kernel by kernel.
//!
//! No paper that a policy here follows shares a slice: MIGM never does, Dyna-P's fixed layout has
//! one job a partition, and `exclusive` gives away whole GPUs. What follows is ours, the same for
//! every policy that has slices at all:
//!
//! - A job shares only if it requests so, and only with jobs of the same user: under MPS a fault of
//!   one is a fault of all.
//! - Kernel by kernel, jobs join only their like: every job on the slice must stand in its queue.
//! - It joins a shared slice that has space, by multiprocessors and memory, before it takes a
//!   slice of its own. It takes the tightest such slice, then the one with the least memory left over.
//! - The co-runners matter where their speeds are predicted: kernel by kernel from how busy all are
//!   ([`crate::kernel_sharing`]), under MPS as is predicted ([`crate::Predictor::predict_speeds`]).
//!   Then the slice is joined on which one more adds most, and none on which it adds little or
//!   would slow one that serves answers. Where they aren't predicted, the user's request decides.
//! - If there is none, it founds one: the tightest slice on which jobs like it fit together, that
//!   is with `memory * 100 / percent` of memory. Half a slice's multiprocessors go with half its
//!   memory, so that neither is left over. Where no slice is so large, the largest.
//! - How a slice is come by stays the policy's affair. `exclusive` never lets anyone join.

use std::cmp::Reverse;
use std::rc::Rc;

use tessera_model::JobId;

use crate::kernel_sharing::SharingGain;
use crate::offer::{ColocationRank, Offer, Rank, Rule, Way};
use crate::predictor::SpeedBasis;
use crate::request::{NumberedRequest, SliceRequest};
use crate::view::{InstanceState, InstanceView, SharingRequest, Tenancy};
use crate::working_state::WorkingGpu;

/// Returns the best that a GPU has for a request: space next to sharers, or what the rule finds.
pub fn best_offer<R: Rule>(
    rule: &mut R,
    gpu: &WorkingGpu<'_>,
    size: &NumberedRequest,
) -> Option<Rc<Offer>> {
    if let SliceRequest::Shared(sharer) = &size.request
        && !gpu.view.shares(sharer.share)
    {
        return None;
    }
    let joined = if R::JOINS { join(gpu, size) } else { None };
    joined.or_else(|| rule.offer(gpu, size))
}

/// Returns the shared slice of a GPU that a sharer would join.
pub(crate) fn join(gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>> {
    let SliceRequest::Shared(sharer) = &size.request else { return None };
    if !gpu.view.shares(sharer.share) {
        return None;
    }
    let open = tenancies(gpu, sharer).filter(|(i, tenancy)| tenancy.has_capacity(sharer, i.memory));
    let welcome =
        open.filter_map(|(i, tenancy)| Some((i, tenancy, adds(gpu, i, tenancy, sharer)?)));
    let (instance, ..) = welcome.min_by_key(|(instance, tenancy, adds)| {
        let left = instance.memory.get().saturating_sub(tenancy.memory().get());
        (Reverse(*adds), instance.memory, left, instance.slot)
    })?;
    Some(Rc::new(Offer {
        rank: Rank {
            colocation: ColocationRank::Joins,
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
fn adds(
    gpu: &WorkingGpu<'_>,
    instance: &InstanceView,
    tenancy: &Tenancy,
    sharer: &SharingRequest,
) -> Option<u64> {
    match prospect(gpu, instance, tenancy, sharer) {
        SharingGain::Unknown => Some(0),
        SharingGain::Adds(gain) => Some(gain),
        SharingGain::Little(_) | SharingGain::Slows(..) => None,
    }
}

/// Returns what is to be expected of one more on a slice that others share.
pub(crate) fn prospect(
    gpu: &WorkingGpu<'_>,
    instance: &InstanceView,
    tenancy: &Tenancy,
    sharer: &SharingRequest,
) -> SharingGain {
    if sharer.share.is_kernel() {
        return tenancy.prospect(sharer);
    }
    let profile = match (instance.slot, gpu.view.mig.as_deref()) {
        (Some(slot), Some(mig)) => mig.geometry.profile(slot.profile),
        (_, _) => None,
    };
    if profile.is_none() && instance.slot.is_some() {
        return SharingGain::Unknown;
    }
    tenancy.prospect_under_mps(sharer, |clients| {
        let basis = SpeedBasis::SamePercentage;
        let speeds = gpu.predictor.predict_speeds(clients, basis, gpu.view, profile)?;
        Some(speeds.iter().map(|speed| u64::from(speed.expected)).collect())
    })
}

/// Returns the sharers whose end alone would let another one in.
pub(crate) fn blockers(gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Vec<Vec<JobId>> {
    let SliceRequest::Shared(sharer) = &size.request else { return Vec::new() };
    let mut found = Vec::new();
    for (instance, tenancy) in tenancies(gpu, sharer) {
        for (job, _) in &tenancy.sharers {
            let mut without = tenancy.clone();
            without.remove(*job);
            if without.has_capacity(sharer, instance.memory)
                && adds(gpu, instance, &without, sharer).is_some()
            {
                found.push(vec![*job]);
            }
        }
    }
    found
}

/// Explains why a sharer doesn't join a slice that has space for it: the first such slice of these GPUs.
pub(crate) fn declined<'g, 'c: 'g>(
    gpus: impl Iterator<Item = &'g WorkingGpu<'c>>,
    size: &NumberedRequest,
) -> Option<String> {
    let SliceRequest::Shared(sharer) = &size.request else { return None };
    let mut gpus = gpus.filter(|gpu| gpu.view.available && gpu.view.shares(sharer.share));
    gpus.find_map(|gpu| {
        let mut open = tenancies(gpu, sharer)
            .filter(|(instance, tenancy)| tenancy.has_capacity(sharer, instance.memory));
        open.find_map(|(instance, tenancy)| reason(gpu, instance, tenancy, sharer))
    })
}

fn reason(
    gpu: &WorkingGpu<'_>,
    instance: &InstanceView,
    tenancy: &Tenancy,
    sharer: &SharingRequest,
) -> Option<String> {
    let jobs: Vec<String> = tenancy.sharers.iter().map(|(job, _)| job.to_string()).collect();
    let with = match jobs.as_slice() {
        [one] => format!("job {one}"),
        more => format!("jobs {}", more.join(", ")),
    };
    match prospect(gpu, instance, tenancy, sharer) {
        SharingGain::Unknown | SharingGain::Adds(_) => None,
        SharingGain::Little(gain) => Some(format!(
            "it doesn't join {with}: that would add {} % of the throughput of a job alone",
            gain / 10
        )),
        SharingGain::Slows(victim, slowed) => {
            let victim = victim.and_then(|at| tenancy.sharers.get(at));
            let victim = victim.map_or("it".to_owned(), |(job, _)| format!("job {job}"));
            let longer = slowed.saturating_sub(1_000) / 10;
            let remedy = match sharer.share.is_kernel() {
                true => "; with a better priority its kernels would go first",
                false => "",
            };
            Some(format!(
                "it doesn't join {with}: {victim}, an online job, would take {longer} % longer{remedy}"
            ))
        }
    }
}

/// Returns how a sharer would be co-located on a slice of its own with this memory.
pub(crate) fn rank_colocation(
    request: &SliceRequest,
    memory: tessera_model::Bytes,
) -> ColocationRank {
    match request {
        SliceRequest::Shared(sharer) if memory < sharer.share.roomy() => ColocationRank::Cramped,
        SliceRequest::Shared(_)
        | SliceRequest::AtLeast(_)
        | SliceRequest::Named(_)
        | SliceRequest::Whole
        | SliceRequest::Unpartitioned
        | SliceRequest::Part(_) => ColocationRank::Alone,
    }
}

fn tenancies<'g>(
    gpu: &'g WorkingGpu<'_>,
    sharer: &'g SharingRequest,
) -> impl Iterator<Item = (&'g InstanceView, &'g Tenancy)> {
    gpu.instances.iter().filter_map(|instance| match &instance.state {
        InstanceState::Shared(tenancy) if tenancy.user == sharer.user => Some((instance, tenancy)),
        _ => None,
    })
}
