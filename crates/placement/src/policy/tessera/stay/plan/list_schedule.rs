//! List scheduling: a candidate carried out over the GPUs as they are.
//!
//! Whenever a slot is free, the first job of the order takes it for which one of its sizes is free. A plan compares
//! thousands of candidates, so all memory is kept from one to the next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tessera_model::mig::{MigState, ProfileId, Slot};

use super::super::super::rounding::float_sum;
use super::{Candidate, PlannableJob, PlannedGpu, PlannedJob, Scale, Value};

/// Stands for no place in the order.
const NONE: usize = usize::MAX;

/// How many bits of a [`JobLine::sizes`] a kind of GPU has: more than any GPU has profiles. With more than 16 kinds, jobs
/// of different sizes may share a line, and wait for each other.
const KIND_BITS: usize = 8;

/// A candidate is given up once its score can't be below this.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotAbove {
    pub(super) scale: Scale,
    pub(super) score: f64,
}

/// Carries out candidates.
pub(super) struct ListScheduler<'p, 'c> {
    gpus: &'p [PlannedGpu<'c>],
    jobs: &'p [PlannableJob<'c>],
    /// Times of each job's options, in milliseconds.
    ms: &'p [Vec<u64>],
    /// The number of each option's profile among those of its kind of GPU, from 1; `None` for GPUs with MIG off.
    numbers: Vec<Vec<Option<usize>>>,
    /// How long all jobs have waited together, in milliseconds.
    waited: u128,
    busy: Vec<MigState>,
    /// The ends of jobs, the soonest first: the time, the GPU's place and its slot.
    ends: BinaryHeap<Reverse<(u64, usize, Slot)>>,
    lines: Vec<JobLine>,
    /// The next place in the order with the same sizes, for each place.
    next: Vec<usize>,
    /// Profiles of kinds that have no free slot now, by kind and number.
    full: Vec<bool>,
}

/// Jobs that may have the same sizes: of those that wait only the first has to be looked at.
#[derive(Clone, Copy)]
struct JobLine {
    /// The number of the profile on each kind of GPU, [`KIND_BITS`] for each.
    sizes: u128,
    /// The first place in the order that has not started, and the last one.
    first: usize,
    last: usize,
    /// Whether none of the sizes is free at present.
    waits: bool,
}

