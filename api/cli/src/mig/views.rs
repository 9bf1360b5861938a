//! The output of `tessera mig --json`.

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
    /// How large the machine is; absent if there are too many states to list.
    pub counts: Option<StateCountsView>,
    /// `full_layouts`: `reachability` is MIGM's R, exactly. `open_placements`: the states are too
    /// many to count full layouts, and it is one more than the placements that can follow.
    pub measure: String,
    /// The layout that the counts start from.
    pub layout: Vec<SlotView>,
    /// R of that layout.
    pub reachability: u64,
    /// Every placement of a profile on offer that is legal next to it.
    pub placements: Vec<PlacementView>,
}

/// Numbers of states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct StateCountsView {
    /// Partial states, the empty one included.
    pub states: u64,
    /// Number of full layouts that differ in the placements of their instances.
    pub full_layouts: u64,
    /// Number of full layouts that differ in how many instances of each profile they have.
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
    /// Whether the allocation rule chooses it: the largest R, then the highest start.
    pub best: bool,
}

/// The results of legality steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct LegalityReport {
    /// Key of the GPU model.
    pub model: String,
    /// Whether every step had the expected result.
    pub ok: bool,
    /// The cases; each starts on an empty GPU.
    pub cases: Vec<CaseReport>,
    /// Number of cases in the file that are for other GPUs and were skipped.
    pub skipped: u64,
}

/// The result of one case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CaseReport {
    /// Its name in the file.
    pub id: String,
    /// Its description.
    pub what: Option<String>,
    /// Whether every step had the expected result.
    pub ok: bool,
    pub steps: Vec<StepReport>,
    /// The final layout.
    pub layout: Vec<SlotView>,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct StepReport {
    /// Name of the profile.
    pub profile: String,
    /// The requested start; any if absent. For a compute instance: in compute slices.
    pub start: Option<u8>,
    /// For a compute instance: the start of its GPU instance.
    pub within: Option<u8>,
    /// Whether the file expects it to be legal.
    pub expected: bool,
    /// Whether it is legal.
    pub legal: bool,
    /// The start of the new instance.
    pub placed_at: Option<u8>,
    /// Why it is not legal.
    pub reason: Option<String>,
}

impl StepReport {
    /// Returns whether the result is the expected one.
    pub const fn is_expected(&self) -> bool {
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

/// The compute instances that GPU instances of a model can be split into.
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
    /// Its name in jobs and layouts.
    pub name: String,
    /// The profile of its GPU instance.
    pub profile: String,
    pub compute_slices: u8,
    /// First compute slices of the GPU instance on which it may start; as many instances fit.
    pub starts: Vec<u8>,
    /// Its share of the common memory for accounting.
    pub memory_bytes: u64,
}
