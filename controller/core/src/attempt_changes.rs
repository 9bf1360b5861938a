//! The parts of the state that change during an attempt's life, from its reservation to its end.

use crate::round::{JobWrites, RoundEffect};
use crate::state::accounting::Accounting;
use crate::state::attempts::AttemptTable;
use crate::state::inventory::NodeInventory;
use crate::state::migrations::Migrations;
use crate::state::predictions::Predictions;
use crate::state::queue::JobQueue;
use crate::state::watches::MemoryWatches;
use tessera_model::Millis;

/// The owners that change when attempts begin and end, with their rows of a round. Nodes can only
/// be read. Layouts, overrides and the policy can't be accessed.
pub(crate) struct AttemptChanges<'r> {
    pub(crate) attempts: &'r mut AttemptTable,
    pub(crate) queue: &'r mut JobQueue,
    pub(crate) migrations: &'r mut Migrations,
    pub(crate) accounting: &'r mut Accounting,
    pub(crate) predictions: &'r mut Predictions,
    pub(crate) watches: &'r mut MemoryWatches,
    pub(crate) inventory: &'r NodeInventory,
    pub(crate) jobs: &'r mut JobWrites,
    pub(crate) effects: &'r mut Vec<RoundEffect>,
    /// The time of the round, for the users' accounts.
    pub(crate) round_at: Millis,
    /// The time of the round on the wall clock, to decide which nodes are permanently lost.
    pub(crate) unix: Millis,
}
