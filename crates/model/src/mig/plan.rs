//! The way from one layout to another that touches no busy instance: merging, splitting, or
//! cutting a whole GPU again.

use serde::{Deserialize, Serialize};

use super::compute::Cut;
use super::geometry::{Geometry, IllegalLayout, Layout, Slot};

/// One step of a plan. Each acts on a GPU instance together with its compute instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanStep {
    /// Destroys the instance in the slot.
    Destroy(Slot),
    /// Creates an instance in the slot, with one compute instance over the whole of it.
    Create(Slot),
    /// Makes the instance in the slot have exactly these compute instances, and creates it if it
    /// isn't there.
    Cut(Slot, Cut),
}

impl PlanStep {
    /// Returns the slot that it is about.
    pub const fn slot(self) -> Slot {
        match self {
            Self::Destroy(slot) | Self::Create(slot) | Self::Cut(slot, _) => slot,
        }
    }
}

/// An existing instance on the GPU, and whether anything runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceOccupant {
    /// Where and what.
    pub slot: Slot,
    /// Whether an attempt runs there or may start there, or another client holds it.
    pub busy: bool,
}

/// Why no plan leads to a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefusal {
    /// The requested layout is not possible on this GPU.
    #[error("the requested layout is not legal")]
    Illegal(#[from] IllegalLayout),
    /// The desired layout has no place for instances that are in use.
    #[error("busy instances have no place in the requested layout: {}", named(slots))]
    Busy {
        /// All of them: each has to end first.
        slots: Vec<Slot>,
    },
}

fn named(slots: &[Slot]) -> String {
    let one = |slot: &Slot| format!("profile {} on memory slice {}", slot.profile.0, slot.start);
    slots.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the shortest list of steps from the existing instances to `desired`: every instance
/// that both have is left alone, the others are destroyed, then the missing ones created.
///
/// Any order of the creates is legal, since each stage is a subset of a legal layout; they go
/// by start so that a plan is reproducible.
///
/// # Errors
///
/// [`PlanRefusal::Illegal`] if `desired` is not possible, [`PlanRefusal::Busy`] if it leaves out
/// instances that are in use.
pub fn plan(
    geometry: &Geometry,
    standing: &[InstanceOccupant],
    desired: &Layout,
) -> Result<Vec<PlanStep>, PlanRefusal> {
    geometry.check(desired)?;
    let leaving = || standing.iter().filter(|o| !desired.contains(&o.slot));
    let busy: Vec<Slot> = leaving().filter(|o| o.busy).map(|o| o.slot).collect();
    if !busy.is_empty() {
        return Err(PlanRefusal::Busy { slots: busy });
    }
    let present = |slot: &Slot| standing.iter().any(|o| o.slot == *slot);
    let destroyed = leaving().map(|o| PlanStep::Destroy(o.slot));
    let created = desired.iter().filter(|slot| !present(slot)).copied().map(PlanStep::Create);
    Ok(destroyed.chain(created).collect())
}
