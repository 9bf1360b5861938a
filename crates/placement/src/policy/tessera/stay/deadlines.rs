//! Deadlines that whole GPUs meet.
//!
//! A slice makes a job with a deadline longer, and takes from a GPU what a later job with a deadline may need at
//! once. So earliest deadline first on whole GPUs is planned (Liu and Layland, 1973, without preemption). If that meets
//! the deadlines of all waiting jobs, it is a witness. When it decides, its first jobs start, and the others have
//! reservations on whole GPUs. It then exists in the next round, too. So none of these deadlines is missed as long as
//! times are as predicted and no more jobs arrive.
//!
//! - It decides under pressure only: if it leaves some job little slack ([`PRESSED`]), or if some job that waits or runs
//!   was submitted with little ([`URGENT`]). More jobs like these are expected, and such a job needs a whole GPU at once.
//!   Otherwise sizes are chosen by their cost, and jobs are moved. Once jobs with deadlines run on slices, there is no
//!   whole GPU to keep.
//! - It decides as well if there would be no such plan after the round's other decisions ([`StayRound::keeps_plan`]).
//! - If the plan misses any deadline, slices may meet more of them, since they do more work in the same time. Then
//!   each job takes a size on which it is in time, as without a plan.
//! - Jobs that have waited too long, and jobs of better priority, are served before it. Jobs without a deadline may use
//!   what it leaves, as with any reservation.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tessera_model::mig::Slot;
use tessera_model::{GpuId, JobId};

use super::super::horizon::survey_step;
use super::super::rounding::float;
use super::order::TimedJob;
use super::reservations::Reservation;
use super::sizes::{self, SizeOption, SizedJob};
use super::{DEADLINE_DEPTH, PlaceNow, StayRound};
use crate::decision::Decision;
use crate::offer::Offer;
use crate::view::QueuedJob;

/// How much slack a plan leaves a job under pressure at most, as a multiple of its least time. Chosen: with 4, fewer of the
/// deadlines were missed that whole GPUs meet (27 instead of 39 of 4,800). But where these miss many, up to 13 % fewer
/// deadlines are met.
const PRESSED: f64 = 0.5;

/// From its submit to its deadline, a job that needs a whole GPU at once has at most so many times its least time. Chosen:
/// half of a GPU is usually too slow for it, with any wait.
const URGENT: f64 = 2.0;

/// The most changes of the order of a plan that misses deadlines, and how far a job is moved forward. Chosen to limit the
/// duration of a round.
const CHANGES_MAX: usize = 16;
const FORWARD_MAX: usize = 8;

/// A job with a deadline on a whole GPU.
struct DueJob<'q, 'c> {
    job: &'q QueuedJob,
    /// Its shortest time anywhere, in milliseconds.
    least_ms: f64,
    /// Whether it was submitted with little slack ([`URGENT`]).
    is_urgent: bool,
    /// Whole GPUs, by kind, with the job's time there.
    wholes: Vec<SizeOption<'c>>,
    deadline: f64,
}

/// What the plan gives one of them.
struct DueStep<'c> {
    /// Its place among the jobs with deadlines.
    job: usize,
    option: SizeOption<'c>,
    gpu: usize,
    slot: Option<Slot>,
    begins: f64,
    ends: f64,
}

/// Earliest deadline first on whole GPUs, without a missed deadline.
struct DuePlan<'c> {
    /// In the order of service.
    steps: Vec<DueStep<'c>>,
    /// Whether it leaves some job little slack.
    is_tight: bool,
}

/// What deadlines mean for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum DeadlinePressure {
    /// No job has a deadline, or whole GPUs do not meet all deadlines.
    Unplanned,
    /// Whole GPUs meet all deadlines, and there is slack.
    Loose,
    /// Whole GPUs meet all deadlines, and there is little slack: that plan decides.
    Tight,
}

/// A GPU in a plan.
struct DueGpu {
    gpu: usize,
    kind: usize,
    slot: Option<Slot>,
    /// When it is free of jobs.
    at: f64,
    /// Whether all of their ends are known.
    known: bool,
}

