//! Who sits where: the best assignment of jobs to the instances of one layout, worked out exactly.
//!
//! A GPU has at most a handful of instances, so every assignment is looked at by dynamic
//! programming over sets of jobs.

use tessera_model::JobId;
use tessera_model::mig::{Layout, Profile, Slot};

use crate::forecast::Forecast;
use crate::view::{GpuView, MigView};

/// Most jobs that one search weighs for one GPU: beyond, the sets would be too many.
pub(crate) const SEATED_MAX: usize = 10;

/// An assignment with its worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seating {
    pub(crate) layout: Layout,
    /// Jobs by their index among those that were weighed.
    pub(crate) seats: Vec<(usize, Slot)>,
    pub(crate) worth: i64,
}

/// Whether every job has to have a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Must {
    SeatAll,
    SeatAny,
}

/// Returns the assignment of jobs to slots with the greatest worth; `worth` yields nothing where a
/// job can't run in a slot. Of equals the first in the order of slots and jobs.
pub(crate) fn best(
    layout: &Layout,
    jobs: usize,
    must: Must,
    worth: &mut dyn FnMut(usize, Slot) -> Option<i64>,
) -> Option<Seating> {
    let jobs = jobs.min(SEATED_MAX);
    let all = 1_usize << jobs;
    let slots: Vec<Slot> = layout.iter().copied().collect();
    // The best worth with a set of jobs seated on the slots so far, and who sat down last.
    let mut sums: Vec<Option<i64>> = vec![None; all];
    sums[0] = Some(0);
    let mut choices: Vec<Vec<Option<usize>>> = Vec::with_capacity(slots.len());
    for slot in &slots {
        let offers: Vec<Option<i64>> = (0..jobs).map(|job| worth(job, *slot)).collect();
        let mut next = sums.clone();
        let mut chosen = vec![None; all];
        for (set, sum) in sums.iter().enumerate() {
            let Some(sum) = sum else { continue };
            for (job, offer) in offers.iter().enumerate().filter(|(job, _)| set & (1 << job) == 0) {
                let Some(offer) = offer else { continue };
                let (with, better) = (set | 1 << job, sum + offer);
                if next[with].is_none_or(|known| better > known) {
                    next[with] = Some(better);
                    chosen[with] = Some(job);
                }
            }
        }
        sums = next;
        choices.push(chosen);
    }
    let end = match must {
        Must::SeatAll => sums[all - 1].map(|_| all - 1),
        Must::SeatAny => {
            let known = sums.iter().enumerate().filter_map(|(set, sum)| Some((set, (*sum)?)));
            known.max_by_key(|(set, sum)| (*sum, all - set)).map(|(set, _)| set)
        }
    }?;
    let worth = sums[end]?;
    let mut seats = Vec::new();
    let mut set = end;
    for (slot, chosen) in slots.iter().zip(&choices).rev() {
        if let Some(job) = chosen[set] {
            seats.push((job, *slot));
            set &= !(1 << job);
        }
    }
    seats.reverse();
    Some(Seating { layout: layout.clone(), seats, worth })
}

/// A job's speed on an instance in millionths of its speed on the GPU's largest, if it runs there.
pub(crate) fn speed(
    forecast: &dyn Forecast,
    job: JobId,
    gpu: &GpuView,
    mig: &MigView,
    profile: &Profile,
) -> Option<i64> {
    let here = forecast.time(job, gpu, profile)?.get().max(1);
    let whole = forecast.time(job, gpu, mig.geometry.largest()?)?.get();
    i64::try_from(u128::from(whole) * 1_000_000 / u128::from(here)).ok()
}

#[cfg(test)]
mod tests {
    use tessera_model::mig::ProfileId;

    use super::*;

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
        let seat = row.iter().enumerate().filter(|(job, _)| taken & (1 << job) == 0);
        let seats = seat.filter_map(|(job, worth)| {
            Some((*worth)? + by_hand(table, slot + 1, taken | 1 << job, all)?)
        });
        seats.chain(skip).max()
    }

    proptest::proptest! {
        #[test]
        fn no_other_assignment_is_worth_more(
            table in proptest::collection::vec(
                proptest::collection::vec(proptest::option::of(-5_i64..20), 4), 1..5),
            all in proptest::bool::ANY,
        ) {
            let layout = slots(u8::try_from(table.len()).unwrap());
            let must = if all { Must::SeatAll } else { Must::SeatAny };
            let found = best(&layout, 4, must, &mut |job, slot| table[usize::from(slot.start)][job]);
            proptest::prop_assert_eq!(found.map(|f| f.worth), by_hand(&table, 0, 0, all));
        }
    }
}
