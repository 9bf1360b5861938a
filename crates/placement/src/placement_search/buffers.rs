//! The dynamic program over sets of jobs, with memory that is allocated once.

use super::JobCoverage;
use super::halves::PartSums;
use super::layout_index::NO_PLACEMENT;

/// Marks a slot that stays empty.
pub const UNASSIGNED: usize = usize::MAX;

/// Memory of searches, used again by the next.
#[derive(Clone, Debug, Default)]
pub struct SearchBuffers {
    /// The best score with each set of jobs placed on the slots so far.
    sums: Vec<i64>,
    /// The job that was placed last, for each slot and set.
    chosen: Vec<usize>,
    taken: Vec<usize>,
    pub(super) halves: PartSums,
}

impl SearchBuffers {
    /// Returns the greatest score of placing jobs on the slots, if it can be done; each job has a
    /// row with its score in each slot.
    pub fn score(&mut self, order: &[usize], rows: &[&[i64]], must: JobCoverage) -> Option<i64> {
        self.begin(rows.len());
        for (place, slot) in order.iter().enumerate() {
            let sets = JobSets::at(place, order.len(), rows.len(), must);
            self.place_on_slot(*slot, rows, sets, |_, _| {});
        }
        self.end(must).map(|set| self.sums[set])
    }

    /// Returns the job of each slot in the best assignment.
    pub fn assign_slots(
        &mut self,
        order: &[usize],
        rows: &[&[i64]],
        must: JobCoverage,
    ) -> &[usize] {
        self.begin(rows.len());
        let count = self.sums.len();
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        chosen.resize(count * order.len(), UNASSIGNED);
        for (place, slot) in order.iter().enumerate() {
            let here = &mut chosen[place * count..(place + 1) * count];
            let sets = JobSets::at(place, order.len(), rows.len(), must);
            self.place_on_slot(*slot, rows, sets, |set, job| here[set] = job);
        }
        self.taken.clear();
        self.taken.resize(order.len(), UNASSIGNED);
        let mut set = self.end(must).unwrap_or(0);
        for place in (0..order.len()).rev() {
            let job = chosen[place * count + set];
            if job != UNASSIGNED {
                self.taken[place] = job;
                set &= !(1 << job);
            }
        }
        self.chosen = chosen;
        &self.taken
    }

    fn begin(&mut self, jobs: usize) {
        self.sums.clear();
        self.sums.resize(1 << jobs, NO_PLACEMENT);
        self.sums[0] = 0;
    }

    /// Returns the set of jobs that are placed in the end.
    fn end(&self, must: JobCoverage) -> Option<usize> {
        let all = self.sums.len() - 1;
        match must {
            JobCoverage::AllJobs => (self.sums[all] != NO_PLACEMENT).then_some(all),
            JobCoverage::AnyJobs => {
                let known = self.sums.iter().enumerate().filter(|(_, sum)| **sum != NO_PLACEMENT);
                known.max_by_key(|(set, sum)| (**sum, all - set)).map(|(set, _)| set)
            }
        }
    }

    /// Places one job on one more slot, or none. Sets are visited from large to small, so that each
    /// is computed from the values before this slot. Among equals, the job with the highest number
    /// is placed, as it leaves the smallest set.
    fn place_on_slot(
        &mut self,
        slot: usize,
        rows: &[&[i64]],
        sets: JobSets,
        mut chose: impl FnMut(usize, usize),
    ) {
        for set in (1..self.sums.len()).rev() {
            if !sets.matter(set) {
                continue;
            }
            let (mut best, mut who) = (self.sums[set], UNASSIGNED);
            for job in (0..rows.len()).rev().filter(|job| set & (1 << job) != 0) {
                let (before, offer) = (self.sums[set & !(1 << job)], rows[job][slot]);
                if before != NO_PLACEMENT
                    && offer != NO_PLACEMENT
                    && (best == NO_PLACEMENT || before + offer > best)
                {
                    (best, who) = (before + offer, job);
                }
            }
            self.sums[set] = best;
            chose(set, who);
        }
    }
}

/// How many jobs a set may have to be considered. It has no more than slots so far. If all must be
/// placed, it has no fewer than leave a slot for each of the others.
#[derive(Clone, Copy, Debug)]
struct JobSets {
    least: usize,
    most: usize,
}

impl JobSets {
    fn at(place: usize, slots: usize, jobs: usize, must: JobCoverage) -> Self {
        let least = match must {
            JobCoverage::AllJobs => jobs.saturating_sub(slots - 1 - place),
            JobCoverage::AnyJobs => 0,
        };
        Self { least, most: place + 1 }
    }

    fn matter(self, set: usize) -> bool {
        (self.least..=self.most).contains(&(set.count_ones() as usize))
    }
}
