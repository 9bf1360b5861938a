//! A plan for a closed batch: every waiting job, with its size, its place and its time.
//!
//! It is for jobs whose times are known, when no more jobs seem to arrive. Sizes and order are searched
//! together. Each candidate is carried out by list scheduling over the GPUs as they are, and running jobs
//! stay where they are. Whenever a slot is free, the first job of the order whose size fits takes it. The
//! largest sizes come first, so that the pieces of the GPUs only become smaller, as in FAR (arXiv 2507.13601,
//! phases 1 and 2).
//!
//! A candidate is better if its makespan, which counts twice, and its mean time, each relative to the best of
//! the first candidates, have a smaller sum. The best one is then changed by [`annealing`], in which sizes of jobs and
//! their places in the order change. (FAR's phase 3 moves and swaps tasks.)

mod annealing;
mod list_schedule;

use std::cell::RefCell;
use std::cmp::Reverse;

use tessera_model::mig::{MigState, Slot};
use tessera_model::{JobId, Millis};

use self::list_schedule::{ListScheduler, NotAbove};
use super::super::rounding::float_count;
use super::sizes::SizeOption;
use crate::predictor::SearchBudget;
use crate::view::MigView;

/// The most jobs that are planned together. Chosen to limit the duration of a round: with more jobs, each one
/// matters less.
pub(super) const PLANNED_MAX: usize = 100;

/// The most GPUs that are planned together. Chosen in the same way.
pub(super) const PLANNED_GPUS_MAX: usize = 16;

/// A number of competing jobs at which only the area of a size counts, and not the job's own time.
const LEAST_AREA: f64 = 1e9;

/// How much slower a job may be on another kind of GPU in the first candidates.
const SLOWER: [f64; 6] = [f64::INFINITY, 6.0, 4.0, 2.5, 1.5, 1.0];

/// The longest time of a job on another kind of GPU than its cheapest, as a fraction of the best makespan
/// that was found without such a limit. A long job on a slow GPU would run on alone.
const LONGEST: [f64; 3] = [0.5, 0.25, 0.1];

/// The weight of the makespan relative to the mean. Chosen on seeds 1 to 10: one half more of the makespan is
/// saved than with equal weights, and the mean is a few percent longer.
const MAKESPAN: f64 = 2.0;

/// The number of candidates after which the round's budget is checked.
const CHECKED_EVERY: usize = 64;

/// The budget's answers to plans are recorded under these numbers, apart from those to searches.
const BUDGET_NUMBERS: usize = 1_000_000;

/// How many other jobs each job is assumed to compete with in the first candidates, as fractions of the
/// waiting jobs.
const PRICES: [f64; 8] = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 1_000.0];

/// One GPU as the plan begins.
#[derive(Clone, Debug)]
pub(super) struct PlannedGpu<'c> {
    pub(super) mig: &'c MigView,
    pub(super) kind: usize,
    /// What jobs hold, and what stays for good.
    pub(super) busy: MigState,
    /// When each job there ends, in milliseconds from now, and its slot.
    pub(super) ends: Vec<(u64, Slot)>,
    /// Its place in the cluster view.
    pub(super) at: usize,
}

/// One job that waits.
#[derive(Clone, Debug)]
pub(super) struct PlannableJob<'c> {
    pub(super) job: JobId,
    /// How long it has waited, in milliseconds.
    pub(super) waited_ms: u64,
    pub(super) options: Vec<SizeOption<'c>>,
}

/// What a plan gives a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedJob {
    /// Its place among those that wait.
    pub(super) index: usize,
    /// Its size, by its place among the job's options.
    pub(super) option: usize,
    /// The GPU, by its place in the cluster view.
    pub(super) gpu: usize,
    pub(super) slot: Slot,
    /// When it starts and ends, in milliseconds from now.
    pub(super) begins: u64,
    pub(super) ends: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    order: Vec<usize>,
    sizes: Sizes,
}

/// The size of each job on each kind of GPU, as an index into the job's options; none where it must not run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sizes {
    kinds: usize,
    /// Those of one job after those of another.
    options: Vec<Option<usize>>,
}

impl Sizes {
    fn of(&self, job: usize) -> &[Option<usize>] {
        &self.options[job * self.kinds..][..self.kinds]
    }

    fn of_mut(&mut self, job: usize) -> &mut [Option<usize>] {
        &mut self.options[job * self.kinds..][..self.kinds]
    }
}

#[derive(Clone, Copy, Debug)]
struct Value {
    makespan: f64,
    sum: f64,
}

