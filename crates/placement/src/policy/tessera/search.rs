//! The search of `tessera`: each GPU is searched exactly, and GPUs are compared by how much a job
//! adds to their scores.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tessera_model::mig::{Layout, Slot};
use tessera_model::{JobId, Millis};

use super::super::planned_gpu::because;
use super::NAME;
use super::fairness::{Held, SLICES_OF_GPU, SearchQuotas};
use super::gpu_index::GpuIndex;
use super::horizon::survey_step;
use super::overdue::OverdueHolders;
use super::pairs::{PairScores, SlotUnit};
use super::rounding::float_count;
use super::scoring::{ScoreRows, Scoring};
use crate::decision::{Decision, PlacedJob, Reshape, StayingJobs};
use crate::facts::SliceLimit;
use crate::placement_search::{JOBS_MAX, NO_PLACEMENT, SearchBuffers};
use crate::view::{GpuView, QueuedJob};

/// The most GPUs that are considered for an overdue job. Chosen: all GPUs of the largest cluster
/// that one controller plans for.
const CALM_MAX: usize = 100_000;

/// Placements of one GPU with their score, less the cost of moving to them.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) layout: Layout,
    pub(super) placements: Vec<PlacedJob>,
    pub(super) score: i64,
}

impl Plan {
    pub(super) fn jobs(&self) -> Vec<JobId> {
        self.placements.iter().map(|placed| placed.job).collect()
    }
}

pub(super) struct Search<'c, 'd> {
    pub(super) scoring: Scoring<'c>,
    pub(super) index: &'d mut GpuIndex,
    buffers: &'d mut SearchBuffers,
    pub(super) rows: ScoreRows,
    /// The scores of pairs that share a slot of a GPU, as far as they were computed.
    pub(super) pairs: BTreeMap<(JobId, JobId, usize), Option<Rc<PairScores>>>,
    quotas: SearchQuotas,
    /// The scores of the GPUs' current placements.
    present: BTreeMap<usize, i64>,
    /// The plans of GPUs, while jobs are still being added.
    pub(super) promised: BTreeMap<usize, Plan>,
    /// GPUs between which this round already moves jobs.
    pub(super) shifted: BTreeSet<usize>,
    /// Jobs for which this round tried to free space.
    pub(super) freed_for: usize,
    /// How many searches are left for freeing space.
    pub(super) effort: usize,
    changes: Vec<(Reshape, String)>,
}

impl<'c, 'd> Search<'c, 'd> {
    pub(super) fn new(
        scoring: Scoring<'c>,
        index: &'d mut GpuIndex,
        buffers: &'d mut SearchBuffers,
    ) -> Self {
        Self {
            scoring,
            index,
            buffers,
            rows: ScoreRows::default(),
            pairs: BTreeMap::new(),
            quotas: SearchQuotas::default(),
            present: BTreeMap::new(),
            promised: BTreeMap::new(),
            shifted: BTreeSet::new(),
            freed_for: 0,
            effort: scoring.settings.effort,
            changes: Vec::new(),
        }
    }

    pub(super) fn any_open(&self) -> bool {
        self.index.any_open()
    }

    /// Returns the first GPU of each model.
    pub(super) fn kinds(&self) -> Vec<usize> {
        self.index.kinds().to_vec()
    }

    pub(super) fn decisions(self) -> Vec<Decision> {
        let changes = self.changes.into_iter();
        changes
            .map(|(reshape, text)| Decision::Reshape { reshape, why: because(NAME, text) })
            .collect()
    }

    /// Returns how many GPUs there are.
    pub(super) const fn gpus(&self) -> usize {
        self.index.len()
    }

