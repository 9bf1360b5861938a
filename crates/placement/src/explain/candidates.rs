//! The candidates of an explanation.

use tessera_model::Bytes;
use tessera_model::mig::Slot;

use super::phrases::{profile_name, slot_memory, tight_fit};
use crate::decision::{CANDIDATES_MAX, PlacementCandidate};
use crate::numbers::saturating_u32;
use crate::offer::{FutureFit, Offer, Rule};
use crate::request::{NumberedRequest, SliceRequest};
use crate::sharing;
use crate::view::{AdminOverride, GpuView, InstanceState};
use crate::working_state::WorkingGpu;

/// How many candidates the explanation of a start has in addition to the chosen one. They are fewer than
/// for a waiting job: a round may start a thousand jobs, and users mostly explain waits.
const ALTERNATIVES_MAX: usize = 4;

/// The candidates of a start: the chosen place, others on the same GPU, then other GPUs.
pub(crate) fn of_start<'g, 'c: 'g, 'o>(
    gpu: &'g WorkingGpu<'c>,
    chosen: &'o Offer,
    alternatives: impl Iterator<Item = (&'g WorkingGpu<'c>, &'o Offer)>,
) -> Vec<PlacementCandidate> {
    let mut rows = Vec::with_capacity(1 + ALTERNATIVES_MAX);
    rows.push(of_offer(gpu.view, chosen, "chosen"));
    for (slot, after) in chosen.others.iter().take(ALTERNATIVES_MAX / 2) {
        let fewer = chosen.futures.is_some_and(|chosen| *after < chosen.after);
        let verdict = if fewer { "fewer_futures" } else { "later_in_order" };
        let memory = slot_memory(gpu.view, Some(*slot));
        rows.push(row(gpu.view, Some(*slot), memory, verdict, Some(*after)));
    }
    let left = 1 + ALTERNATIVES_MAX - rows.len();
    let alternatives = alternatives.take(left);
    rows.extend(
        alternatives
            .map(|(gpu, alternative)| of_offer(gpu.view, alternative, behind(alternative, chosen))),
    );
    rows
}

fn behind(alternative: &Offer, chosen: &Offer) -> &'static str {
    if alternative.rank.memory > chosen.rank.memory {
        "larger_than_needed"
    } else if alternative.rank.way > chosen.rank.way {
        "needs_repartition"
    } else if alternative.rank.lost_futures > chosen.rank.lost_futures {
        "fewer_futures"
    } else {
        "later_in_order"
    }
}

fn of_offer(gpu: &GpuView, offer: &Offer, verdict: &'static str) -> PlacementCandidate {
    let after = offer.futures.map(|futures| futures.after);
    row(gpu, offer.slot, offer.rank.memory, verdict, after)
}

pub(crate) fn row(
    gpu: &GpuView,
    slot: Option<Slot>,
    memory: Bytes,
    verdict: &'static str,
    reachability_after: Option<usize>,
) -> PlacementCandidate {
    PlacementCandidate {
        gpu: gpu.id.clone(),
        node: gpu.node.clone(),
        gpu_index: gpu.index,
        profile: profile_name(gpu, slot).to_owned(),
        start: slot.map(|slot| slot.start),
        memory,
        chosen: verdict == "chosen",
        verdict: verdict.to_owned(),
        reachability_after: reachability_after.map(saturating_u32),
    }
}

/// Verdicts on GPUs that can't hold a job now, ordered by how close they are to a start.
const VERDICTS: [&str; 12] = [
    "changing",
    "leaving",
    "busy",
    "other_user",
    "pinned",
    "cut",
    "stuck",
    "foreign",
    "quarantined",
    "too_small",
    "drained",
    "unavailable",
];

