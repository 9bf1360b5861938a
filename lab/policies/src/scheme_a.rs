//! `scheme-a`: by size. A GPU is partitioned into slices of one size until no job of that size
//! waits, and then into slices of the next size.
//!
//! Source: MIGM, scheme A: sort by memory, cut the whole GPU into slices of the smallest size that
//! is needed, run all jobs of that size, reconfigure. It is a scheme for batches: it reorders, and
//! where jobs keep arriving, small ones always overtake large ones. Where it had to choose:
//!
//! - Jobs are placed on the slice that becomes idle first. On the mix Ml3, whose slices are a 4g
//!   and a 3g, that gains 1.40 instead of the 1.24 of the paper, which splits a class evenly by
//!   count.
//! - Several GPUs: each takes jobs of the one size that runs on it; an empty one takes the
//!   smallest size that waits. So GPUs may be at different sizes.

use std::rc::Rc;

use tessera_model::{Bytes, JobId, Millis};

use tessera_placement::Policy;
use tessera_placement::decision::Decision;
use tessera_placement::offer::{FutureFit, Offer, Order, Rule};
use tessera_placement::policy::MadeToMeasure;
use tessera_placement::policy::decide_by_rule;
use tessera_placement::predictor::Knowledge;
use tessera_placement::request::{NumberedRequest, RequestNumbers, SliceRequest};
use tessera_placement::view::{ClusterView, QueuedJob};
use tessera_placement::working_state::WorkingGpu;

/// The policy `scheme-a`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchemeA;

impl Policy for SchemeA {
    fn name(&self) -> &'static str {
        OneSizePerGpu::NAME
    }

    fn needs_run_times(&self) -> bool {
        false
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut sizes = RequestNumbers::new(cluster);
        let mut sorted: Vec<(Bytes, &QueuedJob)> =
            queue.map(|job| (needs(&sizes.size(job).request), job)).collect();
        sorted.sort_by_key(|(bytes, _)| *bytes);
        let mut sorted = sorted.into_iter().map(|(_, job)| job);
        decide_by_rule(
            OneSizePerGpu::default(),
            cluster,
            knowledge.predictor,
            &mut sorted,
            starts_max,
        )
    }
}

fn needs(request: &SliceRequest) -> Bytes {
    match request {
        SliceRequest::AtLeast(bytes) => *bytes,
        SliceRequest::Shared(sharer) => sharer.share.roomy(),
        SliceRequest::Named(_)
        | SliceRequest::Whole
        | SliceRequest::Unpartitioned
        | SliceRequest::Part(_) => Bytes::new(u64::MAX),
    }
}

/// Scheme B's ways to get a placement, on GPUs without jobs of another size.
#[derive(Debug, Default)]
struct OneSizePerGpu {
    ways: MadeToMeasure,
}

impl Rule for OneSizePerGpu {
    const NAME: &'static str = "scheme-a";
    const ORDER: Order = Order::BySize;

    fn offer(&mut self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>> {
        if let Some(standing) = &gpu.layout {
            let memory = size.request.tight(standing.mig).first()?.memory;
            let other =
                |i: &&tessera_placement::view::InstanceView| i.state.busy() && i.memory != memory;
            if gpu.instances.iter().find(other).is_some() {
                return None;
            }
        }
        self.ways.offer(gpu, size)
    }

    fn future_fit(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> FutureFit {
        self.ways.future_fit(gpu, size)
    }

    fn blockers(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Vec<Vec<JobId>> {
        let by_place = self.ways.blockers(gpu, size);
        if !by_place.is_empty() {
            return by_place;
        }
        let jobs = gpu.jobs();
        if jobs.is_empty() { Vec::new() } else { vec![jobs] }
    }

    fn fragmented(&self, _gpu: &WorkingGpu<'_>, _size: &NumberedRequest) -> Option<(u32, u8)> {
        None
    }
}