    pub(super) fn view(&self, at: usize) -> &'c GpuView {
        self.scoring.view(at)
    }

    /// Of the GPUs that could hold the job, open or not, returns the one with the oldest last
    /// arrival.
    pub(super) fn calmest(&mut self, job: JobId, kept: &[usize]) -> Option<usize> {
        let order: Vec<usize> = self.index.calmest().take(CALM_MAX + kept.len()).collect();
        order.into_iter().filter(|at| !kept.contains(at)).find(|at| {
            let kind = self.index.gpu(*at).kind;
            let row = self.rows.row(&self.scoring, self.index.kinds(), *at, kind, job, None);
            row.iter().any(|score| *score > 0)
        })
    }

    /// Returns what jobs hold that were overdue when they started. In larger clusters it is estimated from
    /// some GPUs, evenly spread.
    pub(super) fn overdue_holders(&self, patience: Millis) -> OverdueHolders {
        let gpus = self.gpus();
        let step = survey_step(gpus);
        let running = (0..gpus).step_by(step).flat_map(|at| {
            let mig = self.scoring.mig(at);
            self.index.gpu(at).placements.iter().map(move |placed| {
                let profile = placed.slot.and_then(|slot| mig?.geometry.profile(slot.profile));
                let slices = profile.map_or(SLICES_OF_GPU, |on| f64::from(on.compute_slices));
                (placed.job, slices / SLICES_OF_GPU * float_count(step))
            })
        });
        OverdueHolders::of(float_count(gpus), running, self.scoring.knowledge.jobs, patience)
    }

    /// Keeps a GPU as it is for the rest of the round.
    pub(super) fn keep(&mut self, at: usize) {
        self.index.close(at);
    }

    /// Finds the placement where a waiting job adds most, alone on a slice or with a co-runner;
    /// `false` if it adds nothing anywhere. `also` is a GPU that is always considered.
    ///
    /// The GPU is not changed yet: later jobs of the round may still join it, and then all of its
    /// jobs are placed again.
    pub(super) fn place_job(&mut self, job: &QueuedJob, also: Option<usize>) -> bool {
        let settings = self.scoring.settings;
        let jobs_max = settings.jobs_per_gpu_max.min(JOBS_MAX - 1);
        let mut best: Option<(i64, usize, Plan)> = None;
        let mut order = self.index.fewest(jobs_max, settings.searched);
        order.extend(also.filter(|at| self.index.gpu(*at).open && !order.contains(at)));
        for at in order.iter().copied() {
            let before = self.current_score(at);
            let least = best.as_ref().map_or(0, |(gain, ..)| *gain);
            let Some(plan) = self.plan(at, Some(job.id), None, Some(before + least)) else {
                continue;
            };
            best = Some((plan.score - before, at, plan));
        }
        if self.is_sociable(job.id) {
            order.extend(self.shareable());
            order.sort_unstable();
            order.dedup();
            for at in order {
                let before = self.current_score(at);
                let mut units = SlotUnit::gathered(&self.jobs(at), self.placements(at));
                units.push(SlotUnit::One(job.id));
                for units in self.pairings(&units) {
                    let least = best.as_ref().map_or(0, |(gain, ..)| *gain);
                    let found = self.plan_units(at, &units, Some(job.id), Some(before + least));
                    best = found.map(|plan| (plan.score - before, at, plan)).or(best);
                }
            }
        }
        let Some((_, at, plan)) = best else { return false };
        self.charge(at, &plan);
        self.index.promise(at, plan.placements.len());
        self.promised.insert(at, plan);
        true
    }

    /// Returns the score of a GPU's current or planned placements.
    pub(super) fn current_score(&mut self, at: usize) -> i64 {
        let promised = self.promised.get(&at).map(|plan| plan.score);
        promised.unwrap_or_else(|| self.present(at))
    }

    /// Returns the decisions for the GPUs on which this round planned placements.
    pub(super) fn keep_promises(&mut self) {
        for (at, plan) in std::mem::take(&mut self.promised) {
            let placements = describe_placements(&self.scoring, at, &plan.placements);
            let view = self.scoring.view(at);
            let gpu = format!("GPU {} of node {}", view.index, view.node);
            let text = match self.shifted.contains(&at) {
                true => {
                    format!(
                        "jobs move to other GPUs so that one more fits; {gpu} then has {placements}"
                    )
                }
                false => {
                    let layouts = self.scoring.mig(at).map_or(0, |mig| mig.full().len());
                    format!(
                        "the best placement in the {layouts} full layouts of {gpu}: {placements}"
                    )
                }
            };
            self.commit(at, plan, text);
        }
    }

    /// Returns the jobs that a GPU has, including those that this round plans.
    pub(super) fn jobs(&self, at: usize) -> Vec<JobId> {
        let promised = self.promised.get(&at);
        promised.map_or_else(|| self.index.gpu(at).jobs(), Plan::jobs)
    }

    pub(super) fn row(&mut self, at: usize, job: JobId) -> Rc<[i64]> {
        let gpu = self.index.gpu(at);
        let kind = gpu.kind;
        let home = gpu.placements.iter().find(|placed| placed.job == job).copied();
        // A job with a part of a slice has to be stopped before it can have all of it.
        let whole = home.map(|placed| placed.slot.filter(|_| placed.sm.is_none()));
        let row = self.rows.row(&self.scoring, self.index.kinds(), at, kind, job, whole);
        let Some(placed) = home.filter(|placed| placed.sm.is_some()) else { return row };
        let part = self.left_behind(at, placed).and_then(|(slot, score)| {
            Some((self.scoring.mig(at)?.layout_index().number(slot)?, score))
        });
        let Some((number, score)) = part.filter(|(number, score)| *score > row[*number]) else {
            return row;
        };
        let mut row = row.to_vec();
        row[number] = score;
        row.into()
    }

    /// Returns the score of a GPU's current placements.
    pub(super) fn present(&mut self, at: usize) -> i64 {
        if let Some(score) = self.present.get(&at) {
            return *score;
        }
        let mut sum = 0;
        for placed in self.index.gpu(at).placements.clone() {
            sum += self.score_of_placed(at, placed);
        }
        self.present.insert(at, sum);
        sum
    }

    /// Searches all layouts of a GPU for the best placements of its jobs, with one more or one less;
    /// nothing if their score is not above `minimum`.
    pub(super) fn plan(
        &mut self,
        at: usize,
        more: Option<JobId>,
        less: Option<JobId>,
        minimum: Option<i64>,
    ) -> Option<Plan> {
        let mut jobs = self.jobs(at);
        jobs.retain(|job| Some(*job) != less);
        jobs.extend(more);
        self.plan_for(at, &jobs, more, minimum)
    }

    /// Searches all layouts of a GPU for the best placements of these jobs, of which one may be new;
    /// nothing if their score is not above `minimum`.
    pub(super) fn plan_for(
        &mut self,
        at: usize,
        jobs: &[JobId],
        more: Option<JobId>,
        minimum: Option<i64>,
    ) -> Option<Plan> {
        let units = SlotUnit::gathered(jobs, self.placements(at));
        let kept = self.plan_units(at, &units, more, minimum);
        if units.len() == jobs.len() {
            return kept;
        }
        // Jobs that share a slot may score higher on separate slots.
        let minimum = kept.as_ref().map(|plan| plan.score).or(minimum);
        self.plan_units(at, &SlotUnit::apart(&units), more, minimum).or(kept)
    }

    /// Does the same for jobs of which some share a slot.
    pub(super) fn plan_units(
        &mut self,
        at: usize,
        units: &[SlotUnit],
        more: Option<JobId>,
        minimum: Option<i64>,
    ) -> Option<Plan> {
        if units.len() > JOBS_MAX {
            return None;
        }
        let mut rows: Vec<Rc<[i64]>> = Vec::new();
        for unit in units {
            let mut row = match *unit {
                SlotUnit::One(job) => self.row(at, job),
                SlotUnit::Two(job, other) => Rc::clone(&self.pair(at, job, other)?.row),
            };
            if let Some(job) = more.filter(|job| unit.has(*job)) {
                self.bar(at, *unit, job, &mut row);
            }
            rows.push(row);
        }
        let rows: Vec<&[i64]> = rows.iter().map(|row| &**row).collect();
        let mig = self.scoring.mig(at)?;
        let standing = mig.layout_index().mask(&self.index.gpu(at).layout);
        let found = mig.layout_index().best(&rows, standing, minimum, self.buffers)?;
        let mut placements = Vec::new();
        for (unit, slot) in found.placements {
            match units[unit] {
                SlotUnit::One(job) => placements.push(self.place(at, job, slot)),
                SlotUnit::Two(job, other) => {
                    placements.extend(self.pair_placements(at, job, other, slot)?);
                }
            }
        }
        let layout = mig.full().get(found.layout)?.clone();
        let plan = Plan { placements, layout, score: found.score };
        self.allowed(at, &plan).then_some(plan)
    }

    /// Excludes slots that would exceed the quota of the job's account, counted on top of what a
    /// host has there already.
    fn bar(&mut self, at: usize, unit: SlotUnit, job: JobId, row: &mut Rc<[i64]>) {
        let Some(left) = self.quota_left(job) else { return };
        let placements = self.placements(at).iter().filter(|placed| unit.has(placed.job));
        let left = left + placements.map(|placed| slices(&self.scoring, at, placed)).sum::<u32>();
        let Some(mig) = self.scoring.mig(at) else { return };
        let mut barred: Vec<i64> = row.to_vec();
        for (number, score) in barred.iter_mut().enumerate() {
            let profile =
                mig.layout_index().profile(number).and_then(|id| mig.geometry.profile(id));
            if profile.is_none_or(|profile| u32::from(profile.compute_slices) > left) {
                *score = NO_PLACEMENT;
            }
        }
        *row = barred.into();
    }

    /// Returns how many compute slices the job's account and user may still take; `None` without a
    /// limit.
    pub(super) fn quota_left(&mut self, job: JobId) -> Option<u32> {
        self.quota(job).map(|(left, _)| left)
    }

    /// Returns the limit that leaves a job the fewest compute slices, and how many those are.
    pub(super) fn quota(&mut self, job: JobId) -> Option<(u32, SliceLimit)> {
        let jobs = self.scoring.knowledge.jobs;
        let limits = self.quotas.limits(jobs, job);
        let (scoring, index) = (&self.scoring, &*self.index);
        let mut placements =
            index.placements().flat_map(|(at, placements)| holds(scoring, at, placements));
        let mut left = |limit: &SliceLimit| self.quotas.left(jobs, limit, &mut placements);
        let found = limits.iter().map(|limit| (left(limit), limit.clone()));
        found.min_by_key(|(left, _)| *left)
    }

    pub(super) fn allowed(&mut self, at: usize, plan: &Plan) -> bool {
        let (before, after) = (self.held(at), holds(&self.scoring, at, &plan.placements));
        let (scoring, index) = (&self.scoring, &*self.index);
        let mut placements =
            index.placements().flat_map(|(at, placements)| holds(scoring, at, placements));
        self.quotas.allows(scoring.knowledge.jobs, &before, &after, &mut placements)
    }

    /// Returns the placements of all jobs on a GPU, including those that this round plans.
    fn held(&self, at: usize) -> Vec<Held> {
        let promised = self.promised.get(&at).map(|plan| &plan.placements);
        holds(&self.scoring, at, promised.unwrap_or(&self.index.gpu(at).placements))
    }

    pub(super) const fn clears(&self, gain: i64, before: i64) -> bool {
        gain > before / 1_000 * self.scoring.settings.hurdle
    }

    /// Counts the compute slices that a plan gives to accounts.
    pub(super) fn charge(&mut self, at: usize, plan: &Plan) {
        let (before, after) = (self.held(at), holds(&self.scoring, at, &plan.placements));
        self.quotas.take(self.scoring.knowledge.jobs, &before, &after);
    }

    pub(super) fn commit(&mut self, at: usize, plan: Plan, text: String) {
        self.index.close(at);
        let gpu = self.scoring.view(at).id.clone();
        let Plan { layout, placements, .. } = plan;
        let reshape = Reshape { gpu, layout, placements, trial: None, stayers: StayingJobs::RunOn };
        self.changes.push((reshape, text));
    }
}

