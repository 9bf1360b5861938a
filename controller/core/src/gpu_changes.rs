//! The parts of the state that plans and requested layouts change.

use crate::round::{OverrideWrites, PlanWrites};
use crate::state::inventory::NodeInventory;
use crate::state::layouts::LayoutRequests;
use crate::state::overrides::OverrideTable;
use tessera_model::Millis;

/// The owners that change when GPUs get other layouts, with their rows of a round. Jobs and
/// attempts can't be accessed.
pub(crate) struct GpuChanges<'r> {
    pub(crate) inventory: &'r mut NodeInventory,
    pub(crate) layouts: &'r mut LayoutRequests,
    pub(crate) overrides: &'r mut OverrideTable,
    pub(crate) plan_writes: &'r mut PlanWrites,
    pub(crate) override_writes: &'r mut OverrideWrites,
    /// The wall clock, milliseconds since 1970.
    pub(crate) now_unix: Millis,
}
