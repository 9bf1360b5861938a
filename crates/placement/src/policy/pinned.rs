//! Layouts that operators keep as they are: whatever the policy, it may only use their slices.

use std::rc::Rc;

use tessera_model::JobId;

use super::static_layout::AsItStands;
use crate::board::Gpu;
use crate::round::{Offer, Order, Outlook, Rule};
use crate::want::Size;

/// A policy that treats GPUs with a pinned layout as `static` does, and all others as ever.
#[derive(Debug)]
pub(crate) struct Pinned<R>(pub(crate) R);

fn pinned(gpu: &Gpu<'_>) -> bool {
    gpu.view.operator.pinned.is_some()
}

impl<R: Rule> Rule for Pinned<R> {
    const NAME: &'static str = R::NAME;
    const ORDER: Order = R::ORDER;
    const JOINS: bool = R::JOINS;

    fn offer(&mut self, gpu: &Gpu<'_>, size: &Size) -> Option<Rc<Offer>> {
        if pinned(gpu) { AsItStands.offer(gpu, size) } else { self.0.offer(gpu, size) }
    }

    fn outlook(&self, gpu: &Gpu<'_>, size: &Size) -> Outlook {
        if pinned(gpu) { AsItStands.outlook(gpu, size) } else { self.0.outlook(gpu, size) }
    }

    fn blockers(&self, gpu: &Gpu<'_>, size: &Size) -> Vec<Vec<JobId>> {
        if pinned(gpu) { AsItStands.blockers(gpu, size) } else { self.0.blockers(gpu, size) }
    }

    fn fragmented(&self, gpu: &Gpu<'_>, size: &Size) -> Option<(u32, u8)> {
        if pinned(gpu) { AsItStands.fragmented(gpu, size) } else { self.0.fragmented(gpu, size) }
    }
}
