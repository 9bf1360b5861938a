//! The scores of all full layouts, from their halves: layouts are put together from a few left
//! and right parts, so that each part is computed once.

use std::collections::BTreeMap;

use super::layout_index::NO_PLACEMENT;

/// Values below this are sums with [`NO_PLACEMENT`], and not scores.
const NOTHING: i64 = NO_PLACEMENT / 2;

/// The parts of full layouts.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    /// Each part adds one slot to an earlier part; the first one is empty.
    parts: Vec<LayoutPart>,
    /// The left and the right part of each layout.
    layouts: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LayoutPart {
    /// The part that it grows from.
    from: usize,
    slot: usize,
    slots: usize,
}

/// Memory of searches, used again by the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartSums {
    /// For each part, the best score with each set of jobs placed.
    sums: Vec<i64>,
    done: Vec<bool>,
}

impl Halves {
    /// Splits layouts where that gives the fewest parts. Each layout is a list of its slots'
    /// numbers in order.
    pub(crate) fn new(layouts: &[Vec<usize>]) -> Self {
        let highest = layouts.iter().flatten().copied().max().map_or(0, |slot| slot + 1);
        let splits = (0..=highest).map(|at| Self::split(layouts, at));
        splits.min_by_key(|halves| halves.parts.len()).unwrap_or_default()
    }

    fn split(layouts: &[Vec<usize>], at: usize) -> Self {
        let mut parts = vec![LayoutPart { from: 0, slot: 0, slots: 0 }];
        let mut known: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut grown = |slots: &[usize]| {
            slots.iter().fold(0, |from, slot| {
                *known.entry((from, *slot)).or_insert_with(|| {
                    parts.push(LayoutPart { from, slot: *slot, slots: parts[from].slots + 1 });
                    parts.len() - 1
                })
            })
        };
        let halves = layouts.iter().map(|layout| {
            let middle = layout.partition_point(|slot| *slot < at);
            (grown(&layout[..middle]), grown(&layout[middle..]))
        });
        Self { layouts: halves.collect(), parts }
    }

    /// Returns each layout's score with every job placed, where that can be done.
    pub(crate) fn weigh(
        &self,
        rows: &[&[i64]],
        sums: &mut PartSums,
        report: &mut dyn FnMut(usize, i64),
    ) {
        let count = 1 << rows.len();
        sums.begin(self.parts.len(), count);
        for (layout, (left, right)) in self.layouts.iter().enumerate() {
            let (most_left, most_right) = (self.parts[*left].slots, self.parts[*right].slots);
            if most_left + most_right < rows.len() {
                continue;
            }
            self.work_out(*left, rows, sums, count);
            self.work_out(*right, rows, sums, count);
            let of = |part: usize| &sums.sums[part * count..(part + 1) * count];
            let mut best = NO_PLACEMENT;
            for (left, right) in of(*left).iter().zip(of(*right).iter().rev()) {
                best = best.max(left + right);
            }
            if best > NOTHING {
                report(layout, best);
            }
        }
    }

    fn work_out(&self, part: usize, rows: &[&[i64]], sums: &mut PartSums, count: usize) {
        if sums.done[part] {
            return;
        }
        let LayoutPart { from, slot, .. } = self.parts[part];
        self.work_out(from, rows, sums, count);
        sums.done[part] = true;
        let (before, after) = sums.sums.split_at_mut(part * count);
        let (before, after) = (&before[from * count..(from + 1) * count], &mut after[..count]);
        after.copy_from_slice(before);
        for (job, row) in rows.iter().enumerate().filter(|(_, row)| row[slot] > NOTHING) {
            // In each run of sets, the second half has the job, and the first half has the same
            // sets without it.
            let bit = 1 << job;
            let runs = after.chunks_exact_mut(2 * bit).zip(before.chunks_exact(2 * bit));
            for (now, known) in runs {
                for (with, without) in now[bit..].iter_mut().zip(&known[..bit]) {
                    *with = (*with).max(without + row[slot]);
                }
            }
        }
    }
}

impl PartSums {
    fn begin(&mut self, parts: usize, count: usize) {
        if self.sums.len() < parts * count {
            self.sums.resize(parts * count, NO_PLACEMENT);
        }
        self.done.clear();
        self.done.resize(parts, false);
        // The empty part has no jobs.
        self.sums[..count].fill(NO_PLACEMENT);
        self.sums[0] = 0;
        self.done[0] = true;
    }
}
