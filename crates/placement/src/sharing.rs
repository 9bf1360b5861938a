//! Jobs that share one slice, under NVIDIA's Multi-Process Service or kernel by kernel.
//!
//! None of the papers that the policies follow shares slices: MIGM never does, Dyna-P's fixed
//! layout has one job per partition, and `exclusive` gives each job a whole GPU. The following
//! rules are ours, the same for every policy that uses slices:
//!
//! - A job shares only if it requests sharing, and only with jobs of the same user: under MPS a
//!   fault of one job ends all of them.
//! - Under kernel-level sharing, all jobs of the slice must use its kernel queue, so such jobs join
//!   only each other.
//! - It joins a shared slice with enough free multiprocessors and memory before it takes
//!   a slice for itself. It takes the tightest such slice, then the one with the least remaining memory.
//! - Co-runners are considered if their speeds are predicted: for kernel-level sharing from how
//!   busy all jobs are ([`crate::kernel_sharing`]), for MPS by
//!   [`crate::Predictor::predict_speeds`]. Then the job joins the slice where it adds most
//!   throughput. It joins no slice where it adds little or would slow an online job. Without
//!   predictions, the user's request decides.
//! - If there is no such slice, it starts a shared one: the tightest slice on which jobs like it
//!   fit together, which needs `memory * 100 / percent` of memory. Half of a slice's
//!   multiprocessors come with half of its memory, so that neither remains unused. If no slice is
//!   so large, it takes the largest.
//! - How a slice is obtained is left to the policy. Under `exclusive` no job joins another.

use std::cmp::Reverse;
use std::rc::Rc;

use tessera_model::JobId;
use tessera_model::mig::Slot;

use crate::kernel_sharing::SharingGain;
use crate::offer::{ColocationRank, Offer, Rank, Rule, Way};
use crate::predictor::SpeedBasis;
use crate::request::{NumberedRequest, SliceRequest};
use crate::view::{InstanceState, InstanceView, SharingRequest, Tenancy};
use crate::working_state::WorkingGpu;

/// Returns the best offer of a GPU for a request: free space on a shared slice, or the offer of the
/// rule.
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

/// Returns the shared slice of a GPU that a sharing job would join.
pub(crate) fn join(gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>> {
    join_among(gpu, size, |_| true)
}

/// Does the same for some of the GPU's slices.
pub(crate) fn join_among(
    gpu: &WorkingGpu<'_>,
    size: &NumberedRequest,
    is_open: impl Fn(Option<Slot>) -> bool,
) -> Option<Rc<Offer>> {
    let SliceRequest::Shared(sharer) = &size.request else { return None };
    if !gpu.view.shares(sharer.share) {
        return None;
    }
    let open = tenancies(gpu, sharer)
        .filter(|(i, tenancy)| is_open(i.slot) && tenancy.has_capacity(sharer, i.memory));
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

/// Returns how much throughput a sharing job adds to a slice, in thousandths of a job alone; the
/// inner value is `None` without predictions. `None` if the job should not join.
fn adds(
    gpu: &WorkingGpu<'_>,
    instance: &InstanceView,
    tenancy: &Tenancy,
    sharer: &SharingRequest,
) -> Option<u64> {
    match prospect(gpu, instance, tenancy, sharer) {
        SharingGain::Unknown | SharingGain::OneAtATime => Some(0),
        SharingGain::Adds(gain) => Some(gain),
        SharingGain::Little(_)
        | SharingGain::Slows(..)
        | SharingGain::NeverFits(_)
        | SharingGain::StopsService(_) => None,
    }
}

/// Returns the predicted effect of one more job on a shared slice.
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

/// Returns the sharing jobs of which a single end would let another job join.
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

/// Explains why a job doesn't join a shared slice that has space for it. It names the first such
/// slice of these GPUs.
pub(crate) fn declined<'g, 'c: 'g>(
    gpus: impl Iterator<Item = &'g WorkingGpu<'c>>,
    size: &NumberedRequest,
) -> Option<String> {
    let SliceRequest::Shared(sharer) = &size.request else { return None };
    let mut gpus = gpus.filter(|gpu| gpu.view.available && gpu.view.shares(sharer.share));
    gpus.find_map(|gpu| {
        let mut open = tenancies(gpu, sharer)
            .filter(|(instance, tenancy)| tenancy.has_free_shares(sharer, instance.memory));
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
    if tenancy.is_kept_apart(sharer) {
        let alone = tenancy.apart.map_or("it".to_owned(), |job| format!("job {job}"));
        return Some(format!(
            "it doesn't join {with}: a fault on a shared slice ended {alone} together with others, and which job caused \
             it is not known. So {alone} runs alone"
        ));
    }
    match prospect(gpu, instance, tenancy, sharer) {
        SharingGain::Unknown | SharingGain::Adds(_) | SharingGain::OneAtATime => None,
        SharingGain::Little(gain) => Some(format!(
            "it doesn't join {with}: that would add {} % of the throughput of a job alone",
            gain / 10
        )),
        SharingGain::NeverFits([(filler, takes), (holder, gap)]) => {
            let named = |at: Option<usize>| {
                let job = at.and_then(|at| tenancy.sharers.get(at));
                job.map_or("it".to_owned(), |(job, _)| format!("job {job}"))
            };
            let (filler, holder) = (named(filler), named(holder));
            let (takes, gap) = (milliseconds(takes), milliseconds(gap));
            Some(format!(
                "it doesn't join {with}: no gap of {holder} is longer than {gap} ms. Most of the kernel time of \
                 {filler} is in kernels or graphs of {takes} ms and more. These would only run by age, in 2 % of \
                 the time"
            ))
        }
        SharingGain::StopsService(at) => {
            let other = tenancy.sharers.get(at).map_or("it".to_owned(), |(job, _)| job.to_string());
            Some(format!(
                "it doesn't join {with}: it or job {other} requested share = kernel:exclusive, and the other one \
                 serves requests, which would wait for the end of the first"
            ))
        }
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

/// Writes microseconds as milliseconds, with one decimal.
fn milliseconds(micros: u32) -> String {
    format!("{}.{}", micros / 1_000, micros % 1_000 / 100)
}

/// Returns how a sharing job would be co-located on a new slice with this memory.
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
