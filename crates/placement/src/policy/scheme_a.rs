//! `scheme-a`: by size. A GPU is cut into slices of one size until no job of that size waits; then
//! it goes on to the next.
//!
//! Source: MIGM, scheme A: sort by memory, cut the whole GPU into slices of the smallest size that
//! is needed, run all jobs of that size, reconfigure. It is a scheme for batches: it reorders, and
//! where jobs keep arriving, small ones pass large ones for ever. Where it had to choose:
//!
//! - Jobs go to whichever slice falls idle first: on the mix Ml3, whose slices are a 4g and a 3g, that
//!   gains 1.40 instead of the 1.24 of the paper, which splits a class evenly by count.
//! - Several GPUs: each takes jobs of the one size that runs on it; an empty one takes the
//!   smallest size that waits. So GPUs may be at different sizes.

use std::rc::Rc;

use tessera_model::{Bytes, JobId, Millis};

use super::Policy;
use super::scheme_b::MadeToMeasure;
use crate::board::Gpu;
use crate::decision::Decision;
use crate::forecast::Forecast;
use crate::round::{self, Offer, Order, Outlook, Rule};
use crate::view::{ClusterView, QueuedJob};
use crate::want::{Size, Sizes, Want};

/// The policy `scheme-a`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchemeA;

impl Policy for SchemeA {
    fn name(&self) -> &'static str {
        OneSize::NAME
    }

    fn asks_times(&self) -> bool {
        false
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        forecast: &dyn Forecast,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut sizes = Sizes::new(cluster);
        let mut sorted: Vec<(Bytes, &QueuedJob)> =
            queue.map(|job| (needs(&sizes.size(job).want), job)).collect();
        sorted.sort_by_key(|(bytes, _)| *bytes);
        let mut sorted = sorted.into_iter().map(|(_, job)| job);
        round::decide(OneSize::default(), cluster, forecast, &mut sorted, starts_max)
    }
}

fn needs(want: &Want) -> Bytes {
    match want {
        Want::AtLeast(bytes) => *bytes,
        Want::Shared(sharer) => sharer.share.roomy(),
        Want::Named(_) | Want::Whole | Want::Part(_) => Bytes::new(u64::MAX),
    }
}

/// Scheme B's ways to a place, on GPUs where nothing of another size runs.
#[derive(Debug, Default)]
struct OneSize {
    ways: MadeToMeasure,
}

impl Rule for OneSize {
    const NAME: &'static str = "scheme-a";
    const ORDER: Order = Order::BySize;

    fn offer(&mut self, gpu: &Gpu<'_>, size: &Size) -> Option<Rc<Offer>> {
        if let Some(standing) = &gpu.layout {
            let memory = size.want.tight(standing.mig).first()?.memory;
            let other = |i: &&crate::view::InstanceView| i.state.busy() && i.memory != memory;
            if gpu.instances.iter().find(other).is_some() {
                return None;
            }
        }
        self.ways.offer(gpu, size)
    }

    fn outlook(&self, gpu: &Gpu<'_>, size: &Size) -> Outlook {
        self.ways.outlook(gpu, size)
    }

    fn blockers(&self, gpu: &Gpu<'_>, size: &Size) -> Vec<Vec<JobId>> {
        let by_place = self.ways.blockers(gpu, size);
        if !by_place.is_empty() {
            return by_place;
        }
        let jobs = gpu.jobs();
        if jobs.is_empty() { Vec::new() } else { vec![jobs] }
    }

    fn fragmented(&self, _gpu: &Gpu<'_>, _size: &Size) -> Option<(u32, u8)> {
        None
    }
}
