//! Decides what happens when a job runs out of GPU memory: a separate verdict, which uses up no
//! retry.
//!
//! The next size is decided at the end of the attempt and committed in the same transaction. So no
//! leader gives a job a size that it ran out of, even after a crash.

use crate::LaunchSpec;
use crate::rows::submitted::OwnMemory;
use crate::rows::transitions::OutOfMemoryRow;
use crate::state::inventory::{GpuState, NodeInventory};
use tessera_model::sizing::AfterOutOfMemory;
use tessera_model::{Bytes, Millis};

/// How long a node has to be lost before its slices no longer count as possible sizes. A day allows
/// for a repair.
pub(crate) const GONE_AFTER: Millis = Millis::from_secs(24 * 3_600);

/// Returns whether a GPU is permanently gone: its node reports without it, or was lost long ago.
fn is_gone(inventory: &NodeInventory, gpu: &GpuState, unix: Millis) -> bool {
    let Some(node) = inventory.nodes.get(&gpu.node) else { return true };
    let lost_long_ago = node.lost && unix > node.last_seen_unix.plus(GONE_AFTER);
    lost_long_ago || (node.is_ready() && !gpu.fresh)
}

/// Decides what follows for a job that ran out of `had`. It needs `refused` at least: what its last request would have
/// led to.
pub(crate) fn after_out_of_memory(
    inventory: &NodeInventory,
    launch_spec: &LaunchSpec,
    (had, refused): (Bytes, Bytes),
    unix: Millis,
) -> AfterOutOfMemory {
    let shape = launch_spec.gang.map(|member| member.shape);
    let largest = inventory.largest_size(shape, |gpu| !is_gone(inventory, gpu, unix));
    let own = launch_spec.own;
    let at_least = own.at_least.max(Some(refused).filter(|refused| *refused > had));
    launch_spec.spec.oom_policy().after_out_of_memory(had, own.events, at_least, largest)
}

/// Returns what a job's own attempts showed about its memory, with its last event if it was such an
/// event.
pub(crate) fn own_after(own: OwnMemory, event: Option<OutOfMemoryRow>) -> OwnMemory {
    match event {
        None => own,
        Some(event) => {
            OwnMemory { events: own.events.saturating_add(1), at_least: event.at_least, ..own }
        }
    }
}

/// Adds the consequence to the sentence about an attempt's end.
pub(crate) fn add_reason(detail: &mut String, after: &AfterOutOfMemory) {
    if !detail.is_empty() {
        detail.push_str("; ");
    }
    detail.push_str(&after.reason.text());
}