/// The candidates of a waiting job, and how many were left out.
pub(crate) fn of_wait<'g, 'c: 'g>(
    gpus: impl Iterator<Item = (&'g WorkingGpu<'c>, &'static str)>,
    size: &NumberedRequest,
) -> (Vec<PlacementCandidate>, u32) {
    let mut gpus: Vec<_> = gpus.collect();
    gpus.sort_by_key(|(_, verdict)| VERDICTS.iter().position(|known| known == verdict));
    let left_out = saturating_u32(gpus.len().saturating_sub(CANDIDATES_MAX));
    let rows = gpus.into_iter().take(CANDIDATES_MAX).map(|(gpu, verdict)| {
        let (profile, memory) = tight_fit(gpu.view, size);
        PlacementCandidate { profile, ..row(gpu.view, None, memory, verdict, None) }
    });
    (rows.collect(), left_out)
}

/// Returns what keeps a GPU from holding a request now.
pub(crate) fn verdict<R: Rule>(
    rule: &mut R,
    gpu: &WorkingGpu<'_>,
    size: &NumberedRequest,
) -> &'static str {
    if !gpu.view.available {
        away(gpu.view)
    } else if rule.future_fit(gpu, size) != FutureFit::Possible {
        in_the_way(gpu)
    } else if offers_once_changed(rule, gpu, size) {
        "changing"
    } else if offers_once_unpinned(rule, gpu, size) {
        "pinned"
    } else {
        taken(gpu, size)
    }
}

/// Returns what has the slices of a GPU that a request could have later.
fn taken(gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> &'static str {
    let busy = || gpu.instances.iter().map(|instance| &instance.state).filter(|state| state.busy());
    if busy().any(|state| *state == InstanceState::Leaving) {
        return "leaving";
    }
    let SliceRequest::Shared(sharer) = &size.request else { return "busy" };
    let is_of_another = |state: &InstanceState| match state {
        InstanceState::Shared(tenancy) => tenancy.user != sharer.user,
        _ => false,
    };
    // A job by itself on a slice ends, and then anybody may share it.
    if busy().next().is_some() && busy().all(is_of_another) { "other_user" } else { "busy" }
}

/// Explains why a GPU is not available.
pub(crate) fn away(gpu: &GpuView) -> &'static str {
    gpu.operator.closed.as_ref().map_or("unavailable", |closed| closed.how.word())
}

/// Returns the obstacle on a GPU that can't hold a request even when its jobs end.
pub(crate) fn in_the_way(gpu: &WorkingGpu<'_>) -> &'static str {
    let any = |state: &InstanceState| gpu.instances.iter().any(|i| i.state == *state);
    if any(&InstanceState::Stuck) {
        "stuck"
    } else if any(&InstanceState::Quarantined) {
        "quarantined"
    } else if any(&InstanceState::Foreign) {
        "foreign"
    } else if gpu.instances.iter().any(|i| matches!(i.state, InstanceState::Cut(_))) {
        "cut"
    } else if gpu.view.operator.pinned.is_some() {
        "pinned"
    } else {
        "too_small"
    }
}

/// Returns whether a GPU whose layout is being changed would have an offer without the change.
pub(crate) fn offers_once_changed<R: Rule>(
    rule: &mut R,
    gpu: &WorkingGpu<'_>,
    size: &NumberedRequest,
) -> bool {
    if !gpu.view.changing {
        return false;
    }
    let settled = GpuView { changing: false, ..gpu.view.clone() };
    sharing::best_offer(rule, &WorkingGpu { view: &settled, ..gpu.clone() }, size).is_some()
}

/// Returns whether a GPU with a pinned layout would have an offer if it were not pinned.
fn offers_once_unpinned<R: Rule>(
    rule: &mut R,
    gpu: &WorkingGpu<'_>,
    size: &NumberedRequest,
) -> bool {
    if gpu.view.operator.pinned.is_none() {
        return false;
    }
    let operator = AdminOverride { pinned: None, ..gpu.view.operator.clone() };
    let open = GpuView { operator, ..gpu.view.clone() };
    sharing::best_offer(rule, &WorkingGpu { view: &open, ..gpu.clone() }, size).is_some()
}
