//! The configuration program: a bound of all MIG-only schedules that also knows that a job is on one
//! slice at a time.
//!
//! Time is cut at some of the releases. The unknowns are how long a GPU has each layout, and how
//! long a job is on each size, in each interval. A size holds no more jobs than there are such
//! slices, a job is in one place at a time, and each job is completed. Any schedule gives such
//! numbers, so the least end of the last interval bounds every makespan. Releases are rounded down
//! to those at which time is cut, which can only lower the bound. The first ones are closest
//! together: while there are few jobs, some GPUs are idle because no job can use them, and counting
//! them as busy would weaken the bound.
//!
//! The solver's result need not be trusted: its dual solution is a set of [`DualPrices`], and any
//! such prices prove a bound ([`LinearProgram::proves`]; both in `docs/policies.md`).

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettingsBuilder, DefaultSolver, IPSolver, NonnegativeConeT};

use super::SlicePrices;
use crate::cluster::fleet::GpuFleet;
use crate::cluster::job::SimulatedJob;
use crate::cluster::number::seconds;
use crate::cluster::overheads::Overheads;

/// Maximum number of intervals: twice as many prove a third of a percent more on 300 jobs, in three
/// times the time.
const INTERVALS: usize = 24;

/// Fewest intervals: with one, the program proves what priced work does.
const INTERVALS_MIN: usize = 2;

/// Maximum number of unknowns of a program that is solved: a second or two.
const UNKNOWNS_MAX: usize = 12_000;

/// What rounding may cost: sums of some thousand terms, each exact to fifteen digits.
const SAFE: f64 = 1.0 - 1e-9;

/// Returns the bound in seconds; nothing where the program would be too large, or has no solution.
pub fn makespan(jobs: &[SimulatedJob], fleet: &GpuFleet, overheads: &Overheads) -> Option<f64> {
    let market = SlicePrices::new(fleet);
    let program = LinearProgram::of(&market, jobs, overheads)?;
    let prices = program.solve()?;
    program.proves(&prices)
}

/// The facts about a job.
struct KnownJob {
    /// The interval from which on it exists.
    released: usize,
    /// Seconds for which it occupies an instance of each size, if all of it is done there.
    times: Vec<Option<f64>>,
}

struct LinearProgram<'m> {
    market: &'m SlicePrices,
    jobs: Vec<KnownJob>,
    /// When the intervals begin, in seconds. The last one has no end.
    starts: Vec<f64>,
}

/// The price of a second, in any unit: all numbers are zero or more.
struct DualPrices {
    /// On an instance of each size, by interval.
    sizes: Vec<Vec<f64>>,
    /// Of each job's own, by interval: zero before its release.
    jobs: Vec<Vec<f64>>,
}

impl<'m> LinearProgram<'m> {
    /// Sets it up with as many intervals as it may have; nothing if even the fewest are too many.
    fn of(market: &'m SlicePrices, jobs: &[SimulatedJob], overheads: &Overheads) -> Option<Self> {
        // Each job has an unknown in at least one interval: a million is too many.
        if jobs.len() > UNKNOWNS_MAX {
            return None;
        }
        let mut releases: Vec<u64> = jobs.iter().map(|job| job.submit_ms).collect();
        releases.sort_unstable();
        releases.dedup();
        let times: Vec<_> = jobs.iter().map(|job| occupied(market, job, overheads)).collect();
        let fewest = INTERVALS_MIN.min(releases.len());
        let (starts, released) = (fewest..=INTERVALS).rev().find_map(|intervals| {
            let starts = cut(&releases, intervals);
            let since =
                |job: &SimulatedJob| starts.partition_point(|start| *start <= job.submit_ms) - 1;
            let released: Vec<usize> = jobs.iter().map(since).collect();
            let unknowns = times.iter().zip(&released).map(|(times, released)| {
                times.iter().flatten().count() * (starts.len() - released)
            });
            (unknowns.sum::<usize>() <= UNKNOWNS_MAX).then_some((starts, released))
        })?;
        let known = released.into_iter().zip(times);
        let jobs = known.map(|(released, times)| KnownJob { released, times }).collect();
        let starts = starts.iter().map(|start| seconds(*start)).collect();
        Some(Self { market, jobs, starts })
    }

    /// Returns the length of an interval in seconds; nothing for the last.
    fn length(&self, interval: usize) -> Option<f64> {
        Some(self.starts.get(interval + 1)? - self.starts.get(interval)?)
    }

