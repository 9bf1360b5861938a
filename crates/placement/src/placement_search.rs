//! The best assignment of jobs to the instances of one layout, computed exactly.
//!
//! A GPU has few instances, so dynamic programming over sets of jobs covers every assignment.

mod buffers;
mod halves;
mod layout_index;

use tessera_model::Millis;
use tessera_model::mig::{Layout, Slot};

pub use self::buffers::SearchBuffers;
use self::buffers::UNASSIGNED;
pub use self::layout_index::{LayoutIndex, NO_PLACEMENT};

/// The most jobs that one search weighs for one GPU: with more jobs there would be too many sets.
pub const JOBS_MAX: usize = 10;

/// An assignment with its score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The slots of the layout.
    pub layout: Layout,
    /// Jobs by their index among those that were weighed.
    pub placements: Vec<(usize, Slot)>,
    /// The score of the assignment, the sum over its jobs.
    pub score: i64,
}

/// Whether every job must have a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobCoverage {
    /// Every job must have a slot.
    AllJobs,
    /// Jobs may remain without a slot.
    AnyJobs,
}

/// Returns the assignment of jobs to slots with the greatest score; `score` returns `None` if a job
/// can't run in a slot. Among equals the first one in the order of slots and jobs is returned.
/// Where many layouts are weighed, [`LayoutIndex`] is faster.
pub fn best(
    layout: &Layout,
    jobs: usize,
    must: JobCoverage,
    score: &mut dyn FnMut(usize, Slot) -> Option<i64>,
) -> Option<Assignment> {
    let jobs = jobs.min(JOBS_MAX);
    let slots: Vec<Slot> = layout.iter().copied().collect();
    let mut rows = vec![vec![NO_PLACEMENT; slots.len()]; jobs];
    for (place, slot) in slots.iter().enumerate() {
        for (job, row) in rows.iter_mut().enumerate() {
            row[place] = score(job, *slot).unwrap_or(NO_PLACEMENT);
        }
    }
    let rows: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    let order: Vec<usize> = (0..slots.len()).collect();
    let mut buffers = SearchBuffers::default();
    let score = buffers.score(&order, &rows, must)?;
    let taken = slots.iter().zip(buffers.assign_slots(&order, &rows, must));
    let placements =
        taken.filter(|(_, job)| **job != UNASSIGNED).map(|(slot, job)| (*job, *slot)).collect();
    Some(Assignment { layout: layout.clone(), placements, score })
}

/// Returns a job's speed on an instance in millionths of its speed on the GPU's largest one, from both times.
pub fn speed_of(here: Millis, whole: Millis) -> Option<i64> {
    let here = here.get().max(1);
    // Divisions of 128 bits take several times as long, and times are too short to need them.
    match whole.get().checked_mul(1_000_000) {
        Some(millionths) => i64::try_from(millionths / here).ok(),
        None => i64::try_from(u128::from(whole.get()) * 1_000_000 / u128::from(here)).ok(),
    }
}

#[cfg(test)]
mod tests {
    use tessera_model::mig::ProfileId;

    use super::*;
    use crate::view::MigView;

    fn slots(count: u8) -> Layout {
        (0..count).map(|start| Slot { start, profile: ProfileId(0) }).collect()
    }

    /// Tries every assignment, one slot after the other.
    fn by_hand(table: &[Vec<Option<i64>>], slot: usize, taken: usize, all: bool) -> Option<i64> {
        let Some(row) = table.get(slot) else {
            let everyone = table.first().map_or(0, |row| (1 << row.len()) - 1);
            return (!all || taken == everyone).then_some(0);
        };
        let skip = by_hand(table, slot + 1, taken, all);
        let placed = row.iter().enumerate().filter(|(job, _)| taken & (1 << job) == 0);
        let placements = placed.filter_map(|(job, score)| {
            Some((*score)? + by_hand(table, slot + 1, taken | 1 << job, all)?)
        });
        placements.chain(skip).max()
    }

    proptest::proptest! {
        #[test]
        fn no_other_assignment_has_a_higher_score(
            table in proptest::collection::vec(
                proptest::collection::vec(proptest::option::of(-5_i64..20), 4), 1..5),
            all in proptest::bool::ANY,
        ) {
            let layout = slots(u8::try_from(table.len()).unwrap());
            let must = if all { JobCoverage::AllJobs } else { JobCoverage::AnyJobs };
            let found = best(&layout, 4, must, &mut |job, slot| table[usize::from(slot.start)][job]);
            proptest::prop_assert_eq!(found.map(|f| f.score), by_hand(&table, 0, 0, all));
        }

        #[test]
        fn all_layouts_at_once_score_as_each_does_by_itself(
            key in proptest::sample::select(vec!["a100-40gb", "a30-24gb", "h100-80gb-sxm"]),
            table in proptest::collection::vec(
                proptest::collection::vec(proptest::option::weighted(0.8, -5_i64..20), 40), 0..8),
            minimum in proptest::option::of(0_i64..60),
        ) {
            let model = tessera_model::mig::catalog::find(key).unwrap();
            let mig = MigView::new(model.geometry()).unwrap();
            let number = |slot: Slot| mig.layout_index().number(slot).unwrap();
            let rows: Vec<Vec<i64>> =
                table.iter().map(|row| row.iter().map(|w| w.unwrap_or(NO_PLACEMENT)).collect()).collect();
            let rows: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
            let each = mig.full().iter().filter_map(|layout| {
                let mut score = |job: usize, slot| table[job][number(slot)];
                best(layout, table.len(), JobCoverage::AllJobs, &mut score)
            });
            let most = each.map(|found| found.score).max().filter(|w| minimum.is_none_or(|f| *w > f));
            let found = mig.layout_index().best(&rows, 0, minimum, &mut SearchBuffers::default());
            proptest::prop_assert_eq!(found.as_ref().map(|f| f.score), most);
            if let Some(found) = found {
                let sum: i64 = found.placements.iter().map(|(job, slot)| rows[*job][number(*slot)]).sum();
                proptest::prop_assert_eq!(sum, found.score);
                proptest::prop_assert_eq!(found.placements.len(), rows.len());
            }
        }
    }
}
