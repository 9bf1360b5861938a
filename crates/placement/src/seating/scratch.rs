//! The dynamic program over sets of jobs, on memory that is taken once.

use super::Must;
use super::atlas::NO_SEAT;
use super::halves::Sums;

/// Who sits on a slot that stays empty.
pub(crate) const NOBODY: usize = usize::MAX;

/// Memory of searches, used again by the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// The best worth with each set of jobs seated on the slots so far.
    sums: Vec<i64>,
    /// Who sat down last, for each slot and set.
    chosen: Vec<usize>,
    taken: Vec<usize>,
    pub(super) halves: Sums,
}

impl Scratch {
    /// Returns the greatest worth of seating jobs on the slots, if it can be done; each job has a
    /// row with its worth in each slot.
    pub(crate) fn worth(&mut self, order: &[usize], rows: &[&[i64]], must: Must) -> Option<i64> {
        self.begin(rows.len());
        for (place, slot) in order.iter().enumerate() {
            let sets = Sets::at(place, order.len(), rows.len(), must);
            self.sit(*slot, rows, sets, |_, _| {});
        }
        self.end(must).map(|set| self.sums[set])
    }

    /// Returns who sits on which slot in that seating.
    pub(crate) fn seats(&mut self, order: &[usize], rows: &[&[i64]], must: Must) -> &[usize] {
        self.begin(rows.len());
        let count = self.sums.len();
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        chosen.resize(count * order.len(), NOBODY);
        for (place, slot) in order.iter().enumerate() {
            let here = &mut chosen[place * count..(place + 1) * count];
            let sets = Sets::at(place, order.len(), rows.len(), must);
            self.sit(*slot, rows, sets, |set, job| here[set] = job);
        }
        self.taken.clear();
        self.taken.resize(order.len(), NOBODY);
        let mut set = self.end(must).unwrap_or(0);
        for place in (0..order.len()).rev() {
            let job = chosen[place * count + set];
            if job != NOBODY {
                self.taken[place] = job;
                set &= !(1 << job);
            }
        }
        self.chosen = chosen;
        &self.taken
    }

    fn begin(&mut self, jobs: usize) {
        self.sums.clear();
        self.sums.resize(1 << jobs, NO_SEAT);
        self.sums[0] = 0;
    }

    /// Returns the set of jobs that sits in the end.
    fn end(&self, must: Must) -> Option<usize> {
        let all = self.sums.len() - 1;
        match must {
            Must::SeatAll => (self.sums[all] != NO_SEAT).then_some(all),
            Must::SeatAny => {
                let known = self.sums.iter().enumerate().filter(|(_, sum)| **sum != NO_SEAT);
                known.max_by_key(|(set, sum)| (**sum, all - set)).map(|(set, _)| set)
            }
        }
    }

    /// Lets one job sit down on one more slot, or none. Sets go from large to small, so that each
    /// is worked out from what was there before the slot; of equals the job with the highest
    /// number sits, as it leaves the smallest set.
    fn sit(
        &mut self,
        slot: usize,
        rows: &[&[i64]],
        sets: Sets,
        mut chose: impl FnMut(usize, usize),
    ) {
        for set in (1..self.sums.len()).rev() {
            if !sets.matter(set) {
                continue;
            }
            let (mut best, mut who) = (self.sums[set], NOBODY);
            for job in (0..rows.len()).rev().filter(|job| set & (1 << job) != 0) {
                let (before, offer) = (self.sums[set & !(1 << job)], rows[job][slot]);
                if before != NO_SEAT
                    && offer != NO_SEAT
                    && (best == NO_SEAT || before + offer > best)
                {
                    (best, who) = (before + offer, job);
                }
            }
            self.sums[set] = best;
            chose(set, who);
        }
    }
}

/// How many jobs a set may have to be worth a look: no more than slots so far, and if all have to
/// sit, no fewer than leave a slot for each of the others.
#[derive(Clone, Copy, Debug)]
struct Sets {
    least: usize,
    most: usize,
}

impl Sets {
    fn at(place: usize, slots: usize, jobs: usize, must: Must) -> Self {
        let least = match must {
            Must::SeatAll => jobs.saturating_sub(slots - 1 - place),
            Must::SeatAny => 0,
        };
        Self { least, most: place + 1 }
    }

    fn matter(self, set: usize) -> bool {
        (self.least..=self.most).contains(&usize::try_from(set.count_ones()).unwrap_or(usize::MAX))
    }
}
