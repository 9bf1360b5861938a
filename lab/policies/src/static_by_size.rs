//! `static-by-size`: the layout stays as it stands, and a job waits for a slice of the size that it
//! requests, as the jobs of Dyna-P's figure 7 do.

use std::rc::Rc;

use tessera_model::{JobId, Millis};
use tessera_placement::Policy;
use tessera_placement::decision::Decision;
use tessera_placement::offer::{FutureFit, Offer, Order, Rule};
use tessera_placement::policy::SliceManner;
use tessera_placement::policy::decide_by_rule;
use tessera_placement::policy::{AsItStands, suits};
use tessera_placement::predictor::Knowledge;
use tessera_placement::request::NumberedRequest;
use tessera_placement::view::{ClusterView, QueuedJob};
use tessera_placement::working_state::WorkingGpu;

/// The policy `static-by-size`: as `static`, but a job takes no larger instance than the tightest that
/// stands on a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticBySize;

impl Policy for StaticBySize {
    fn name(&self) -> &'static str {
        TightestStanding::NAME
    }

    fn asks_times(&self) -> bool {
        false
    }

    fn slice_manner(&self) -> SliceManner {
        SliceManner::AsTheyStand
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        decide_by_rule(TightestStanding, cluster, knowledge.predictor, queue, starts_max)
    }
}

#[derive(Debug)]
struct TightestStanding;

impl Rule for TightestStanding {
    const NAME: &'static str = "static-by-size";
    const ORDER: Order = Order::BySize;

    fn offer(&mut self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>> {
        let tightest = gpu.instances.iter().filter(|i| suits(gpu, i, &size.request));
        let memory = tightest.map(|i| i.memory).min()?;
        AsItStands.offer(gpu, size).filter(|offer| offer.rank.memory == memory)
    }

    fn future_fit(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> FutureFit {
        AsItStands.future_fit(gpu, size)
    }

    fn blockers(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Vec<Vec<JobId>> {
        AsItStands.blockers(gpu, size)
    }

    fn fragmented(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<(u32, u8)> {
        AsItStands.fragmented(gpu, size)
    }
}
