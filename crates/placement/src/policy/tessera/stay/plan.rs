//! A plan for a closed batch: every waiting job, with its size, its place and its time.
//!
//! It is for jobs whose times are known, when no more jobs seem to arrive. Sizes and order are searched
//! together. Each candidate is carried out by list scheduling over the GPUs as they are, and running jobs
//! stay where they are. Whenever a slot is free, the first job of the order whose size fits takes it. The
//! largest sizes come first, so that the pieces of the GPUs only become smaller, as in FAR (arXiv 2507.13601,
//! phases 1 and 2).
//!
//! A candidate is better if its makespan, which counts twice, and its mean time, each relative to the best of
//! the first candidates, have a smaller sum. Starting with the best one, the size of a job or its place in the order is
//! changed as long as that helps. (FAR's phase 3 moves and swaps tasks.) The changes follow a fixed sequence,
//! so the same round makes the same plan.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tessera_model::JobId;
use tessera_model::mig::{MigState, ProfileId, Slot};

use super::super::rounding::{float_count, float_sum};
use super::sizes::SizeOption;
use crate::predictor::SearchBudget;
use crate::view::MigView;

/// The most jobs that are planned together. Chosen to limit the duration of a round: with more jobs, each one
/// matters less.
pub(super) const PLANNED_MAX: usize = 100;

/// The most GPUs that are planned together. Chosen in the same way.
pub(super) const PLANNED_GPUS_MAX: usize = 16;

/// The number of candidates for a plan of one job; it falls with the square of the number of jobs. Chosen to
/// limit the duration of a round.
const CANDIDATES: usize = 1_600_000;
const CANDIDATES_MIN: usize = 800;
const CANDIDATES_MAX: usize = 3_000;

/// The same for the least area: so many that a job's own time has no weight.
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

struct Planner<'p, 'c> {
    gpus: &'p [PlannedGpu<'c>],
    jobs: &'p [PlannableJob<'c>],
    /// Times of options in whole milliseconds.
    ms: Vec<Vec<u64>>,
    /// How many kinds of GPUs there are.
    kinds: usize,
    waited: u128,
}

