//! `exclusive`: one job has one whole GPU, in turn.
//!
//! Source: the baseline of MIGM's evaluation ("the whole GPU, one job at a time") and of
//! Dyna-P's. Where the papers are silent, this policy chose:
//!
//! - Several GPUs: the one with the least memory that is enough, then one that needs no layout
//!   change, then the first in the cluster's order.
//! - A GPU with MIG on is merged to its largest profile; idle instances are destroyed for that.
//!   The job then gets that profile's memory, a little less than the card's.
//! - A job that names a profile gets a whole GPU of a model that offers the profile: it asked for
//!   that hardware, and alone on it, it has at least what the profile holds.
//! - A job that may share a slice gets a whole GPU like everyone, and nobody joins it there.
//! - A GPU on which anything stands that Tessera must not touch is left out.

use std::rc::Rc;

use tessera_model::mig::{Profile, Slot, Step};
use tessera_model::{Bytes, JobId, Millis};

use super::Policy;
use crate::board::{Gpu, Standing};
use crate::decision::Decision;
use crate::forecast::Forecast;
use crate::gangs::Manner;
use crate::round::{self, Company, Offer, Order, Outlook, Rank, Rule, Way};
use crate::view::{ClusterView, QueuedJob};
use crate::want::{Size, Want};

/// The policy `exclusive`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exclusive;

impl Policy for Exclusive {
    fn name(&self) -> &'static str {
        WholeGpu::NAME
    }

    fn asks_times(&self) -> bool {
        false
    }

    fn manner(&self) -> Manner {
        Manner::WholeGpus
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        forecast: &dyn Forecast,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        round::decide(WholeGpu, cluster, forecast, queue, starts_max)
    }
}

#[derive(Debug)]
pub(crate) struct WholeGpu;

impl Rule for WholeGpu {
    const NAME: &'static str = "exclusive";
    const ORDER: Order = Order::InTurn;
    const JOINS: bool = false;

    fn offer(&mut self, gpu: &Gpu<'_>, size: &Size) -> Option<Rc<Offer>> {
        if gpu.instances.iter().any(|i| i.state.busy()) {
            return None;
        }
        match &gpu.layout {
            Some(standing) => merged(gpu, standing, size),
            None => unpartitioned(gpu, size),
        }
        .map(Rc::new)
    }

    fn outlook(&self, gpu: &Gpu<'_>, size: &Size) -> Outlook {
        let holds = match &gpu.layout {
            Some(standing) => target(standing, &size.want).is_some(),
            None => {
                gpu.unpartitioned().is_some_and(|whole| size.want.suits_unpartitioned(whole.memory))
            }
        };
        if !holds {
            Outlook::Never
        } else if gpu.instances.iter().any(|i| i.state.fixed()) {
            Outlook::InTheWay
        } else {
            Outlook::Possible
        }
    }

    fn blockers(&self, gpu: &Gpu<'_>, _size: &Size) -> Vec<Vec<JobId>> {
        let jobs = gpu.jobs();
        if jobs.is_empty() { Vec::new() } else { vec![jobs] }
    }

    fn fragmented(&self, _gpu: &Gpu<'_>, _size: &Size) -> Option<(u32, u8)> {
        None
    }
}

/// Returns the profile that takes the whole card, if the card suits the want.
fn target<'c>(standing: &Standing<'c>, want: &Want) -> Option<&'c Profile> {
    let geometry = &standing.mig.geometry;
    let largest = geometry.largest()?;
    let enough = match want {
        Want::AtLeast(bytes) => largest.memory >= *bytes,
        Want::Named(name) => geometry.by_name(name).is_some(),
        Want::Whole => true,
        Want::Shared(sharer) => largest.memory >= sharer.share.memory(),
        Want::Part(_) => false,
    };
    enough.then_some(largest)
}

fn merged(gpu: &Gpu<'_>, standing: &Standing<'_>, size: &Size) -> Option<Offer> {
    let largest = target(standing, &size.want)?;
    let slot = Slot { start: *largest.starts.first()?, profile: largest.id };
    let layout = standing.mig.all().layout(standing.all);
    let mut steps: Vec<Step> =
        layout.iter().filter(|other| **other != slot).copied().map(Step::Destroy).collect();
    if !layout.contains(&slot) {
        steps.push(Step::Create(slot));
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

fn unpartitioned(gpu: &Gpu<'_>, size: &Size) -> Option<Offer> {
    let whole = gpu.unpartitioned()?;
    let suits = size.want.suits_unpartitioned(whole.memory);
    suits.then(|| Offer { rank: rank(whole.memory, Way::Idle), ..offer(None, Vec::new()) })
}

const fn rank(memory: Bytes, way: Way) -> Rank {
    Rank { company: Company::Alone, memory, way, compute_slices: 0, lost_futures: 0 }
}

const fn offer(slot: Option<Slot>, steps: Vec<Step>) -> Offer {
    Offer { rank: rank(Bytes::ZERO, Way::Idle), slot, steps, futures: None, others: Vec::new() }
}