impl<'c> StayRound<'c> {
    /// Returns whether earliest deadline first on whole GPUs meets the deadlines of these jobs, and how much slack it leaves.
    pub(super) fn pressure_on(&mut self, timed: &[TimedJob<'_>]) -> DeadlinePressure {
        let due = self.due_jobs(timed);
        if due.is_empty() {
            return DeadlinePressure::Unplanned;
        }
        let gpus = self.due_gpus(&due);
        match plan_in_time(&due, &gpus) {
            None => DeadlinePressure::Unplanned,
            Some(plan) if self.is_pressed(plan.is_tight) => DeadlinePressure::Tight,
            Some(_) => DeadlinePressure::Loose,
        }
    }

    /// Returns whether such a plan exists for these jobs after decisions, and each of them that gets a place is in
    /// time there.
    pub(super) fn keeps_plan(&mut self, timed: &[TimedJob<'_>], decided: &[Decision]) -> bool {
        let mut due = self.due_jobs(timed);
        let mut gpus = self.due_gpus(&due);
        let place_of = |round: &Self, id: &GpuId| {
            (0..round.state.gpus.len()).find(|at| round.state.gpus[*at].view.id == *id)
        };
        let mut placed: BTreeMap<JobId, f64> = BTreeMap::new();
        for decision in decided {
            let (gpu, jobs, begins_anew) = match decision {
                Decision::Start { job, place, .. } => (&place.gpu, vec![(*job, place.slot)], false),
                Decision::Reshape { reshape, .. } => {
                    let jobs = reshape.placements.iter().map(|placed| (placed.job, placed.slot));
                    (&reshape.gpu, jobs.collect(), true)
                }
                Decision::Wait { .. } | Decision::Preempt { .. } => continue,
            };
            let Some(gpu) = place_of(self, gpu) else { continue };
            let mut planned = gpus.iter_mut().find(|planned| planned.gpu == gpu);
            if let Some(planned) = planned.as_mut().filter(|_| begins_anew) {
                (planned.at, planned.known) = (float(self.now), true);
            }
            for (job, slot) in jobs {
                let end = self.end_at(job, gpu, slot);
                if let Some(planned) = planned.as_mut() {
                    planned.at = planned.at.max(end.unwrap_or(planned.at));
                    planned.known &= end.is_some();
                }
                placed.insert(job, end.unwrap_or(f64::INFINITY));
            }
        }
        let in_time =
            |due: &DueJob<'_, '_>| placed.get(&due.job.id).is_none_or(|end| *end <= due.deadline);
        if !due.iter().all(in_time) {
            return false;
        }
        due.retain(|due| !placed.contains_key(&due.job.id));
        due.is_empty() || plan_in_time(&due, &gpus).is_some()
    }

    /// Returns when a job is expected to end that continues on an instance, or starts there; `None` if that is not
    /// known.
    fn end_at(&mut self, job: JobId, gpu: usize, slot: Option<Slot>) -> Option<f64> {
        if self.state.gpus[gpu].holders(slot).contains(&job) {
            let end = self.ends.of(job, self.state.gpus[gpu].view, slot);
            return end.known.then_some(end.at);
        }
        let view = self.state.gpus[gpu].view;
        let profile = view.mig.as_deref()?.geometry.profile(slot?.profile)?;
        let run = self.knowledge.predictor.predict_run(job, view, profile)?;
        let facts = self.knowledge.jobs.facts(job);
        let done = f64::from(facts.done.unwrap_or(0)) / 1_000_000.0;
        let begun = done > 0.0 || facts.since.is_some();
        let price = facts.migration_price.filter(|_| begun).map_or(0.0, float);
        Some(float(self.now) + price + float(run.time) * (1.0 - done))
    }

    /// Serves the jobs with a deadline among these, if a plan on whole GPUs decides about them. Returns the jobs
    /// about which it decided.
    pub(super) fn serve_deadlines(
        &mut self,
        timed: &[TimedJob<'_>],
        starts_max: usize,
        waiting: usize,
    ) -> Vec<JobId> {
        let due = self.due_jobs(timed);
        let gpus = self.due_gpus(&due);
        let plan = plan_in_time(&due, &gpus).filter(|_| !due.is_empty());
        let Some(DuePlan { steps, is_tight }) = plan else { return Vec::new() };
        if !(self.plans_deadlines || self.is_pressed(is_tight)) {
            return Vec::new();
        }
        let now = float(self.now);
        let mut decided = Vec::with_capacity(due.len());
        for step in steps {
            let due = &due[step.job];
            if self.started >= starts_max {
                break;
            }
            decided.push(due.job.id);
            let offer = if step.begins <= now { self.whole_offer(&step) } else { None };
            if let Some(offer) = offer {
                let place = PlaceNow { option: step.option, gpu: step.gpu, offer };
                let sized = SizedJob::due(due.wholes.clone(), due.least_ms);
                self.start(due.job, &sized, place, waiting.saturating_sub(self.started + 1));
                continue;
            }
            if self.reservations.len() < DEADLINE_DEPTH {
                self.reserve(Reservation {
                    job: due.job.id,
                    gpu: step.gpu,
                    slot: step.slot,
                    begins: step.begins,
                    ends: step.ends,
                    open_until: step.begins,
                });
            }
            self.first_waiting.get_or_insert(due.job.id);
            let size = self.requests.size(due.job);
            self.waiting.entry(size.number).or_insert(due.job.id);
            self.wait(due.job, &size);
        }
        decided
    }

    /// Returns the jobs with a deadline that may have a whole GPU, the earliest deadline first.
    fn due_jobs<'q>(&self, timed: &[TimedJob<'q>]) -> Vec<DueJob<'q, 'c>> {
        let mut found: Vec<DueJob<'q, 'c>> = Vec::new();
        // Also far ones: a long job that starts now may still run then.
        for one in timed {
            let Some(deadline) = one.deadline else { continue };
            // A quota may not be enough for all of them on whole GPUs.
            if self.quotas.as_ref().is_some_and(|quotas| quotas.left_for(one.job).is_some()) {
                continue;
            }
            let wholes = sizes::on_whole_gpus(&self.kinds, self.knowledge, one.job);
            if wholes.is_empty() {
                continue;
            }
            let (job, least_ms) = (one.job, one.least_ms);
            let is_urgent = deadline - float(job.submitted) <= URGENT * least_ms;
            found.push(DueJob { job, least_ms, is_urgent, wholes, deadline });
        }
        found.sort_by(|a, b| {
            a.deadline.total_cmp(&b.deadline).then_with(|| a.job.id.cmp(&b.job.id))
        });
        found
    }

    /// Returns when each GPU on which one of the jobs may run is expected to be free.
    fn due_gpus(&mut self, due: &[DueJob<'_, 'c>]) -> Vec<DueGpu> {
        let mut gpus = Vec::new();
        for kind in 0..self.kinds.len() {
            let mut wholes = due.iter().flat_map(|due| &due.wholes);
            let Some(option) = wholes.find(|option| option.kind == kind).copied() else { continue };
            let later = self.later_slots(&option);
            for (gpu, slots) in later.by_gpu.iter().enumerate() {
                if let Some(free) = slots.iter().flat_map(|slots| slots.iter()).next() {
                    gpus.push(DueGpu {
                        gpu,
                        kind,
                        slot: free.slot,
                        at: free.at,
                        known: free.known,
                    });
                }
            }
        }
        gpus
    }

    /// Returns whether a plan decides that leaves waiting jobs little slack, or more. In a large cluster a sample of
    /// the GPUs is read.
    fn is_pressed(&mut self, is_tight: bool) -> bool {
        let step = survey_step(self.state.gpus.len());
        let mut pressed = is_tight;
        for gpu in (0..self.state.gpus.len()).step_by(step) {
            for (job, slot, is_whole) in self.jobs_on(gpu) {
                let has_deadline = self.knowledge.jobs.facts(job).deadline.is_some();
                if has_deadline && !is_whole {
                    return false;
                }
                pressed = pressed || has_deadline && self.is_pressed_there(job, gpu, slot);
            }
        }
        pressed
    }

    /// Returns the GPUs that a running job has to itself that has little slack before its deadline.
    pub(super) fn pressed_gpus(&mut self) -> BTreeSet<GpuId> {
        let mut found = BTreeSet::new();
        for gpu in 0..self.state.gpus.len() {
            let jobs = self.jobs_on(gpu);
            let mut wholes = jobs.into_iter().filter(|(.., is_whole)| *is_whole);
            if wholes.any(|(job, slot, _)| self.is_pressed_there(job, gpu, slot)) {
                found.insert(self.state.gpus[gpu].view.id.clone());
            }
        }
        found
    }

    /// Returns the jobs on a GPU with their slots, and whether these are the whole GPU.
    fn jobs_on(&self, gpu: usize) -> Vec<(JobId, Option<Slot>, bool)> {
        let (now, kind) = (&self.state.gpus[gpu], &self.kinds[self.kind_of[gpu]]);
        let on = |slot: Option<Slot>| {
            let profile = slot.and_then(|slot| kind.mig()?.geometry.profile(slot.profile));
            let is_whole = kind.part(profile) >= 1.0;
            now.holders(slot).into_iter().map(move |job| (job, slot, is_whole))
        };
        now.instances.iter().flat_map(|instance| on(instance.slot)).collect()
    }

    /// Returns whether a running job has little slack before its deadline, or was submitted with little.
    fn is_pressed_there(&mut self, job: JobId, gpu: usize, slot: Option<Slot>) -> bool {
        let Some(deadline) = self.knowledge.jobs.facts(job).deadline.map(float) else {
            return false;
        };
        let end = self.ends.of(job, self.state.gpus[gpu].view, slot);
        let least = self.kinds.iter().filter_map(|kind| {
            let whole = kind.mig()?.largest()?;
            self.knowledge.predictor.predict_run(job, kind.view, whole)
        });
        let least = least.map(|run| float(run.time)).fold(f64::INFINITY, f64::min);
        let slack = deadline - end.at;
        let urgent = deadline - end.submitted <= URGENT * least;
        end.known && least.is_finite() && slack >= 0.0 && (urgent || slack <= PRESSED * least)
    }

    /// Returns how a whole GPU can be had now.
    fn whole_offer(&mut self, step: &DueStep<'c>) -> Option<Rc<Offer>> {
        self.offer_in(&step.option, step.gpu, step.slot?)
    }
}

/// Plans jobs on whole GPUs in the order of their deadlines; `None` if that misses one. Without preemption this order
/// is not always the best: a job that would be late is moved forward, if the jobs that it passes stay in time.
fn plan_in_time<'c>(due: &[DueJob<'_, 'c>], gpus: &[DueGpu]) -> Option<DuePlan<'c>> {
    let mut order: Vec<usize> = (0..due.len()).collect();
    let mut changes = 0;
    loop {
        let late = match carry_out(due, &order, gpus) {
            Ok(plan) => return Some(plan),
            Err(late) => late,
        };
        let forward = (late.saturating_sub(FORWARD_MAX)..late).rev().find_map(|to| {
            changes += 1;
            let mut next = order.clone();
            next[to..=late].rotate_right(1);
            let is_later = changes <= CHANGES_MAX
                && carry_out(due, &next, gpus).map_or_else(|still| still > late, |_| true);
            is_later.then_some(next)
        });
        order = forward?;
    }
}

/// Carries a plan out: each job is planned where it ends first. Fails with the place in the order of the first job that
/// would be late.
fn carry_out<'c>(
    due: &[DueJob<'_, 'c>],
    order: &[usize],
    gpus: &[DueGpu],
) -> Result<DuePlan<'c>, usize> {
    let mut free: Vec<f64> = gpus.iter().map(|gpu| gpu.at).collect();
    let mut plan = DuePlan { steps: Vec::with_capacity(due.len()), is_tight: false };
    for (place, job) in order.iter().enumerate() {
        let due = &due[*job];
        let mut best: Option<(f64, usize, SizeOption<'c>)> = None;
        for (at, gpu) in gpus.iter().enumerate().filter(|(_, gpu)| gpu.known) {
            let Some(on) = due.wholes.iter().find(|option| option.kind == gpu.kind) else {
                continue;
            };
            let ends = free[at] + on.ms;
            if best.is_none_or(|(soonest, ..)| ends < soonest) {
                best = Some((ends, at, *on));
            }
        }
        let (ends, at, option) = best.filter(|(ends, ..)| *ends <= due.deadline).ok_or(place)?;
        plan.is_tight |= due.is_urgent || due.deadline - ends <= PRESSED * due.least_ms;
        let (gpu, slot, begins) = (gpus[at].gpu, gpus[at].slot, free[at]);
        plan.steps.push(DueStep { job: *job, option, gpu, slot, begins, ends });
        free[at] = ends;
    }
    Ok(plan)
}
