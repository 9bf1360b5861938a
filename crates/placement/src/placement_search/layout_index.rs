//! The full layouts of one GPU model, with their slots numbered: with it a search compares all of
//! them without sets and without allocating memory for each.

use std::collections::BTreeSet;

use tessera_model::mig::{Layout, ProfileId, Slot};

use super::buffers::{SearchBuffers, UNASSIGNED};
use super::halves::Halves;
use super::{JOBS_MAX, JobCoverage};

/// The score of a slot in which a job can't be.
///
/// It is so low that no sum of other scores reaches it, and so high that sums with it don't
/// overflow.
pub const NO_PLACEMENT: i64 = -(1 << 58);

/// Full layouts over numbered slots.
#[derive(Debug, Default)]
pub struct LayoutIndex {
    /// Each slot of any full layout once, in order.
    slots: Vec<Slot>,
    /// The number of each slot's profile among [`Self::profiles`].
    profile_of: Vec<usize>,
    profiles: Vec<ProfileId>,
    /// Each full layout: its slots in order, as numbers, and as a mask.
    layouts: Vec<(Vec<usize>, u128)>,
    /// By number of jobs: the slots of all layouts that have a slot for each of so many jobs.
    roomy: Vec<Vec<usize>>,
    halves: Halves,
}

/// The best placements that a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutAssignment {
    /// The layout, by its index among the full ones.
    pub layout: usize,
    /// Jobs by their index among those that were weighed, in the order of the slots.
    pub placements: Vec<(usize, Slot)>,
    pub score: i64,
}

impl LayoutIndex {
    /// Numbers the slots of full layouts.
    pub fn new(full: &[Layout]) -> Self {
        let all: Layout = full.iter().flatten().copied().collect();
        let slots: Vec<Slot> = all.into_iter().collect();
        let mut profiles: Vec<ProfileId> = slots.iter().map(|slot| slot.profile).collect();
        profiles.sort_unstable();
        profiles.dedup();
        let place = |id: ProfileId| profiles.iter().position(|p| *p == id).unwrap_or(0);
        let profile_of = slots.iter().map(|slot| place(slot.profile)).collect();
        let number = |slot: &Slot| slots.binary_search(slot).ok();
        let orders: Vec<Vec<usize>> =
            full.iter().map(|layout| layout.iter().filter_map(number).collect()).collect();
        let halves = Halves::new(&orders);
        let masks = full.iter().map(|layout| mask(&slots, layout));
        let layouts: Vec<(Vec<usize>, u128)> = orders.into_iter().zip(masks).collect();
        let roomy = (0..=JOBS_MAX).map(|jobs| roomy(&layouts, jobs)).collect();
        Self { profile_of, profiles, layouts, roomy, halves, slots }
    }

    /// Returns the profiles of the slots, each once.
    pub fn profiles(&self) -> &[ProfileId] {
        &self.profiles
    }

    /// Returns the profile of a numbered slot.
    pub fn profile(&self, number: usize) -> Option<ProfileId> {
        self.slots.get(number).map(|slot| slot.profile)
    }

    /// Copies the score of a job on each of [`Self::profiles`] to the slots of that profile.
    pub fn row(&self, by_profile: &[i64]) -> Vec<i64> {
        self.profile_of.iter().map(|profile| by_profile[*profile]).collect()
    }

    /// Returns the number of a slot; `None` if the GPU does not have it.
    pub fn number(&self, slot: Slot) -> Option<usize> {
        self.slots.binary_search(&slot).ok()
    }

    /// Returns a layout as a mask of slots; slots that are in no full layout are left out.
    pub fn mask(&self, layout: &Layout) -> u128 {
        mask(&self.slots, layout)
    }

    /// Compares all full layouts and returns the greatest score with every job placed. Among equals
    /// it takes the layout that differs least from the current one, then the first. `None` if the
    /// score would not be above `minimum`. Each job has a row with its score in each slot.
    pub fn best(
        &self,
        rows: &[&[i64]],
        standing: u128,
        minimum: Option<i64>,
        buffers: &mut SearchBuffers,
    ) -> Option<LayoutAssignment> {
        if minimum.is_some_and(|minimum| self.most(rows) <= minimum) {
            return None;
        }
        let mut best: Option<(i64, u32, usize)> = None;
        let mut sums = std::mem::take(&mut buffers.halves);
        self.halves.weigh(rows, &mut sums, &mut |layout, score| {
            if minimum.is_some_and(|minimum| score <= minimum) {
                return;
            }
            let steps = self.steps(layout, standing);
            let better = best
                .is_none_or(|(known, least, _)| score > known || (score == known && steps < least));
            if better {
                best = Some((score, steps, layout));
            }
        });
        buffers.halves = sums;
        let (score, _, layout) = best?;
        let placements =
            self.placements_of(self.order(layout), rows, JobCoverage::AllJobs, buffers);
        Some(LayoutAssignment { layout, placements, score })
    }

    /// Returns an upper bound of the score with every job placed, which ignores conflicts between
    /// jobs.
    pub fn most(&self, rows: &[&[i64]]) -> i64 {
        let slots = self.roomy.get(rows.len()).map_or(&[][..], Vec::as_slice);
        let best = |row: &&[i64]| slots.iter().map(|slot| row[*slot]).max().unwrap_or(NO_PLACEMENT);
        rows.iter().map(best).sum()
    }

    /// Returns all slots, by number.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the full layouts that have all of these slots.
    pub fn with(&self, slots: u128) -> impl Iterator<Item = usize> {
        let layouts = self.layouts.iter().enumerate();
        layouts.filter(move |(_, (_, mask))| mask & slots == slots).map(|(place, _)| place)
    }

    /// Returns how many instances have to be destroyed or made for a full layout.
    pub fn steps(&self, layout: usize, standing: u128) -> u32 {
        self.layouts.get(layout).map_or(0, |(_, mask)| (mask ^ standing).count_ones())
    }

    /// Returns the slots of a full layout in order, by number.
    pub fn order(&self, layout: usize) -> &[usize] {
        self.layouts.get(layout).map_or(&[], |(order, _)| order)
    }

    /// Returns the job of each slot in the best assignment to slots that are given by number.
    pub fn placements_of(
        &self,
        order: &[usize],
        rows: &[&[i64]],
        must: JobCoverage,
        buffers: &mut SearchBuffers,
    ) -> Vec<(usize, Slot)> {
        let taken = order.iter().zip(buffers.assign_slots(order, rows, must));
        let placements = taken.filter(|(_, job)| **job != UNASSIGNED);
        placements.map(|(slot, job)| (*job, self.slots[*slot])).collect()
    }
}

/// Returns the slots of all layouts with a slot for each of so many jobs.
fn roomy(layouts: &[(Vec<usize>, u128)], jobs: usize) -> Vec<usize> {
    let enough = layouts.iter().filter(|(order, _)| order.len() >= jobs);
    let slots: BTreeSet<usize> = enough.flat_map(|(order, _)| order.iter().copied()).collect();
    slots.into_iter().collect()
}

fn mask(slots: &[Slot], layout: &Layout) -> u128 {
    let bit = |slot: &Slot| {
        let number = u32::try_from(slots.binary_search(slot).ok()?).ok()?;
        1_u128.checked_shl(number)
    };
    layout.iter().filter_map(bit).fold(0, |all, bit| all | bit)
}