/// What makes a plan better: its makespan and its mean time, each relative to the best of the first candidates.
#[derive(Clone, Copy, Debug)]
struct Scale {
    makespan: f64,
    sum: f64,
}

impl Scale {
    fn score(self, value: Value) -> f64 {
        self.makespan * value.makespan + self.sum * value.sum
    }
}

struct Planner<'p, 'c> {
    jobs: &'p [PlannableJob<'c>],
    /// Times of options in whole milliseconds.
    ms: &'p [Vec<u64>],
    /// How many kinds of GPUs there are.
    kinds: usize,
    scheduler: RefCell<ListScheduler<'p, 'c>>,
}

/// Plans jobs; empty if no candidate places all of them. `price` computes the costs for so many other jobs.
pub(super) fn plan<'c>(
    gpus: &[PlannedGpu<'c>],
    jobs: &[PlannableJob<'c>],
    price: &dyn Fn(&mut [SizeOption<'c>], f64),
    budget: &dyn SearchBudget,
) -> Vec<PlannedJob> {
    let ms: Vec<Vec<u64>> = jobs
        .iter()
        .map(|job| {
            job.options.iter().map(|o| super::super::rounding::whole_ms(o.ms).max(1)).collect()
        })
        .collect();
    let kinds = gpus.iter().map(|gpu| gpu.kind + 1).max().unwrap_or(0);
    let scheduler = RefCell::new(ListScheduler::new(gpus, jobs, &ms));
    let planner = Planner { jobs, ms: &ms, kinds, scheduler };
    let shortest = ms.iter().flatten().min().map_or(Millis::ZERO, |ms| Millis::new(*ms));
    let mut tally = Tally { budget, shortest, count: 0 };
    let valued = planner.first_values(price, &mut tally);
    let least = |of: &dyn Fn(&Value) -> f64| {
        valued.iter().map(|(value, _)| of(value)).fold(f64::INFINITY, f64::min)
    };
    let best_of = (least(&|value| value.makespan).max(1.0), least(&|value| value.sum).max(1.0));
    let scale = Scale { makespan: MAKESPAN / best_of.0, sum: 1.0 / best_of.1 };
    let scored = valued.into_iter().map(|(value, candidate)| (scale.score(value), candidate));
    let Some(best) = scored.min_by(|a, b| a.0.total_cmp(&b.0)) else { return Vec::new() };
    let best = annealing::improved(&planner, best, scale, &mut tally);
    let mut planned = Vec::with_capacity(jobs.len());
    planner.value(&best, None, Some(&mut planned));
    planned
}

/// Counts candidates against the round's budget.
struct Tally<'b> {
    budget: &'b dyn SearchBudget,
    /// The shortest time of any job.
    shortest: Millis,
    count: usize,
}

impl Tally<'_> {
    /// Returns whether one more candidate may be evaluated.
    fn allows_more(&mut self) -> bool {
        let number = self.count;
        self.count += 1;
        !number.is_multiple_of(CHECKED_EVERY)
            || number == 0
            || self.budget.allows_plan(BUDGET_NUMBERS + number / CHECKED_EVERY, self.shortest)
    }
}

impl<'c> Planner<'_, 'c> {
    /// Evaluates the first candidates: at least one, however short the time is.
    fn first_values(
        &self,
        price: &dyn Fn(&mut [SizeOption<'c>], f64),
        tally: &mut Tally<'_>,
    ) -> Vec<(Value, Candidate)> {
        let mut valued: Vec<(Value, Candidate)> = Vec::new();
        let mut longest = vec![f64::INFINITY];
        while let Some(limit) = longest.pop() {
            for candidate in self.first_candidates(price, limit) {
                if !tally.allows_more() {
                    return valued;
                }
                let value = self.value(&candidate, None, None);
                valued.extend(value.map(|value| (value, candidate)));
            }
            if limit.is_infinite() && self.kinds > 1 {
                let spans = valued.iter().map(|(value, _)| value.makespan);
                let span = spans.fold(f64::INFINITY, f64::min);
                // Without any plan there is nothing to shorten, and a part of infinity would be searched again.
                if span.is_finite() {
                    longest.extend(LONGEST.iter().rev().map(|part| part * span));
                }
            }
        }
        valued
    }

    /// Returns the cheapest size of a job on each kind of GPU among so many others. The job takes at most `slower`
    /// times its time on the cheapest of all there, and on other kinds at most `longest`.
    fn cheapest(
        &self,
        job: usize,
        (others, slower, longest): (f64, f64, f64),
        price: &dyn Fn(&mut [SizeOption<'c>], f64),
    ) -> Vec<Option<usize>> {
        let mut priced = self.jobs[job].options.clone();
        price(&mut priced, others);
        let first = priced.first().copied();
        let (best, most) = first.map_or((0, 0.0), |first| (first.kind, slower * first.ms));
        let place = |chosen: &SizeOption<'c>| {
            let same = |option: &SizeOption<'c>| {
                option.kind == chosen.kind
                    && option.profile.map(|p| p.id) == chosen.profile.map(|p| p.id)
            };
            self.jobs[job].options.iter().position(same)
        };
        let of_kind = |kind: usize| {
            let fits = |option: &&SizeOption<'c>| {
                option.kind == kind && option.ms <= most && (kind == best || option.ms <= longest)
            };
            priced.iter().find(fits).and_then(place)
        };
        (0..self.kinds).map(of_kind).collect()
    }

    fn sizes(&self, of: &dyn Fn(usize) -> Vec<Option<usize>>) -> Sizes {
        let options = (0..self.jobs.len()).flat_map(of).collect();
        Sizes { kinds: self.kinds, options }
    }

    /// Sizes by price, and orders by time and by size.
    fn first_candidates(
        &self,
        price: &dyn Fn(&mut [SizeOption<'c>], f64),
        longest: f64,
    ) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        let slower: &[f64] = if self.kinds > 1 { &SLOWER } else { &SLOWER[..1] };
        for factor in PRICES {
            let others = factor * float_count(self.jobs.len());
            for slower in slower {
                let sizes =
                    self.sizes(&|job| self.cheapest(job, (others, *slower, longest), price));
                for by in [Order::Shortest, Order::Longest, Order::Largest] {
                    let order = self.ordered(&sizes, by);
                    let candidate = Candidate { order, sizes: sizes.clone() };
                    if !found.contains(&candidate) {
                        found.push(candidate);
                    }
                }
            }
        }
        // The family of FAR's first phase: the longest job gets its next larger size.
        let mut sizes =
            self.sizes(&|job| self.cheapest(job, (LEAST_AREA, f64::INFINITY, longest), price));
        for _ in 0..2 * self.jobs.len() {
            let longest = (0..self.jobs.len()).max_by_key(|job| self.least_ms(*job, &sizes));
            let Some(longest) = longest else { break };
            let mut grown = false;
            for size in sizes.of_mut(longest) {
                let Some(now) = *size else { continue };
                let kind = self.jobs[longest].options[now].kind;
                let faster = (0..self.ms[longest].len())
                    .filter(|option| self.jobs[longest].options[*option].kind == kind)
                    .filter(|option| self.ms[longest][*option] < self.ms[longest][now])
                    .max_by_key(|option| self.ms[longest][*option]);
                grown |= faster.is_some();
                *size = faster.or(*size);
            }
            if !grown {
                break;
            }
            let order = self.ordered(&sizes, Order::Largest);
            found.push(Candidate { order, sizes: sizes.clone() });
        }
        found
    }

    /// Returns the time of a job on the kind of GPU on which its size is fastest.
    fn least_ms(&self, job: usize, sizes: &Sizes) -> u64 {
        let times = sizes.of(job).iter().flatten().map(|option| self.ms[job][*option]);
        times.min().unwrap_or(u64::MAX)
    }

    fn ordered(&self, sizes: &Sizes, by: Order) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.jobs.len()).collect();
        let ms = |job: &usize| self.least_ms(*job, sizes);
        let slices = |job: &usize| {
            let profiles = sizes.of(*job).iter().flatten();
            let slices = profiles.map(|option| {
                self.jobs[*job].options[*option].profile.map_or(u8::MAX, |p| p.compute_slices)
            });
            slices.max().unwrap_or(0)
        };
        match by {
            Order::Shortest => order.sort_by_key(|job| (ms(job), *job)),
            Order::Longest => order.sort_by_key(|job| (Reverse(ms(job)), *job)),
            Order::Largest => order.sort_by_key(|job| (Reverse((slices(job), ms(job))), *job)),
        }
        order
    }

    /// Carries a candidate out. `None` if some job finds no place, or the candidate is not better than `limit`.
    fn value(
        &self,
        candidate: &Candidate,
        limit: Option<NotAbove>,
        note: Option<&mut Vec<PlannedJob>>,
    ) -> Option<Value> {
        self.scheduler.borrow_mut().value(candidate, limit, note)
    }
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Shortest,
    Longest,
    Largest,
}