/// Plans jobs; empty if no candidate places all of them. `price` computes the costs for so many other jobs.
pub(super) fn plan<'c>(
    gpus: &[PlannedGpu<'c>],
    jobs: &[PlannableJob<'c>],
    price: &dyn Fn(&mut [SizeOption<'c>], f64),
    budget: &dyn SearchBudget,
) -> Vec<PlannedJob> {
    let ms = jobs
        .iter()
        .map(|job| {
            job.options.iter().map(|o| super::super::rounding::whole_ms(o.ms).max(1)).collect()
        })
        .collect();
    let waited = jobs.iter().map(|job| u128::from(job.waited_ms)).sum();
    let kinds = gpus.iter().map(|gpu| gpu.kind + 1).max().unwrap_or(0);
    let planner = Planner { gpus, jobs, ms, kinds, waited };
    let mut tally = Tally { budget, count: 0 };
    let valued = planner.first_values(price, &mut tally);
    let least = |of: &dyn Fn(&Value) -> f64| {
        valued.iter().map(|(value, _)| of(value)).fold(f64::INFINITY, f64::min)
    };
    let best_of = (least(&|value| value.makespan).max(1.0), least(&|value| value.sum).max(1.0));
    let score = |value: &Value| MAKESPAN * value.makespan / best_of.0 + value.sum / best_of.1;
    let scored = valued.into_iter().map(|(value, candidate)| (score(&value), candidate));
    let Some(best) = scored.min_by(|a, b| a.0.total_cmp(&b.0)) else { return Vec::new() };
    let best = planner.improved(best, &score, &mut tally);
    let mut planned = Vec::with_capacity(jobs.len());
    planner.value(&best, Some(&mut planned));
    planned
}

/// Counts candidates against the round's budget.
struct Tally<'b> {
    budget: &'b dyn SearchBudget,
    count: usize,
}

impl Tally<'_> {
    /// Returns whether one more candidate may be evaluated.
    fn allows_more(&mut self) -> bool {
        let number = self.count;
        self.count += 1;
        !number.is_multiple_of(CHECKED_EVERY)
            || number == 0
            || self.budget.allows(BUDGET_NUMBERS + number / CHECKED_EVERY)
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
                let value = self.value(&candidate, None);
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

    /// Changes a candidate as long as that improves it.
    fn improved(
        &self,
        (mut known, mut best): (f64, Candidate),
        score: &dyn Fn(&Value) -> f64,
        tally: &mut Tally<'_>,
    ) -> Candidate {
        let count = self.jobs.len().max(1);
        let tries = (CANDIDATES / (count * count)).clamp(CANDIDATES_MIN, CANDIDATES_MAX);
        let mut sequence = Sequence(0x9E37_79B9_7F4A_7C15);
        for _ in 0..tries {
            if !tally.allows_more() {
                break;
            }
            let next = self.altered(&best, &mut sequence);
            if next == best {
                continue;
            }
            let Some(value) = self.value(&next, None) else { continue };
            if score(&value) < known {
                (known, best) = (score(&value), next);
            }
        }
        best
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

    /// Carries a candidate out by list scheduling; `None` if some job finds no place.
    fn value(
        &self,
        candidate: &Candidate,
        mut note: Option<&mut Vec<PlannedJob>>,
    ) -> Option<Value> {
        let mut busy: Vec<MigState> = self.gpus.iter().map(|gpu| gpu.busy).collect();
        let mut heap: BinaryHeap<Reverse<(u64, usize, Slot)>> = BinaryHeap::new();
        for (place, gpu) in self.gpus.iter().enumerate() {
            heap.extend(gpu.ends.iter().map(|(end, slot)| Reverse((*end, place, *slot))));
        }
        let mut lines = self.lines(candidate);
        let mut pending = candidate.order.len();
        let (mut now, mut last, mut sum) = (0_u64, 0_u64, self.waited);
        let mut full: Vec<(usize, ProfileId)> = Vec::new();
        loop {
            full.clear();
            for line in &mut lines {
                line.waits = false;
            }
            while let Some(line) = Line::first(&lines) {
                let job = candidate.order[lines[line].places[lines[line].served]];
                let found = self.first_free(job, candidate, &busy, &mut full);
                let Some((option, (place, slot, next))) = found else {
                    lines[line].waits = true;
                    continue;
                };
                lines[line].served += 1;
                pending -= 1;
                busy[place] = next;
                let ends = now + self.ms[job][option];
                heap.push(Reverse((ends, place, slot)));
                last = last.max(ends);
                sum += u128::from(ends);
                if let Some(note) = note.as_deref_mut() {
                    let gpu = self.gpus[place].at;
                    note.push(PlannedJob { index: job, option, gpu, slot, begins: now, ends });
                }
            }
            if pending == 0 {
                break;
            }
            let Reverse((at, ..)) = *heap.peek()?;
            now = at;
            while let Some(Reverse((end, place, slot))) = heap.peek().copied() {
                if end > now {
                    break;
                }
                heap.pop();
                let space = self.gpus[place].mig.all();
                busy[place] = space.free(busy[place], slot).unwrap_or(busy[place]);
            }
        }
        let running = self.gpus.iter().flat_map(|gpu| &gpu.ends).map(|(end, _)| *end).max();
        let makespan = float_sum(u128::from(last.max(running.unwrap_or(0))));
        Some(Value { makespan, sum: float_sum(sum) })
    }

    /// Returns the jobs by the sizes that they may have: of those that wait for the same sizes only the first has
    /// to be looked at.
    fn lines(&self, candidate: &Candidate) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for (place, job) in candidate.order.iter().enumerate() {
            let profile = |option: &Option<usize>| {
                option.and_then(|option| self.jobs[*job].options[option].profile).map(|p| p.id)
            };
            let sizes = candidate.sizes.of(*job);
            let same = |line: &Line| {
                let other = candidate.order[line.places[0]];
                candidate.sizes.of(other).iter().zip(sizes).all(|(a, b)| {
                    let other = a.and_then(|option| self.jobs[other].options[option].profile);
                    other.map(|p| p.id) == profile(b)
                })
            };
            match lines.iter_mut().find(|line| same(line)) {
                Some(line) => line.places.push(place),
                None => lines.push(Line { places: vec![place], served: 0, waits: false }),
            }
        }
        lines
    }

    /// Returns the first of a job's sizes that is free now, the fastest kind of GPU first. `full` records
    /// those that are not free.
    fn first_free(
        &self,
        job: usize,
        candidate: &Candidate,
        busy: &[MigState],
        full: &mut Vec<(usize, ProfileId)>,
    ) -> Option<(usize, (usize, Slot, MigState))> {
        let sizes = candidate.sizes.of(job);
        let mut tried = 0_usize;
        // The fastest that was not tried yet; there are a few kinds only.
        loop {
            let rest = (0..sizes.len()).filter(|kind| tried & (1 << kind) == 0);
            let next = rest.filter(|kind| sizes[*kind].is_some());
            let kind = next.min_by_key(|kind| sizes[*kind].map(|option| self.ms[job][option]))?;
            tried |= 1 << kind;
            let option = sizes[kind]?;
            let SizeOption { kind, profile, .. } = self.jobs[job].options[option];
            let Some(profile) = profile else { continue };
            let key = (kind, profile.id);
            if full.contains(&key) {
                continue;
            }
            let free = self.free_slot(busy, kind, profile.id);
            if free.is_none() {
                full.push(key);
            }
            if let Some(free) = free {
                return Some((option, free));
            }
        }
    }

    /// Returns the place of a size that leaves most other places possible: on the GPU that is already the
    /// fullest.
    fn free_slot(
        &self,
        busy: &[MigState],
        kind: usize,
        profile: ProfileId,
    ) -> Option<(usize, Slot, MigState)> {
        let gpus = self.gpus.iter().enumerate().filter(|(_, gpu)| gpu.kind == kind);
        let found = gpus.filter_map(|(place, gpu)| {
            let space = gpu.mig.all();
            let (slot, after) = space.best_placement(busy[place], profile)?;
            let lost = space.reachability(busy[place]).saturating_sub(after);
            Some((lost, place, slot))
        });
        let (_, place, slot) = found.min()?;
        let next = self.gpus[place].mig.all().allocate(busy[place], slot)?;
        Some((place, slot, next))
    }

    /// Changes the size of a job, or its place in the order.
    fn altered(&self, known: &Candidate, sequence: &mut Sequence) -> Candidate {
        let mut next = known.clone();
        let count = self.jobs.len();
        let at = sequence.below(count);
        match sequence.below(4) {
            0 | 1 => {
                let job = known.order[at];
                let option = sequence.below(self.jobs[job].options.len());
                let kind = self.jobs[job].options[option].kind;
                // If it has a size on another kind of GPU, too, it may also give up this kind.
                let others = next.sizes.of(job).iter().flatten().count() > 1;
                let gives_up =
                    others && next.sizes.of(job)[kind].is_some() && sequence.below(3) == 0;
                next.sizes.of_mut(job)[kind] = (!gives_up).then_some(option);
            }
            2 => {
                let job = next.order.remove(at);
                next.order.insert(sequence.below(count), job);
            }
            _ => next.order.swap(at, sequence.below(count)),
        }
        next
    }
}

/// Jobs that wait for the same sizes.
struct Line {
    /// Their places in the order of service.
    places: Vec<usize>,
    /// How many of them have started.
    served: usize,
    /// Whether none of their sizes is free at present.
    waits: bool,
}

impl Line {
    /// Returns the line whose first job is served next.
    fn first(lines: &[Self]) -> Option<usize> {
        let next = |at: &usize| {
            let line = &lines[*at];
            line.places.get(line.served).copied().filter(|_| !line.waits)
        };
        (0..lines.len()).filter(|at| next(at).is_some()).min_by_key(next)
    }
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Shortest,
    Longest,
    Largest,
}

/// A fixed sequence of numbers (xorshift64*; Vigna, 2016): the plan of a round must be the same each time.
///
/// It stays our own: `rand_xoshiro`, which other generators use, has no xorshift64*. With other numbers,
/// recorded rounds would be decided differently.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(drawn).unwrap_or(0) % bound.max(1)
    }
}
