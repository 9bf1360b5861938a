//! `static-by-size`: the layout never changes, and a job waits for a slice of the requested size,
//! like the jobs of Dyna-P's figure 7.

use std::rc::Rc;

use tessera_model::JobId;
use tessera_placement::offer::{FutureFit, Offer, Order, Rule};
use tessera_placement::policy::{AsItStands, ByRule, SliceManner, suits};
use tessera_placement::request::NumberedRequest;
use tessera_placement::working_state::WorkingGpu;

/// The policy `static-by-size`: like `static`, but a job takes no larger instance than the tightest
/// one that exists on a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticBySize;

impl ByRule for StaticBySize {
    type Rule = TightestStanding;
    const SLICE_MANNER: SliceManner = SliceManner::AsTheyStand;
}

/// Offers no larger instance than the tightest one that exists on a GPU.
#[derive(Debug, Default)]
pub struct TightestStanding;

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