/// Returns the compute slices of each job on a GPU; a slice that two jobs of one user share counts
/// once.
fn holds(scoring: &Scoring<'_>, at: usize, placements: &[PlacedJob]) -> Vec<Held> {
    let shared = |(place, placed): (usize, &PlacedJob)| {
        let first = !placements[..place].iter().any(|other| other.slot == placed.slot);
        (placed.job, if first { slices(scoring, at, placed) } else { 0 })
    };
    placements.iter().enumerate().map(shared).collect()
}

/// Describes which job is on which slice of a GPU.
fn describe_placements(scoring: &Scoring<'_>, at: usize, placements: &[PlacedJob]) -> String {
    let one = |placed: &PlacedJob| {
        let profile = |slot: Slot| scoring.mig(at)?.geometry.profile(slot.profile);
        match placed.slot.and_then(profile) {
            Some(profile) => format!("job {} on {}", placed.job, profile.name),
            None => format!("job {} on all of it", placed.job),
        }
    };
    match placements.iter().map(one).collect::<Vec<_>>().as_slice() {
        [] => "no jobs".to_owned(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// Returns the compute slices of a placement.
fn slices(scoring: &Scoring<'_>, at: usize, placed: &PlacedJob) -> u32 {
    let profile = |slot: Slot| scoring.mig(at)?.geometry.profile(slot.profile);
    placed.slot.and_then(profile).map_or(0, |profile| u32::from(profile.compute_slices))
}
