//! Policies that decide about one job after another by a rule for single GPUs.

use tessera_model::Millis;

use super::pinned::decide_by_rule;
use super::{Policy, SliceManner};
use crate::decision::Decision;
use crate::offer::Rule;
use crate::predictor::Knowledge;
use crate::view::{ClusterView, QueuedJob};

/// A policy that consists of a [`Rule`] alone: it considers only sizes and moves no running job.
pub trait ByRule: Send + Sync + std::fmt::Debug {
    /// The rule that decides for one job at a time.
    type Rule: Rule + Default;

    /// How it gets the slices for the members of gangs.
    const SLICE_MANNER: SliceManner;
}

impl<P: ByRule> Policy for P {
    fn name(&self) -> &'static str {
        P::Rule::NAME
    }

    fn needs_run_times(&self) -> bool {
        false
    }

    fn slice_manner(&self) -> SliceManner {
        P::SLICE_MANNER
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        decide_by_rule(P::Rule::default(), cluster, knowledge.predictor, queue, starts_max)
    }
}
