//! Which compute instances a GPU instance offers, before it exists.
//!
//! A driver lists them only for existing GPU instances, but plans are made before. If the driver
//! later refuses a step, the plan fails with the driver's message.

use super::{ComputeSlot, Cut, IllegalCut, check_sizes};

/// A size of compute instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeSize {
    /// Compute slices.
    pub slices: u8,
    /// First compute slices on which it may start, ascending. As many fit as there are starts.
    pub starts: &'static [u8],
}

const fn size(slices: u8, starts: &'static [u8]) -> ComputeSize {
    ComputeSize { slices, starts }
}

const OF_1: &[ComputeSize] = &[size(1, &[0])];
const OF_2: &[ComputeSize] = &[size(1, &[0, 1]), size(2, &[0])];
const OF_3: &[ComputeSize] = &[size(1, &[0, 1, 2]), size(2, &[0]), size(3, &[0])];
const OF_4: &[ComputeSize] = &[size(1, &[0, 1, 2, 3]), size(2, &[0, 2]), size(4, &[0])];
const OF_7: &[ComputeSize] = &[
    size(1, &[0, 1, 2, 3, 4, 5, 6]),
    size(2, &[0, 2, 4]),
    size(3, &[0, 4]),
    size(4, &[0]),
    size(7, &[0]),
];

/// Returns the compute instances that a GPU instance of `compute_slices` offers; none for a
/// number of slices that no known GPU has.
///
/// # Source
///
/// The compute-instance profiles of every known GPU, which agree (a test compares them); NVIDIA
/// MIG user guide.
pub const fn offered(compute_slices: u8) -> &'static [ComputeSize] {
    match compute_slices {
        1 => OF_1,
        2 => OF_2,
        3 => OF_3,
        4 => OF_4,
        7 => OF_7,
        _ => &[],
    }
}

/// Finds starts for compute instances of these sizes: such that all of `busy` stay, of those such
/// that the most of `standing` stay, of those the lowest.
///
/// Returns `Ok(None)` if the sizes can coexist, but not with the present starts of `busy`.
///
/// # Errors
///
/// [`IllegalCut`] if they cannot coexist at all.
pub fn arrange(
    compute_slices: u8,
    sizes: &[u8],
    standing: &Cut,
    busy: &Cut,
) -> Result<Option<Cut>, IllegalCut> {
    check_sizes(compute_slices, sizes)?;
    let mut sizes = sizes.to_vec();
    // The largest have the fewest starts.
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut all = Vec::new();
    extend(compute_slices, &sizes, Cut::default(), &mut all);
    if all.is_empty() {
        return Err(IllegalCut::DoNotFit { sizes, compute_slices });
    }
    let kept = |cut: &Cut| cut.iter().filter(|slot| standing.contains(*slot)).count();
    let fits = all.into_iter().filter(|cut| busy.iter().all(|slot| cut.contains(slot)));
    // They come in the order of their starts: among equals the first is the lowest.
    Ok(fits.first_max(kept))
}

trait FirstMax: Iterator + Sized {
    /// Returns the first of those with the largest key.
    fn first_max(self, key: impl Fn(&Self::Item) -> usize) -> Option<Self::Item> {
        self.fold(None, |best, item| match best {
            Some(best) if key(&best) >= key(&item) => Some(best),
            _ => Some(item),
        })
    }
}

impl<I: Iterator> FirstMax for I {}

/// Adds every way to place `sizes` together with `cut`; equal sizes only in ascending order of starts.
fn extend(compute_slices: u8, sizes: &[u8], cut: Cut, all: &mut Vec<Cut>) {
    let Some((slices, rest)) = sizes.split_first() else { return all.push(cut) };
    let known = offered(compute_slices).iter().find(|size| size.slices == *slices);
    let above = cut.iter().filter(|slot| slot.slices == *slices).map(|slot| slot.start + 1).max();
    for start in known.map_or(&[][..], |size| size.starts) {
        let slot = ComputeSlot { start: *start, slices: *slices };
        if *start < above.unwrap_or(0) || cut.iter().any(|other| other.overlaps(slot)) {
            continue;
        }
        let mut with = cut;
        if with.insert(slot) {
            extend(compute_slices, rest, with, all);
        }
    }
}