    /// Solves the program and returns its dual solution.
    fn solve(&self) -> Option<DualPrices> {
        let mut rows = ConstraintRows::default();
        let last = rows.unknown();
        let mut done: Vec<Vec<(usize, f64)>> = self.jobs.iter().map(|_| Vec::new()).collect();
        let sizes = self.market.sizes.len();
        let (mut places, mut held_rows) = (Vec::new(), Vec::new());
        for interval in 0..self.starts.len() {
            let length = self.length(interval);
            let within = |rows: &mut ConstraintRows, mut sum: Vec<(usize, f64)>, times: f64| {
                if length.is_none() {
                    sum.push((last, -times));
                }
                rows.at_most(&sum, length.unwrap_or(0.0) * times)
            };
            let mut held: Vec<Vec<(usize, f64)>> = vec![Vec::new(); sizes];
            for (number, job) in self.jobs.iter().enumerate() {
                if job.released > interval {
                    continue;
                }
                let mut somewhere = Vec::new();
                for (size, time) in job.times.iter().enumerate() {
                    let Some(time) = time.filter(|time| *time > 0.0) else { continue };
                    let on = rows.unknown();
                    done[number].push((on, -1.0 / time));
                    held[size].push((on, 1.0));
                    somewhere.push((on, 1.0));
                }
                places.push((number, interval, within(&mut rows, somewhere, 1.0)));
            }
            for (gpus, layouts) in &self.market.models {
                let mut standing = Vec::new();
                for counts in layouts {
                    let stands = rows.unknown();
                    standing.push((stands, 1.0));
                    for (held, count) in held.iter_mut().zip(counts).filter(|(_, n)| **n > 0.0) {
                        held.push((stands, -count));
                    }
                }
                within(&mut rows, standing, *gpus);
            }
            held_rows.push(held.iter().map(|held| rows.at_most(held, 0.0)).collect::<Vec<_>>());
        }
        for done in done.iter().filter(|done| !done.is_empty()) {
            rows.at_most(done, -1.0);
        }
        let value = rows.solve(last)?;
        let price = |row: &usize| value.get(*row).copied().unwrap_or(0.0).max(0.0);
        let mut prices = DualPrices {
            sizes: held_rows.iter().map(|rows| rows.iter().map(price).collect()).collect(),
            jobs: vec![vec![0.0; self.starts.len()]; self.jobs.len()],
        };
        for (number, interval, row) in &places {
            prices.jobs[*number][*interval] = price(row);
        }
        Some(prices)
    }

    /// Returns the bound that prices prove, in seconds; `None` if they make the last interval free.
    fn proves(&self, prices: &DualPrices) -> Option<f64> {
        let mut earned = 0.0;
        for (job, own) in self.jobs.iter().zip(&prices.jobs) {
            let ways = job.times.iter().enumerate().filter_map(|(size, time)| {
                let second = |interval: usize| prices.sizes[interval][size] + own[interval];
                let least =
                    (job.released..self.starts.len()).map(second).fold(f64::INFINITY, f64::min);
                Some((*time)? * least)
            });
            let least = ways.fold(f64::INFINITY, f64::min);
            earned += if least.is_finite() { least } else { 0.0 };
        }
        let second = |interval: usize| {
            let own = prices.jobs.iter().map(|own| own[interval]).sum::<f64>();
            own + self.market.value(&prices.sizes[interval])
        };
        let before = (0..self.starts.len()).filter_map(|at| Some(self.length(at)? * second(at)));
        let left = earned - before.sum::<f64>();
        let last = self.starts.len().checked_sub(1)?;
        let rate = second(last);
        (rate > f64::MIN_POSITIVE).then(|| (self.starts[last] + (left / rate).max(0.0)) * SAFE)
    }
}

/// Returns the releases at which time is divided: all, or a limited number that are closer together
/// at the beginning.
fn cut(releases: &[u64], intervals: usize) -> Vec<u64> {
    if releases.len() <= intervals {
        return releases.to_vec();
    }
    // The squares of even steps.
    let place = |number: usize| releases.len() * number * number / (intervals * intervals);
    let mut starts: Vec<u64> = (0..intervals).map(|number| releases[place(number)]).collect();
    starts.dedup();
    starts
}

/// Returns for how many seconds a job occupies an instance of each size, if all of it is done
/// there. That is its time, plus the shortest time until it works, at its first start or after a
/// move.
fn occupied(market: &SlicePrices, job: &SimulatedJob, overheads: &Overheads) -> Vec<Option<f64>> {
    let starts = overheads.start_ms(job).min(job.limit_ms.unwrap_or(u64::MAX));
    let begins = seconds(overheads.move_ms(job).map_or(starts, |moves| moves.min(starts)));
    market.times(job).into_iter().map(|time| Some(time? + begins)).collect()
}

/// A linear program under construction: each row is at most its limit, each unknown is zero or
/// more, and one unknown is minimised.
#[derive(Default)]
struct ConstraintRows {
    unknowns: usize,
    rows: Vec<usize>,
    columns: Vec<usize>,
    factors: Vec<f64>,
    limits: Vec<f64>,
}

impl ConstraintRows {
    fn unknown(&mut self) -> usize {
        self.unknowns += 1;
        self.unknowns - 1
    }

    /// Adds a row and returns its number.
    fn at_most(&mut self, sum: &[(usize, f64)], limit: f64) -> usize {
        let row = self.limits.len();
        for (unknown, factor) in sum {
            self.rows.push(row);
            self.columns.push(*unknown);
            self.factors.push(*factor);
        }
        self.limits.push(limit);
        row
    }

