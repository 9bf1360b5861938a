//! `static`: the layout stays as it stands; a job takes the tightest idle instance.
//!
//! Source: StaCon, the fixed layout that Dyna-P measures itself against (2g.12gb, 1g.6gb, 1g.6gb
//! on an A30; Dyna-P, evaluation); one job a partition (Dyna-P, eq. 6 to 10). Where the paper is
//! silent, this policy chose:
//!
//! - **Order.** Jobs are served in the queue's order, and a job that finds nothing holds up only
//!   those that ask for the same. That delays nobody: as layouts never change, what a later job
//!   takes is an instance that no earlier waiting job could have used, then or after waiting.
//!   Dyna-P's figure 7 has the case: at t = 30 job C waits for a 2g while 1g partitions are free.
//! - **Tightest fit.** The idle instance with the least memory that is enough, then the fewest
//!   compute slices, then the cluster's order. A larger one than needed is accepted: nothing
//!   smaller can be made here, and the slice would stand idle. `static-by-size` doesn't: there a
//!   job waits for a slice of the size that it wants, as the jobs of Dyna-P's figure 7 do.
//! - **A whole GPU** is an instance of the largest profile, or a GPU with MIG off.
//! - **No such instance anywhere**, though another layout would have one: the job waits as
//!   `mig_fragmentation`, and holds up only those that ask for the same.

use std::rc::Rc;

use tessera_model::{JobId, Millis};

use super::Policy;
use crate::board::Gpu;
use crate::decision::Decision;
use crate::forecast::Forecast;
use crate::gangs::Manner;
use crate::round::{self, Company, Offer, Order, Outlook, Rank, Rule, Way};
use crate::sharing;
use crate::view::{ClusterView, InstanceState, InstanceView, QueuedJob};
use crate::want::{Size, Want};

/// The policy `static`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticLayout;

impl Policy for StaticLayout {
    fn name(&self) -> &'static str {
        AsItStands::NAME
    }

    fn asks_times(&self) -> bool {
        false
    }

    fn manner(&self) -> Manner {
        Manner::AsTheyStand
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        forecast: &dyn Forecast,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        round::decide(AsItStands, cluster, forecast, queue, starts_max)
    }
}

/// Uses the slices that stand, and changes no layout.
#[derive(Debug)]
pub(crate) struct AsItStands;

impl Rule for AsItStands {
    const NAME: &'static str = "static";
    const ORDER: Order = Order::BySize;

    fn offer(&mut self, gpu: &Gpu<'_>, size: &Size) -> Option<Rc<Offer>> {
        gpu.instances
            .iter()
            .filter(|instance| instance.state == InstanceState::Idle)
            .filter(|instance| suits(gpu, instance, &size.want))
            .min_by_key(|i| (preference(&size.want, i), compute_slices(gpu, i), i.slot))
            .map(|instance| {
                Rc::new(Offer {
                    rank: Rank {
                        company: sharing::company(&size.want, instance.memory),
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

    fn outlook(&self, gpu: &Gpu<'_>, size: &Size) -> Outlook {
        let mut fitting = gpu.instances.iter().filter(|i| suits(gpu, i, &size.want)).peekable();
        if fitting.peek().is_none() {
            Outlook::OtherLayout
        } else if fitting.any(|i| !i.state.fixed()) {
            Outlook::Possible
        } else {
            Outlook::InTheWay
        }
    }

    fn blockers(&self, gpu: &Gpu<'_>, size: &Size) -> Vec<Vec<JobId>> {
        let fitting = gpu.instances.iter().filter(|i| suits(gpu, i, &size.want));
        fitting.map(|i| gpu.holders(i.slot)).filter(|jobs| !jobs.is_empty()).collect()
    }

    fn fragmented(&self, _gpu: &Gpu<'_>, _size: &Size) -> Option<(u32, u8)> {
        None
    }
}

/// The policy `static-by-size`: as `static`, but a job takes no larger instance than the tightest that
/// stands on a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticBySize;

impl Policy for StaticBySize {
    fn name(&self) -> &'static str {
        BySize::NAME
    }

    fn asks_times(&self) -> bool {
        false
    }

    fn manner(&self) -> Manner {
        Manner::AsTheyStand
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        forecast: &dyn Forecast,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        round::decide(BySize, cluster, forecast, queue, starts_max)
    }
}

#[derive(Debug)]
struct BySize;

impl Rule for BySize {
    const NAME: &'static str = "static-by-size";
    const ORDER: Order = Order::BySize;

    fn offer(&mut self, gpu: &Gpu<'_>, size: &Size) -> Option<Rc<Offer>> {
        let tightest = gpu.instances.iter().filter(|i| suits(gpu, i, &size.want));
        let memory = tightest.map(|i| i.memory).min()?;
        AsItStands.offer(gpu, size).filter(|offer| offer.rank.memory == memory)
    }

    fn outlook(&self, gpu: &Gpu<'_>, size: &Size) -> Outlook {
        AsItStands.outlook(gpu, size)
    }

    fn blockers(&self, gpu: &Gpu<'_>, size: &Size) -> Vec<Vec<JobId>> {
        AsItStands.blockers(gpu, size)
    }

    fn fragmented(&self, gpu: &Gpu<'_>, size: &Size) -> Option<(u32, u8)> {
        AsItStands.fragmented(gpu, size)
    }
}

fn suits(gpu: &Gpu<'_>, instance: &InstanceView, want: &Want) -> bool {
    let Some(slot) = instance.slot else {
        return gpu.view.mig.is_none() && want.suits_unpartitioned(instance.memory);
    };
    let Some(geometry) = gpu.view.mig.as_deref().map(|mig| &mig.geometry) else { return false };
    match want {
        Want::AtLeast(bytes) => instance.memory >= *bytes,
        Want::Named(name) => geometry.profile(slot.profile).is_some_and(|p| p.name == *name),
        Want::Whole => geometry.largest().is_some_and(|p| p.id == slot.profile),
        Want::Shared(sharer) => instance.memory >= sharer.share.memory(),
        Want::Part(_) => false,
    }
}

/// The tightest instance first; for a sharer the tightest on which its likes fit beside it, then
/// the largest of the others.
fn preference(want: &Want, instance: &InstanceView) -> (Company, u64) {
    let bytes = instance.memory.get();
    match sharing::company(want, instance.memory) {
        Company::Cramped => (Company::Cramped, u64::MAX - bytes),
        company @ (Company::Joins | Company::Alone) => (company, bytes),
    }
}

fn compute_slices(gpu: &Gpu<'_>, instance: &InstanceView) -> u8 {
    let mig = gpu.view.mig.as_deref();
    let profile = instance.slot.and_then(|slot| mig?.geometry.profile(slot.profile));
    profile.map_or(0, |p| p.compute_slices)
}
