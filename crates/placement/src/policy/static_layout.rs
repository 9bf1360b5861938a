//! `static`: layouts never change; a job takes the tightest idle instance.
//!
//! Source: StaCon, the fixed layout with which Dyna-P compares itself (2g.12gb, 1g.6gb, 1g.6gb on
//! an A30; Dyna-P, evaluation); one job a partition (Dyna-P, eq. 6 to 10). Where the paper doesn't
//! specify the behaviour, this policy chose:
//!
//! - **Order.** Jobs are served in the queue's order, and a job without a placement holds up only
//!   later jobs that request the same. That delays no job: as layouts never change, a later job
//!   takes an instance that no earlier waiting job could have used, then or after waiting. Dyna-P's
//!   figure 7 shows this case: at t = 30 job C waits for a 2g while 1g partitions are free.
//! - **Tightest fit.** The idle instance with the least sufficient memory, then the fewest compute
//!   slices, then the cluster's order. A larger instance than needed is accepted: no smaller one
//!   can be created, and the slice would stay idle. The laboratory's `static-by-size` differs:
//!   there a job waits for a slice of the requested size.
//! - **A whole GPU** is an instance of the largest profile, or a GPU with MIG off.
//! - **No suitable instance exists**, but another layout would have one: the job waits as
//!   `mig_fragmentation`, and holds up only later jobs that request the same.

use std::rc::Rc;

use tessera_model::JobId;

use super::{ByRule, SliceManner};
use crate::offer::{ColocationRank, FutureFit, Offer, Order, Rank, Rule, Way};
use crate::request::{NumberedRequest, SliceRequest};
use crate::sharing;
use crate::view::{InstanceState, InstanceView};
use crate::working_state::WorkingGpu;

/// The policy `static`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticLayout;

impl ByRule for StaticLayout {
    type Rule = AsItStands;
    const SLICE_MANNER: SliceManner = SliceManner::AsTheyStand;
}

/// Uses existing slices, and changes no layout.
#[derive(Debug, Default)]
pub struct AsItStands;

impl Rule for AsItStands {
    const NAME: &'static str = "static";
    const ORDER: Order = Order::BySize;

    fn offer(&mut self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>> {
        gpu.instances
            .iter()
            .filter(|instance| instance.state == InstanceState::Idle)
            .filter(|instance| suits(gpu, instance, &size.request))
            .min_by_key(|i| (preference(&size.request, i), compute_slices(gpu, i), i.slot))
            .map(|instance| {
                Rc::new(Offer {
                    rank: Rank {
                        colocation: sharing::rank_colocation(&size.request, instance.memory),
                        memory: instance.memory,
                        way: Way::Idle,
                        compute_slices: compute_slices(gpu, instance),
                        lost_futures: 0,
                    },
                    slot: instance.slot,
                    steps: Vec::new(),
                    futures: None,
                    others: Vec::new(),
                })
            })
    }

    fn future_fit(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> FutureFit {
        let mut fitting = gpu.instances.iter().filter(|i| suits(gpu, i, &size.request)).peekable();
        if fitting.peek().is_none() {
            FutureFit::OtherLayout
        } else if fitting.any(|i| !i.state.fixed()) {
            FutureFit::Possible
        } else {
            FutureFit::InTheWay
        }
    }

    fn blockers(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Vec<Vec<JobId>> {
        let fitting = gpu.instances.iter().filter(|i| suits(gpu, i, &size.request));
        fitting.map(|i| gpu.holders(i.slot)).filter(|jobs| !jobs.is_empty()).collect()
    }

    fn fragmented(&self, _gpu: &WorkingGpu<'_>, _size: &NumberedRequest) -> Option<(u32, u8)> {
        None
    }
}

/// Returns whether an instance can hold the job.
pub fn suits(gpu: &WorkingGpu<'_>, instance: &InstanceView, request: &SliceRequest) -> bool {
    let Some(slot) = instance.slot else {
        return gpu.view.mig.is_none() && request.suits_unpartitioned(instance.memory);
    };
    let Some(geometry) = gpu.view.mig.as_deref().map(|mig| &mig.geometry) else { return false };
    match request {
        SliceRequest::AtLeast(bytes) => instance.memory >= *bytes,
        SliceRequest::Named(name) => {
            geometry.profile(slot.profile).is_some_and(|p| p.name == *name)
        }
        SliceRequest::Whole => geometry.largest().is_some_and(|p| p.id == slot.profile),
        SliceRequest::Shared(sharer) => instance.memory >= sharer.share.memory(),
        SliceRequest::Part(_) | SliceRequest::Unpartitioned => false,
    }
}

/// Orders instances, the tightest first. For a sharing job it is the tightest one with space for
/// co-runners of its size, and then the largest of the others.
fn preference(request: &SliceRequest, instance: &InstanceView) -> (ColocationRank, u64) {
    let bytes = instance.memory.get();
    match sharing::rank_colocation(request, instance.memory) {
        ColocationRank::Cramped => (ColocationRank::Cramped, u64::MAX - bytes),
        colocation @ (ColocationRank::Joins | ColocationRank::Alone) => (colocation, bytes),
    }
}

fn compute_slices(gpu: &WorkingGpu<'_>, instance: &InstanceView) -> u8 {
    let mig = gpu.view.mig.as_deref();
    let profile = instance.slot.and_then(|slot| mig?.geometry.profile(slot.profile));
    profile.map_or(0, |p| p.compute_slices)
}