    /// Returns the price of each row's limit in a solution that minimises one unknown.
    fn solve(mut self, least: usize) -> Option<Vec<f64>> {
        for unknown in 0..self.unknowns {
            self.at_most(&[(unknown, -1.0)], 0.0);
        }
        let mut aim = vec![0.0; self.unknowns];
        *aim.get_mut(least)? = 1.0;
        let count = self.limits.len();
        let rows = CscMatrix::new_from_triplets(
            count,
            self.unknowns,
            self.rows,
            self.columns,
            self.factors,
        );
        let square = CscMatrix::zeros((self.unknowns, self.unknowns));
        let settings = DefaultSettingsBuilder::default().verbose(false).build().ok()?;
        let cones = [NonnegativeConeT(count)];
        let mut solver =
            DefaultSolver::new(&square, &aim, &rows, &self.limits, &cones, settings).ok()?;
        solver.solve();
        Some(solver.solution.z)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::cluster::job::tests::job;

    /// A job that takes this many seconds on a whole GPU and half as long again on half of it.
    fn lasts(submit_s: u64, whole_s: u64) -> SimulatedJob {
        let times = BTreeMap::from([(7, whole_s * 1_000), (3, whole_s * 1_500)]);
        SimulatedJob {
            submit_ms: submit_s * 1_000,
            times: BTreeMap::from([("*".into(), times)]),
            ..job()
        }
    }

    fn bound(jobs: &[SimulatedJob]) -> f64 {
        let fleet = GpuFleet::parse("2xa100-40gb").unwrap();
        makespan(jobs, &fleet, &Overheads::default()).unwrap()
    }

    #[test]
    fn gpus_that_no_job_could_use_yet_do_not_count_as_busy() {
        // One job of 100 s is alone for 50 s, and can't use both GPUs. From then on 150 s of
        // work are left, in which two GPUs do 4/3 of a whole one's each.
        let jobs = [lasts(0, 100), lasts(50, 50), lasts(50, 50)];
        let least = bound(&jobs);
        assert!(least >= 100.0 - 1e-6, "{least}");
        let many: Vec<SimulatedJob> =
            std::iter::once(lasts(0, 100)).chain((0..20).map(|_| lasts(50, 50))).collect();
        // 50 s of the first, and 20 jobs: 1,050 s at a rate of 2 × 4/3.
        let least = bound(&many);
        assert!((least - (50.0 + 1_050.0 * 0.75 / 2.0)).abs() < 0.1, "{least}");
    }

    #[test]
    fn the_time_until_a_job_works_counts_as_far_as_a_move_would_take_it_too() {
        let with = |start_up_s: u64, restore_s: Option<u64>| {
            let of = |job: SimulatedJob| SimulatedJob {
                start_up_ms: start_up_s * 1_000,
                restore_ms: restore_s.map(|s| s * 1_000),
                ..job
            };
            let jobs: Vec<SimulatedJob> = (0..40).map(|_| of(lasts(0, 50))).collect();
            bound(&jobs)
        };
        let bare = with(0, Some(0));
        assert!((bare - 40.0 * 75.0 / 4.0).abs() < 0.1, "{bare}");
        // On halves, four at a time: ten of each in a row.
        assert!((with(10, Some(30)) - (bare + 100.0)).abs() < 0.1);
        assert!((with(10, None) - (bare + 100.0)).abs() < 0.1);
        assert!((with(10, Some(3)) - (bare + 30.0)).abs() < 0.1);
        assert!((with(10, Some(0)) - bare).abs() < 0.1);
    }

    #[test]
    fn few_releases_are_all_kept_and_of_many_the_first_are_closest() {
        let all: Vec<u64> = (0..20).collect();
        assert_eq!(cut(&all, 20), all);
        assert_eq!(cut(&all, 5), [0, 3, 7, 12]);
    }

    proptest! {
        /// Therefore the solver need not be trusted.
        #[test]
        fn no_prices_prove_a_tighter_bound_than_the_best(
            jobs in prop::collection::vec((0_u64..50, 1_u64..100), 1..8),
            prices in prop::collection::vec(0_u32..100, 200),
        ) {
            let jobs: Vec<SimulatedJob> = jobs.into_iter().map(|(at, s)| lasts(at, s)).collect();
            let fleet = GpuFleet::parse("2xa100-40gb").unwrap();
            let market = SlicePrices::new(&fleet);
            let program = LinearProgram::of(&market, &jobs, &Overheads::default()).unwrap();
            let best = program.proves(&program.solve().unwrap()).unwrap();
            let mut next = prices.iter().cycle().map(|price| f64::from(*price));
            let mut some = |count: usize| next.by_ref().take(count).collect::<Vec<f64>>();
            let intervals = program.starts.len();
            let drawn = DualPrices {
                sizes: (0..intervals).map(|_| some(market.sizes.len())).collect(),
                jobs: program.jobs.iter().map(|_| some(intervals)).collect(),
            };

            prop_assert!(program.proves(&drawn).is_none_or(|proved| proved <= best * 1.000_01));
        }
    }
}
