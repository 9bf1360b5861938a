//! The compute instances of one GPU instance, as one small value.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum number of compute slices of a GPU instance: every known GPU has seven at most, and
/// NVML's highest profile has eight.
pub const COMPUTE_SLICES_MAX: u8 = 8;
/// As many as there are starts.
const PLACES: usize = 8;

/// One compute instance, by the compute slices of its GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ComputeSlot {
    /// First compute slice.
    pub start: u8,
    /// Compute slices.
    pub slices: u8,
}

impl ComputeSlot {
    /// Returns whether both claim a compute slice.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.start.saturating_add(other.slices)
            && other.start < self.start.saturating_add(self.slices)
    }
}

impl fmt::Display for ComputeSlot {
    /// Writes "compute slice 2", or "compute slices 0-1".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slices {
            0 | 1 => write!(f, "compute slice {}", self.start),
            more => write!(f, "compute slices {}-{}", self.start, self.start + more - 1),
        }
    }
}

/// The compute instances of one GPU instance; at most one begins on each compute slice.
///
/// [`super::check_cut`] checks whether they can coexist.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(into = "Vec<ComputeSlot>", try_from = "Vec<ComputeSlot>")]
pub struct Cut {
    /// Compute slices of the one that begins on each; zero where none does.
    slices: [u8; PLACES],
}

/// Compute instances that no GPU instance can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a compute instance of {} slices on slice {} is beyond {COMPUTE_SLICES_MAX} slices, empty, or \
     begins where another one does",
    .0.slices, .0.start
)]
pub struct NoCut(pub ComputeSlot);

impl Cut {
    /// Returns the one that covers a whole GPU instance of `compute_slices`.
    ///
    /// # Errors
    ///
    /// [`NoCut`] if no GPU instance has so many.
    pub fn whole(compute_slices: u8) -> Result<Self, NoCut> {
        let slot = ComputeSlot { start: 0, slices: compute_slices };
        let mut cut = Self::default();
        if cut.insert(slot) { Ok(cut) } else { Err(NoCut(slot)) }
    }

    /// Adds a compute instance; returns `false` if it is out of range or its start is taken.
    pub fn insert(&mut self, slot: ComputeSlot) -> bool {
        let inside = slot.start.checked_add(slot.slices).is_some_and(|e| e <= COMPUTE_SLICES_MAX);
        match self.slices.get_mut(usize::from(slot.start)) {
            Some(place) if *place == 0 && slot.slices > 0 && inside => {
                *place = slot.slices;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Removes a compute instance; returns whether it existed.
    pub fn remove(&mut self, slot: ComputeSlot) -> bool {
        let there = self.contains(slot);
        if let Some(place) = self.slices.get_mut(usize::from(slot.start)).filter(|_| there) {
            *place = 0;
        }
        there
    }

    /// Returns whether exactly this compute instance is included.
    pub fn contains(&self, slot: ComputeSlot) -> bool {
        slot.slices > 0 && self.slices.get(usize::from(slot.start)) == Some(&slot.slices)
    }

    /// Returns them by start.
    pub fn iter(&self) -> impl Iterator<Item = ComputeSlot> {
        let slots = (0_u8..).zip(self.slices).filter(|(_, slices)| *slices > 0);
        slots.map(|(start, slices)| ComputeSlot { start, slices })
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns whether there are no compute instances.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Cut> for Vec<ComputeSlot> {
    fn from(cut: Cut) -> Self {
        cut.iter().collect()
    }
}

impl TryFrom<Vec<ComputeSlot>> for Cut {
    type Error = NoCut;

    fn try_from(slots: Vec<ComputeSlot>) -> Result<Self, NoCut> {
        let mut cut = Self::default();
        match slots.into_iter().find(|slot| !cut.insert(*slot)) {
            Some(slot) => Err(NoCut(slot)),
            None => Ok(cut),
        }
    }
}

impl fmt::Display for Cut {
    /// Writes the sizes by start, as users write them: `1c+1c+2c`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, slot) in self.iter().enumerate() {
            write!(f, "{}{}c", if place == 0 { "" } else { "+" }, slot.slices)?;
        }
        Ok(())
    }
}
