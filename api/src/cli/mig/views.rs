//! What `tessera mig --json` prints.

use serde::Serialize;
use tessera_model::mig::{Geometry, Layout, Slot};
use utoipa::ToSchema;

/// The partition state machine of a GPU model with some profiles on offer, seen from one layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct StateReport {
    /// Key of the GPU model.
    pub model: String,
    /// Memory slices of the GPU.
    pub memory_slices: u8,
    /// The profiles on offer, as the driver lists them.
    pub profiles: Vec<String>,
    /// How large the machine is; absent where the states are too many to list.
    pub counts: Option<StateCounts>,
    /// `full_layouts`: `reachability` is MIGM's R, exactly. `open_placements`: the states are too
    /// many to count full layouts, and it is one more than the placements that can follow.
    pub measure: String,
    /// The layout that is looked from.
    pub layout: Vec<SlotView>,
    /// R of that layout.
    pub reachability: u64,
    /// Every placement of a profile on offer that is legal beside it.
    pub placements: Vec<PlacementView>,
}

/// Numbers of states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct StateCounts {
    /// Partial states, the empty one included.
    pub states: u64,
    /// Full layouts, told apart by the places of their instances.
    pub full_layouts: u64,
    /// Full layouts, told apart by how many instances of each profile they have.
    pub multisets: u64,
}

/// An instance's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SlotView {
    /// Name of its profile.
    pub profile: String,
    /// First memory slice.
    pub start: u8,
    /// Memory slices.
    pub size: u8,
}

/// A placement that can follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct PlacementView {
    /// Name of its profile.
    pub profile: String,
    /// First memory slice.
    pub start: u8,
    /// Memory slices.
    pub size: u8,
    /// R of the layout with it.
    pub reachability: u64,
    /// Whether the allocation rule takes it: the largest R, of equals the highest start.
    pub best: bool,
}

/// How legality steps went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct LegalityReport {
    /// Key of the GPU model.
    pub model: String,
    /// Whether every step went as it says.
    pub ok: bool,
    /// The cases, each begun on an empty GPU.
    pub cases: Vec<CaseReport>,
    /// Cases of the file that are for other GPUs and were left out.
    pub skipped: u64,
}

/// How one case went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CaseReport {
    /// Its name in the file.
    pub id: String,
    /// What it is about.
    pub what: Option<String>,
    /// Whether every step went as it says.
    pub ok: bool,
    /// The steps.
    pub steps: Vec<StepReport>,
    /// What stands at the end.
    pub layout: Vec<SlotView>,
}

/// How one step went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct StepReport {
    /// Name of the profile.
    pub profile: String,
    /// The start that was asked for; absent: any. Of a compute instance: in compute slices.
    pub start: Option<u8>,
    /// For a compute instance: the start of its GPU instance.
    pub within: Option<u8>,
    /// Whether the file says that it is legal.
    pub expected: bool,
    /// Whether it is.
    pub legal: bool,
    /// Where the instance stands now.
    pub placed_at: Option<u8>,
    /// Why it is not legal.
    pub reason: Option<String>,
}

impl StepReport {
    /// Tells whether it went as the file says.
    pub const fn as_expected(&self) -> bool {
        self.expected == self.legal
    }
}

impl SlotView {
    /// Names a slot as people do.
    pub fn of(geometry: &Geometry, slot: Slot) -> Self {
        let profile = geometry.profile(slot.profile);
        let name = profile.map_or_else(|| slot.profile.0.to_string(), |p| p.name.to_string());
        let size = profile.map_or(0, |p| p.memory_slices);
        Self { profile: name, start: slot.start, size }
    }

    /// Names every slot of a layout.
    pub fn all(geometry: &Geometry, layout: &Layout) -> Vec<Self> {
        layout.iter().map(|slot| Self::of(geometry, *slot)).collect()
    }
}

/// The compute instances that GPU instances of a model can be cut into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CutReport {
    /// Key of the GPU model.
    pub model: String,
    /// Every kind of compute instance, by profile.
    pub cuts: Vec<CutView>,
}

/// A kind of compute instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CutView {
    /// Its name, as jobs and layouts write it.
    pub name: String,
    /// The profile of its GPU instance.
    pub profile: String,
    /// Compute slices.
    pub compute_slices: u8,
    /// First compute slices of the GPU instance on which it may start; as many fit.
    pub starts: Vec<u8>,
    /// What is counted for it of the memory that all of them hold together.
    pub memory_bytes: u64,
}
