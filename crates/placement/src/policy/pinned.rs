//! Pinned layouts: whatever the policy, it may only use their existing slices.

use std::rc::Rc;

use tessera_model::JobId;

use super::static_layout::AsItStands;
use crate::decision::Decision;
use crate::offer::{FutureFit, Offer, Order, Rule};
use crate::predictor::Predictor;
use crate::request::NumberedRequest;
use crate::round;
use crate::view::{ClusterView, QueuedJob};
use crate::working_state::WorkingGpu;

/// A policy that treats GPUs with a pinned layout like `static`, and all other GPUs as before.
#[derive(Debug)]
pub struct Pinned<R>(pub R);

fn pinned(gpu: &WorkingGpu<'_>) -> bool {
    gpu.view.operator.pinned.is_some()
}

impl<R: Rule> Rule for Pinned<R> {
    const NAME: &'static str = R::NAME;
    const ORDER: Order = R::ORDER;
    const JOINS: bool = R::JOINS;

    fn offer(&mut self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>> {
        if pinned(gpu) { AsItStands.offer(gpu, size) } else { self.0.offer(gpu, size) }
    }

    fn future_fit(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> FutureFit {
        if pinned(gpu) { AsItStands.future_fit(gpu, size) } else { self.0.future_fit(gpu, size) }
    }

    fn blockers(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Vec<Vec<JobId>> {
        if pinned(gpu) { AsItStands.blockers(gpu, size) } else { self.0.blockers(gpu, size) }
    }

    fn fragmented(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<(u32, u8)> {
        if pinned(gpu) { AsItStands.fragmented(gpu, size) } else { self.0.fragmented(gpu, size) }
    }
}

/// Decides one round by a rule; GPUs with pinned layouts keep them.
pub fn decide_by_rule<R: Rule>(
    rule: R,
    cluster: &ClusterView,
    predictor: &dyn Predictor,
    queue: &mut dyn Iterator<Item = &QueuedJob>,
    starts_max: usize,
) -> Vec<Decision> {
    round::decide(Pinned(rule), cluster, predictor, queue, starts_max)
}
