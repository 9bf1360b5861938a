//! `exclusive`: each job has one whole GPU, in the queue's order.
//!
//! Source: the baseline of MIGM's evaluation ("the whole GPU, one job at a time") and of
//! Dyna-P's. Where the papers don't specify the behaviour, this policy chose:
//!
//! - Several GPUs: the GPU with the least sufficient memory, then one that needs no layout plan,
//!   then the first in the cluster's order.
//! - A GPU with MIG on is merged to its largest profile; idle instances are destroyed for that.
//!   The job then gets that profile's memory, a little less than the GPU's.
//! - A job that names a profile gets a whole GPU of a model that offers the profile. It requested
//!   that hardware, and alone on the GPU it has at least the profile's resources.
//! - A job that may share a slice gets a whole GPU like any other job, and no job joins it.
//! - A GPU with an instance that Tessera must not touch is left out.

use std::rc::Rc;

use tessera_model::mig::{PlanStep, Profile, Slot};
use tessera_model::{Bytes, JobId};

use super::{ByRule, SliceManner};
use crate::offer::{ColocationRank, FutureFit, Offer, Order, Rank, Rule, Way};
use crate::request::{NumberedRequest, SliceRequest};
use crate::working_state::{GpuLayout, WorkingGpu};

/// The policy `exclusive`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exclusive;

impl ByRule for Exclusive {
    type Rule = WholeGpu;
    const SLICE_MANNER: SliceManner = SliceManner::WholeGpus;
}

/// Gives each job a GPU without other jobs.
#[derive(Debug, Default)]
pub struct WholeGpu;

impl Rule for WholeGpu {
    const NAME: &'static str = "exclusive";
    const ORDER: Order = Order::Queue;
    const JOINS: bool = false;

    fn offer(&mut self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>> {
        if gpu.instances.iter().any(|i| i.state.busy()) {
            return None;
        }
        match &gpu.layout {
            Some(standing) => merged(gpu, standing, size),
            None => unpartitioned(gpu, size),
        }
        .map(Rc::new)
    }

    fn future_fit(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> FutureFit {
        let holds = match &gpu.layout {
            Some(standing) => target(standing, &size.request).is_some(),
            None => gpu
                .unpartitioned()
                .is_some_and(|whole| size.request.suits_unpartitioned(whole.memory)),
        };
        if !holds {
            FutureFit::Never
        } else if gpu.instances.iter().any(|i| i.state.fixed()) {
            FutureFit::InTheWay
        } else {
            FutureFit::Possible
        }
    }

    fn blockers(&self, gpu: &WorkingGpu<'_>, _size: &NumberedRequest) -> Vec<Vec<JobId>> {
        let jobs = gpu.jobs();
        if jobs.is_empty() { Vec::new() } else { vec![jobs] }
    }

    fn fragmented(&self, _gpu: &WorkingGpu<'_>, _size: &NumberedRequest) -> Option<(u32, u8)> {
        None
    }
}

/// Returns the profile that takes the whole GPU, if the GPU suits the request.
fn target<'c>(standing: &GpuLayout<'c>, request: &SliceRequest) -> Option<&'c Profile> {
    let geometry = &standing.mig.geometry;
    let largest = geometry.largest()?;
    let enough = match request {
        SliceRequest::AtLeast(bytes) => largest.memory >= *bytes,
        SliceRequest::Named(name) => geometry.by_name(name).is_some(),
        SliceRequest::Whole => true,
        SliceRequest::Shared(sharer) => largest.memory >= sharer.share.memory(),
        SliceRequest::Part(_) | SliceRequest::Unpartitioned => false,
    };
    enough.then_some(largest)
}

fn merged(gpu: &WorkingGpu<'_>, standing: &GpuLayout<'_>, size: &NumberedRequest) -> Option<Offer> {
    let largest = target(standing, &size.request)?;
    let slot = Slot { start: *largest.starts.first()?, profile: largest.id };
    let layout = standing.mig.all().layout(standing.all);
    let mut steps: Vec<PlanStep> =
        layout.iter().filter(|other| **other != slot).copied().map(PlanStep::Destroy).collect();
    if !layout.contains(&slot) {
        steps.push(PlanStep::Create(slot));
    }
    if gpu.view.changing && !steps.is_empty() {
        return None;
    }
    let way = match (steps.is_empty(), layout.is_empty()) {
        (true, _) => Way::Idle,
        (false, true) => Way::Create,
        (false, false) => Way::Rearrange,
    };
    Some(Offer { rank: rank(largest.memory, way), ..offer(Some(slot), steps) })
}

fn unpartitioned(gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Offer> {
    let whole = gpu.unpartitioned()?;
    let suits = size.request.suits_unpartitioned(whole.memory);
    suits.then(|| Offer { rank: rank(whole.memory, Way::Idle), ..offer(None, Vec::new()) })
}

const fn rank(memory: Bytes, way: Way) -> Rank {
    Rank { colocation: ColocationRank::Alone, memory, way, compute_slices: 0, lost_futures: 0 }
}

const fn offer(slot: Option<Slot>, steps: Vec<PlanStep>) -> Offer {
    Offer { rank: rank(Bytes::ZERO, Way::Idle), slot, steps, futures: None, others: Vec::new() }
}
