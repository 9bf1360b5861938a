//! MIG geometry: which instances a GPU may hold, where, and which states can follow.
//!
//! A GPU instance occupies the memory slices `start .. start + size`. Two instances may not
//! overlap, a profile may have at most `max_instances` of them, and the media engines are a
//! budget of the whole GPU. Everything here works on geometry that was **read** from a GPU
//! (or from [`catalog`], for dry runs and stand-ins); nothing is assumed of a model.
//!
//! Source: MIGM §4 (partition state machine), nvml.h (placements).

mod arrange;
mod availability;
pub mod catalog;
pub mod compute;
pub mod cost;
mod cuts;
mod desired;
mod geometry;
mod offer;
mod operation_times;
mod plan;
mod release;
mod states;
mod subsets;

pub use availability::{
    FirstOpening, InstanceUse, OccupiedInstance, ProfileAvailability, count_creatable,
    list_availability,
};
pub use cost::{predicted, predicted_over};
pub use cuts::{Cuts, cut_steps};
pub use desired::{ArrangementError, DesiredInstance, DesiredLayout};
pub use geometry::{
    Geometry, IllegalLayout, Layout, MediaEngines, Profile, ProfileId, ProfileName, Slot,
};
pub use offer::BadOffer;
pub use plan::{InstanceOccupant, PlanRefusal, PlanStep, plan};
pub use release::select_instances_to_destroy;
pub use states::{MigState, ReachabilityMeasure, StateCounts, StateSpace, TooManyPlacements};
