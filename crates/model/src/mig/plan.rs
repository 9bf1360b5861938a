//! The way from one layout to another that touches no busy instance.

use serde::{Deserialize, Serialize};

use super::geometry::{Geometry, IllegalLayout, Layout, Slot};

/// One driver operation of a plan. Each acts on a GPU instance together with its compute
/// instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Destroys the instance in the slot.
    Destroy(Slot),
    /// Creates an instance in the slot.
    Create(Slot),
}

/// An instance that stands on the GPU, and whether anything runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupant {
    /// Where and what.
    pub slot: Slot,
    /// Whether an attempt runs there or may start there, or another client holds it.
    pub busy: bool,
}

/// Why no plan leads to a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefused {
    /// The wanted layout can't stand on this GPU.
    #[error("the wanted layout is not legal")]
    Illegal(#[from] IllegalLayout),
    /// The wanted layout has no room for an instance that is in use.
    #[error("the instance on memory slice {} is busy and not part of the wanted layout", slot.start)]
    Busy {
        /// The instance that would have to go.
        slot: Slot,
    },
}

/// Returns the shortest list of steps from the instances that stand to `wanted`: every instance
/// that both have is left alone, the others are destroyed, then the missing ones created.
///
/// Any order of the creates is legal, since each stage is a subset of a legal layout; they go
/// by start so that a plan is reproducible.
///
/// # Errors
///
/// [`PlanRefused::Illegal`] if `wanted` can't stand, [`PlanRefused::Busy`] if it leaves out an
/// instance that is in use.
pub fn plan(
    geometry: &Geometry,
    standing: &[Occupant],
    wanted: &Layout,
) -> Result<Vec<Step>, PlanRefused> {
    geometry.check(wanted)?;
    let mut steps = Vec::new();
    for occupant in standing {
        if wanted.contains(&occupant.slot) {
            continue;
        }
        if occupant.busy {
            return Err(PlanRefused::Busy { slot: occupant.slot });
        }
        steps.push(Step::Destroy(occupant.slot));
    }
    let present = |slot: &Slot| standing.iter().any(|o| o.slot == *slot);
    steps.extend(wanted.iter().filter(|slot| !present(slot)).copied().map(Step::Create));
    Ok(steps)
}
