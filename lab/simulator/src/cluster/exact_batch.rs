//! The best possible schedule of a few jobs that arrive together, on one A100-40GB.

use super::job::SimulatedJob;
use super::overheads::Overheads;

/// Memory slices of an A100.
const SLICES: usize = 8;

/// Sizes of an A100-40GB: compute slices, GB of memory, memory slices, and where they may start.
const SIZES: [(u8, u64, usize, &[usize]); 5] = [
    (1, 5, 1, &[0, 1, 2, 3, 4, 5, 6]),
    (2, 10, 2, &[0, 2, 4]),
    (3, 20, 4, &[0, 4]),
    (4, 20, 4, &[0]),
    (7, 40, 8, &[0]),
];

/// Returns the least makespan of any schedule of jobs that stay where they start, in milliseconds, if cuts cost
/// nothing: every order, size and slot is tried. It is at most `known_ms`.
pub fn least_ms(jobs: &[SimulatedJob], overheads: &Overheads, known_ms: u64) -> u64 {
    let options = jobs.iter().map(|job| {
        let on = |size: usize| {
            let (compute, gb, ..) = SIZES[size];
            let fits = job.requested.get() < (gb + 1) * 1_000_000_000;
            let ms = job.time("a100-40gb", compute).filter(|_| fits)?;
            Some((ms + overheads.start_ms(job), size))
        };
        (0..SIZES.len()).filter_map(on).collect()
    });
    let mut search = ExactSearch { options: options.collect(), best: known_ms };
    search.extend([0; SLICES], &(0..jobs.len()).collect::<Vec<_>>(), 0);
    search.best
}

struct ExactSearch {
    /// Of each job: its time on each size, with the size's place in [`SIZES`].
    options: Vec<Vec<(u64, usize)>>,
    best: u64,
}

impl ExactSearch {
    /// Adds one of the jobs that are left, none of them before `last`. `free` is when each memory slice is free.
    fn extend(&mut self, free: [u64; SLICES], left: &[usize], last: u64) {
        if left.is_empty() {
            self.best = self.best.min(free.into_iter().max().unwrap_or(0));
            return;
        }
        let area = |job: &usize| {
            let of = |(ms, size): &(u64, usize)| ms * (SIZES[*size].2 as u64);
            self.options[*job].iter().map(of).min().unwrap_or(0)
        };
        let used: u64 = free.iter().map(|at| *at.max(&last)).sum();
        let area = used + left.iter().map(area).sum::<u64>();
        let least = |job: &usize| self.options[*job].iter().map(|(ms, _)| *ms).min().unwrap_or(0);
        let longest = left.iter().map(least).max().unwrap_or(0);
        if area.div_ceil(SLICES as u64) >= self.best || last + longest >= self.best {
            return;
        }
        for job in left {
            let rest: Vec<usize> = left.iter().copied().filter(|other| other != job).collect();
            for (ms, size) in self.options[*job].clone() {
                let (_, _, slices, starts) = SIZES[size];
                let mut tried: Vec<[u64; SLICES]> = Vec::new();
                for start in starts {
                    let slot = *start..start + slices;
                    let begin = free[slot.clone()].iter().copied().max().unwrap_or(0);
                    let mut next = free;
                    next[slot].fill(begin + ms);
                    if begin >= last && begin + ms < self.best && !tried.contains(&next) {
                        tried.push(next);
                        self.extend(next, &rest, begin);
                    }
                }
            }
        }
    }
}
