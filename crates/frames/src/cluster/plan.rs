//! Layout plans: the order, and how it ends.

use serde::{Deserialize, Serialize};
use tessera_model::mig::PlanStep;
use tessera_model::{GpuId, PlanId};

/// A change of one GPU's layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanOrder {
    /// The leader's epoch.
    pub epoch: u64,
    /// Which plan: the answer names it.
    pub plan: PlanId,
    /// The GPU that it belongs to.
    pub gpu: GpuId,
    /// Higher than that of every plan before it on this GPU; older ones are refused.
    pub layout_gen: u64,
    /// What to do, in order.
    pub steps: Vec<PlanStep>,
    /// W3C trace context that the steps continue.
    pub traceparent: Option<String>,
}

/// How a layout plan ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PlanEnd {
    /// Every step was done and read back.
    Done,
    /// It stopped; the GPU's report shows what stands now.
    Failed {
        /// How many steps were done before.
        steps_done: u32,
        /// The error of the driver or the agent, as text for people.
        reason: String,
    },
    /// Nothing was touched: a newer plan was obeyed before, or the epoch is old.
    Refused {
        /// The reason, as text for people.
        reason: String,
    },
}