impl<'p, 'c> ListScheduler<'p, 'c> {
    pub(super) fn new(
        gpus: &'p [PlannedGpu<'c>],
        jobs: &'p [PlannableJob<'c>],
        ms: &'p [Vec<u64>],
    ) -> Self {
        let mut known: Vec<Vec<ProfileId>> = Vec::new();
        let mut number = |kind: usize, profile: ProfileId| {
            if known.len() <= kind {
                known.resize(kind + 1, Vec::new());
            }
            let of_kind = &mut known[kind];
            let at = of_kind.iter().position(|id| *id == profile).unwrap_or_else(|| {
                of_kind.push(profile);
                of_kind.len() - 1
            });
            at + 1
        };
        let numbers = jobs
            .iter()
            .map(|job| {
                let options = job.options.iter();
                options.map(|one| Some(number(one.kind, one.profile?.id))).collect()
            })
            .collect();
        let waited = jobs.iter().map(|job| u128::from(job.waited_ms)).sum();
        let full = vec![false; known.len() << KIND_BITS];
        let (busy, ends) = (Vec::new(), BinaryHeap::new());
        let (lines, next) = (Vec::new(), Vec::new());
        Self { gpus, jobs, ms, numbers, waited, busy, ends, lines, next, full }
    }

    /// Carries a candidate out. `None` if some job finds no place, or the candidate is not better than `limit`.
    pub(super) fn value(
        &mut self,
        candidate: &Candidate,
        limit: Option<NotAbove>,
        mut note: Option<&mut Vec<PlannedJob>>,
    ) -> Option<Value> {
        self.begin(candidate);
        let mut pending = candidate.order.len();
        // The times of the jobs that have not started, at least.
        let mut to_run: u128 =
            candidate.order.iter().map(|job| self.least_ms(*job, candidate)).sum();
        let (mut now, mut last, mut sum) = (0_u64, 0_u64, self.waited);
        loop {
            self.full.fill(false);
            self.lines.iter_mut().for_each(|line| line.waits = false);
            while let Some(line) = self.first_line() {
                let place = self.lines[line].first;
                let job = candidate.order[place];
                let Some((option, (gpu, slot, state))) = self.first_free(job, candidate) else {
                    self.lines[line].waits = true;
                    continue;
                };
                self.lines[line].first = self.next[place];
                pending -= 1;
                to_run -= self.least_ms(job, candidate);
                self.busy[gpu] = state;
                let ends = now + self.ms[job][option];
                self.ends.push(Reverse((ends, gpu, slot)));
                last = last.max(ends);
                sum += u128::from(ends);
                if let Some(note) = note.as_deref_mut() {
                    let gpu = self.gpus[gpu].at;
                    note.push(PlannedJob { index: job, option, gpu, slot, begins: now, ends });
                }
            }
            if pending == 0 {
                break;
            }
            let Reverse((at, ..)) = *self.ends.peek()?;
            now = at;
            if let Some(NotAbove { scale, score }) = limit {
                let sum = sum + pending as u128 * u128::from(now) + to_run;
                let least = Value { makespan: float_sum(u128::from(last)), sum: float_sum(sum) };
                if scale.score(least) >= score {
                    return None;
                }
            }
            self.free_ended(now);
        }
        let running = self.gpus.iter().flat_map(|gpu| &gpu.ends).map(|(end, _)| *end).max();
        let makespan = float_sum(u128::from(last.max(running.unwrap_or(0))));
        let value = Value { makespan, sum: float_sum(sum) };
        limit.is_none_or(|limit| limit.scale.score(value) < limit.score).then_some(value)
    }

    /// Prepares for a candidate.
    fn begin(&mut self, candidate: &Candidate) {
        self.busy.clear();
        self.busy.extend(self.gpus.iter().map(|gpu| gpu.busy));
        self.ends.clear();
        for (place, gpu) in self.gpus.iter().enumerate() {
            self.ends.extend(gpu.ends.iter().map(|(end, slot)| Reverse((*end, place, *slot))));
        }
        self.lines.clear();
        self.next.clear();
        self.next.resize(candidate.order.len(), NONE);
        for (place, job) in candidate.order.iter().enumerate() {
            let numbers = candidate.sizes.of(*job).iter().map(|option| {
                option.and_then(|option| self.numbers[*job][option]).unwrap_or(0) as u128
            });
            let sizes = numbers.fold(0, |sizes, number| sizes << KIND_BITS | number);
            match self.lines.iter_mut().find(|line| line.sizes == sizes) {
                Some(line) => {
                    self.next[line.last] = place;
                    line.last = place;
                }
                None => {
                    self.lines.push(JobLine { sizes, first: place, last: place, waits: false });
                }
            }
        }
    }

    /// Returns the line whose first job is served next.
    fn first_line(&self) -> Option<usize> {
        let lines = self.lines.iter().enumerate();
        let ready = lines.filter(|(_, line)| !line.waits && line.first != NONE);
        ready.min_by_key(|(_, line)| line.first).map(|(at, _)| at)
    }

    /// Frees the slots of the jobs that have ended.
    fn free_ended(&mut self, now: u64) {
        while let Some(Reverse((end, place, slot))) = self.ends.peek().copied() {
            if end > now {
                break;
            }
            self.ends.pop();
            let space = self.gpus[place].mig.all();
            self.busy[place] = space.free(self.busy[place], slot).unwrap_or(self.busy[place]);
        }
    }

    /// Returns the time of a job on the kind of GPU on which its size is fastest.
    fn least_ms(&self, job: usize, candidate: &Candidate) -> u128 {
        let options = candidate.sizes.of(job).iter().flatten();
        options.map(|option| u128::from(self.ms[job][*option])).min().unwrap_or(0)
    }

    /// Returns the first of a job's sizes that is free now, the fastest kind of GPU first, and records those that are
    /// not free.
    fn first_free(
        &mut self,
        job: usize,
        candidate: &Candidate,
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
            let Some(number) = self.numbers[job][option] else { continue };
            let profile = self.jobs[job].options[option].profile?;
            let key = kind << KIND_BITS | number;
            if self.full[key] {
                continue;
            }
            match self.free_slot(kind, profile.id) {
                Some(free) => return Some((option, free)),
                None => self.full[key] = true,
            }
        }
    }

    /// Returns the place of a size that leaves most other places possible: on the GPU that is already the
    /// fullest.
    fn free_slot(&self, kind: usize, profile: ProfileId) -> Option<(usize, Slot, MigState)> {
        let gpus = self.gpus.iter().enumerate().filter(|(_, gpu)| gpu.kind == kind);
        let found = gpus.filter_map(|(place, gpu)| {
            let space = gpu.mig.all();
            let (slot, after) = space.best_placement(self.busy[place], profile)?;
            let lost = space.reachability(self.busy[place]).saturating_sub(after);
            Some((lost, place, slot))
        });
        let (_, place, slot) = found.min()?;
        let next = self.gpus[place].mig.all().allocate(self.busy[place], slot)?;
        Some((place, slot, next))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tessera_model::JobId;
    use tessera_model::mig::catalog;

    use super::super::super::sizes::SizeOption;
    use super::super::Sizes;
    use super::*;
    use crate::view::MigView;

    proptest! {
        /// A search gives up candidates early: it must never give up a better one, nor keep a worse one.
        #[test]
        fn a_limit_rejects_exactly_the_candidates_that_are_not_better(
            jobs in vec((0..5_usize, 1..1_000_u64), 1..20),
            part in 0.1..2.0_f64,
        ) {
            let mig = MigView::new(catalog::find("a100-40gb").unwrap().geometry()).unwrap();
            let profiles: Vec<_> = mig.plain().collect();
            let option = |(at, ms): &(usize, u64)| SizeOption {
                kind: 0,
                profile: Some(profiles[at % profiles.len()]),
                ms: float_sum(u128::from(*ms)),
                late: 1.0,
                cost: 0.0,
            };
            let planned: Vec<PlannableJob<'_>> = (1..)
                .zip(&jobs)
                .map(|(id, job)| PlannableJob {
                    job: JobId::from_number(id),
                    waited_ms: 0,
                    options: vec![option(job)],
                })
                .collect();
            let ms: Vec<Vec<u64>> = jobs.iter().map(|(_, ms)| vec![*ms]).collect();
            let gpus =
                [PlannedGpu { mig: &mig, kind: 0, busy: MigState::EMPTY, ends: Vec::new(), at: 0 }];
            let mut scheduler = ListScheduler::new(&gpus, &planned, &ms);
            let candidate = Candidate {
                order: (0..jobs.len()).collect(),
                sizes: Sizes { kinds: 1, options: vec![Some(0); jobs.len()] },
            };
            let scale = Scale { makespan: 2.0, sum: 1.0 };
            let mut starts = Vec::new();
            let free = scheduler.value(&candidate, None, Some(&mut starts)).unwrap();

            let limit = NotAbove { scale, score: part * scale.score(free) };
            let limited = scheduler.value(&candidate, Some(limit), None);

            prop_assert_eq!(starts.len(), jobs.len());
            prop_assert_eq!(limited.is_some(), scale.score(free) < limit.score);
            prop_assert!(limited.is_none_or(|value| scale.score(value) == scale.score(free)));
        }
    }
}
