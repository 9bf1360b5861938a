//! What all full layouts are worth, from their halves: layouts are put together from a few left
//! and right parts, so that each part is worked out once.

use std::collections::BTreeMap;

use super::SEATED_MAX;
use super::atlas::NO_SEAT;

/// What is below is no worth: sums with [`NO_SEAT`] in them.
const NOTHING: i64 = NO_SEAT / 2;

/// The parts of full layouts.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    /// Each adds one slot to an earlier part; the first is the empty one.
    parts: Vec<Part>,
    /// The left and the right part of each layout.
    layouts: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// The part that it grows from.
    from: usize,
    slot: usize,
    /// Its slots.
    slots: usize,
}

/// Memory of searches, used again by the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    /// For each part, the best worth with each set of jobs seated.
    sums: Vec<i64>,
    /// Jobs of each set.
    sizes: Vec<usize>,
    done: Vec<bool>,
}

impl Halves {
    /// Splits layouts where that makes the fewest parts. Each is its slots' numbers in order.
    pub(crate) fn new(layouts: &[Vec<usize>]) -> Self {
        let highest = layouts.iter().flatten().copied().max().map_or(0, |slot| slot + 1);
        let splits = (0..=highest).map(|at| Self::split(layouts, at));
        splits.min_by_key(|halves| halves.parts.len()).unwrap_or_default()
    }

    fn split(layouts: &[Vec<usize>], at: usize) -> Self {
        let mut parts = vec![Part { from: 0, slot: 0, slots: 0 }];
        let mut known: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut grown = |slots: &[usize]| {
            slots.iter().fold(0, |from, slot| {
                *known.entry((from, *slot)).or_insert_with(|| {
                    parts.push(Part { from, slot: *slot, slots: parts[from].slots + 1 });
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

    /// Tells what each layout is worth with every job seated, where that can be done.
    pub(crate) fn weigh(&self, rows: &[&[i64]], sums: &mut Sums, tell: &mut dyn FnMut(usize, i64)) {
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
            let mut best = NO_SEAT;
            for (left, right) in of(*left).iter().zip(of(*right).iter().rev()) {
                best = best.max(left + right);
            }
            if best > NOTHING {
                tell(layout, best);
            }
        }
    }

    fn work_out(&self, part: usize, rows: &[&[i64]], sums: &mut Sums, count: usize) {
        if sums.done[part] {
            return;
        }
        let Part { from, slot, slots } = self.parts[part];
        self.work_out(from, rows, sums, count);
        sums.done[part] = true;
        let mut offers = [NO_SEAT; SEATED_MAX];
        offers.iter_mut().zip(rows).for_each(|(offer, row)| *offer = row[slot]);
        let (before, after) = sums.sums.split_at_mut(part * count);
        let before = &before[from * count..(from + 1) * count];
        after[0] = 0;
        for (set, size) in sums.sizes.iter().enumerate().take(count).skip(1) {
            if *size > slots {
                continue;
            }
            let mut best = before[set];
            let mut left = set;
            for (job, offer) in offers.iter().enumerate().take(rows.len()) {
                let bit = 1 << job;
                if left & bit != 0 {
                    best = best.max(before[set & !bit] + offer);
                    left &= !bit;
                    if left == 0 {
                        break;
                    }
                }
            }
            after[set] = best;
        }
    }
}

impl Sums {
    fn begin(&mut self, parts: usize, count: usize) {
        self.sums.clear();
        self.sums.resize(parts * count, NO_SEAT);
        self.done.clear();
        self.done.resize(parts, false);
        // Nobody sits in the empty part.
        self.sums[0] = 0;
        self.done[0] = true;
        for set in self.sizes.len()..count {
            let size = usize::try_from(set.count_ones()).unwrap_or(usize::MAX);
            self.sizes.push(size);
        }
    }
}
