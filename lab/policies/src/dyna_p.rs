//! `dyna-p`: sizes by a trade-off of latency and throughput, whole windows of jobs at once, and
//! reconfiguration last.
//!
//! Source: Adufu and Kim, *Dyna-P*: Batch-aware Partition Predictor (Algorithm 1), scheduler with
//! branch and bound (Algorithms 2 and 3), Reconfiguration-Last Placement (eq. 11).
//!
//! - **Request.** A job requests the partition with the largest `F = λ·ΔLat + (1−λ)·ΔMT`
//!   among those on which it meets its deadline; among equals the smallest. The paper takes its
//!   bases from the largest batch that a partition holds. One job has one batch here, so its
//!   smallest partition is the base: `ΔLat = 1 − t(g)/t(base)`, and `ΔMT` counts throughput per
//!   slice. `λ` is not printed: here it is 0.2, which reproduces the proxy of its 50 jobs
//!   ([`LAMBDA`]).
//! - **Window.** GPUs in ascending order of fragmentation `1 − allocated/total` above zero; on
//!   each the window is the next `|G|` jobs of the queue, however few slices are free. (Otherwise a
//!   job that fits none would block those behind it.) Of all subsets and layouts that don't move
//!   running jobs, the one with the largest throughput `m·ΣRT` is taken. The search is exact: it
//!   enumerates sets of jobs instead of branching and bounding, with the same result.
//! - **Reconfiguration last.** Among equal layouts it takes the one with the fewest steps:
//!   unchanged, merge or split. Running jobs are moved only for the head of the queue, if that
//!   costs at most [`BETA`] more than waiting and breaks no deadline: `C_r − C_w ≤ β`. It follows
//!   the paper's text, since equation 11 and line 27 of Algorithm 2 contradict each other. `C_r` is
//!   the fixed cost plus the most expensive move, and `C_w` the time until the jobs in the way
//!   would end.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_model::mig::{Layout, Slot};
use tessera_model::number::clamped;
use tessera_model::{JobId, Millis};

use tessera_placement::Policy;
use tessera_placement::decision::{Decision, Explanation, PlacedJob, Reshape, WaitReason};
use tessera_placement::placement_search::{JOBS_MAX, JobCoverage, NO_PLACEMENT, SearchBuffers};
use tessera_placement::policy::planned_gpu::{PlannedGpu, because};
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, QueuedJob};

const NAME: &str = "dyna-p";

/// Fixed cost of a reconfiguration: a merge or a split takes about an eighth of a second (evaluation).
const ALPHA: Millis = Millis::new(125);

/// By how much a move may cost more than waiting. Chosen: the paper calls it a threshold and prints
/// no value.
pub const BETA: Millis = Millis::ZERO;

/// Part of latency in `F`, in thousandths. The paper calls it tunable and prints no value. From 0.3
/// on, jobs that gain little by larger partitions use them anyway, and fewer jobs run at the same
/// time than under MISO. At 0.1, jobs that would gain don't use them.
const LAMBDA: i64 = 200;

/// Throughput, then the fewest steps.
type SizeRank = (i64, Reverse<u32>);

/// Jobs of the window with their slots.
type TakenSlots = Vec<(usize, Slot)>;

/// The policy `dyna-p`.
#[derive(Clone, Copy, Debug, Default)]
pub struct DynaP;

impl Policy for DynaP {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut planned_gpus = PlannedGpu::all(cluster);
        let mut waiting: Vec<JobId> = queue.map(|job| job.id).collect();
        let mut order: Vec<usize> =
            (0..planned_gpus.len()).filter(|at| planned_gpus[*at].open).collect();
        order.sort_by_key(|at| fragmentation(&planned_gpus[*at]));
        let mut decisions = Vec::new();
        let mut sizes = DesiredSizes::default();
        let mut left = starts_max;
        for at in order {
            if waiting.is_empty() || left == 0 {
                break;
            }
            let planned = &mut planned_gpus[at];
            if slices(planned, &planned.busy()) >= whole_slices(planned) {
                continue;
            }
            let Some((reshape, started)) =
                fill(planned, knowledge, &waiting, now, left, &mut sizes)
            else {
                continue;
            };
            waiting.retain(|job| !started.contains(job));
            left -= started.len();
            let text =
                format!("{} jobs of the window give the most throughput here", started.len());
            decisions.push(Decision::Reshape { reshape, why: because(NAME, text) });
        }
        if let Some(head) = waiting.first() {
            decisions.push(match reconfigure(&mut planned_gpus, knowledge, *head, now) {
                Some(reshape) => {
                    let text = "moving the jobs in the way costs less than waiting for them";
                    Decision::Reshape { reshape, why: because(NAME, text) }
                }
                None => {
                    let why = Explanation {
                        would_start_if: Some("a job in the way ends".to_owned()),
                        ..because(NAME, "no partition of its size is free, and moving costs more")
                    };
                    Decision::Wait { job: *head, reason: WaitReason::Resources, why }
                }
            });
        }
        decisions
    }
}

/// `FM`, in thousandths; empty GPUs are last.
fn fragmentation(planned: &PlannedGpu<'_>) -> usize {
    let allocated = (planned.placements.len() * 1_000).checked_div(planned.layout.len());
    1_000 - allocated.unwrap_or(0).min(1_000)
}

fn slices(planned: &PlannedGpu<'_>, layout: &Layout) -> u8 {
    layout.iter().filter_map(|slot| planned.profile(*slot)).map(|p| p.compute_slices).sum()
}

fn whole_slices(planned: &PlannedGpu<'_>) -> u8 {
    planned.mig.largest().map_or(1, |p| p.compute_slices)
}

/// Returns the compute slices that a job requests on such a GPU.
fn desired_slices(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    job: JobId,
    now: Millis,
) -> Option<u8> {
    let ways: Vec<(u8, u64)> = planned
        .mig
        .plain()
        .filter_map(|p| {
            Some((p.compute_slices, knowledge.predictor.time_alone(job, planned.view, p)?.get()))
        })
        .collect();
    let (base_slices, base) = ways.first().copied()?;
    let left = 1_000_000 - u64::from(knowledge.jobs.facts(job).done.unwrap_or(0));
    let in_time = |ms: u64| {
        let ends = now.get().saturating_add(ms / 1_000 * left / 1_000);
        knowledge.jobs.facts(job).deadline.is_none_or(|deadline| ends <= deadline.get())
    };
    let any = ways.iter().any(|(_, ms)| in_time(*ms));
    let ways = ways.into_iter().filter(|(_, ms)| !any || in_time(*ms));
    let weight = |(slices, ms): (u8, u64)| {
        let part = |number: u64, of: u64| clamped::<i64>(number * 1_000 / of.max(1));
        let latency = 1_000 - part(ms, base);
        let throughput = part(base * u64::from(base_slices), ms * u64::from(slices)) - 1_000;
        (LAMBDA * latency + (1_000 - LAMBDA) * throughput, Reverse(slices))
    };
    ways.max_by_key(|way| weight(*way)).map(|(slices, _)| slices)
}

/// The sizes that jobs desire, and their scores in `T` in each slot of that size; by model, once a round.
#[derive(Default)]
struct DesiredSizes(BTreeMap<(String, JobId), SizeChoice>);

/// The size that a job requests, and its score in each slot.
type SizeChoice = (Option<u8>, Rc<[i64]>);

impl DesiredSizes {
    fn of(
        &mut self,
        planned: &PlannedGpu<'_>,
        knowledge: Knowledge<'_>,
        job: JobId,
        now: Millis,
    ) -> SizeChoice {
        let known = self.0.entry((planned.view.model.clone(), job)).or_insert_with(|| {
            let size = desired_slices(planned, knowledge, job, now);
            let score = |slot: &Slot| {
                let slices = planned.profile(*slot)?.compute_slices;
                // The share of the GPU in use and the speeds, both of which `T` multiplies.
                let score =
                    || Some(planned.speed(knowledge.predictor, job, *slot)? + i64::from(slices));
                (Some(slices) == size).then(score).flatten()
            };
            let slots = planned.mig.layout_index().slots().iter();
            (size, slots.map(|slot| score(slot).unwrap_or(NO_PLACEMENT)).collect())
        });
        known.clone()
    }
}

/// Places jobs of the window next to the running ones.
fn fill(
    planned: &mut PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    waiting: &[JobId],
    now: Millis,
    most: usize,
    sizes: &mut DesiredSizes,
) -> Option<(Reshape, Vec<JobId>)> {
    let busy = planned.busy();
    let window = waiting.len().min(usize::from(whole_slices(planned))).min(JOBS_MAX);
    let jobs = &waiting[..window];
    let free_slices = whole_slices(planned).saturating_sub(slices(planned, &busy));
    let desired: Vec<_> = jobs.iter().map(|job| sizes.of(planned, knowledge, *job, now)).collect();
    if !desired.iter().any(|(size, _)| size.is_some_and(|size| size <= free_slices)) {
        return None;
    }
    let layout_index = planned.mig.layout_index();
    let free = |slot: &Slot| !busy.contains(slot);
    let rows: Vec<Vec<i64>> = desired
        .iter()
        .map(|(_, row)| {
            let score = row.iter().zip(layout_index.slots());
            score.map(|(score, slot)| if free(slot) { *score } else { NO_PLACEMENT }).collect()
        })
        .collect();
    let rows: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    let (taken, standing) = (layout_index.mask(&busy), layout_index.mask(&planned.layout));
    let mut scratch = SearchBuffers::default();
    let mut best: Option<(SizeRank, usize, TakenSlots)> = None;
    for place in layout_index.with(taken) {
        let Some(sum) = scratch.score(layout_index.order(place), &rows, JobCoverage::AnyJobs)
        else {
            continue;
        };
        if sum <= 0 {
            continue;
        }
        let mut placements = layout_index.placements_of(
            layout_index.order(place),
            &rows,
            JobCoverage::AnyJobs,
            &mut scratch,
        );
        placements.truncate(most);
        let here: Layout = placements.iter().map(|(_, slot)| *slot).chain(busy.clone()).collect();
        let rank =
            (sum * i64::from(slices(planned, &here)), Reverse(layout_index.steps(place, standing)));
        if best.as_ref().is_none_or(|(known, ..)| rank > *known) {
            best = Some((rank, place, placements));
        }
    }
    let (_, place, new) = best?;
    let started: Vec<JobId> = new.iter().map(|(job, _)| jobs[*job]).collect();
    let new = new.iter().map(|(job, slot)| PlacedJob::alone(jobs[*job], *slot));
    let placements = planned.placements.iter().copied().chain(new).collect();
    let layout = planned.mig.full().get(place)?.clone();
    Some((planned.take(layout, placements), started))
}

/// Moves running jobs for the head of the queue, if the gain exceeds the cost.
fn reconfigure(
    planned_gpus: &mut [PlannedGpu<'_>],
    knowledge: Knowledge<'_>,
    head: JobId,
    now: Millis,
) -> Option<Reshape> {
    let mut best: Option<(u64, usize, Layout, Vec<PlacedJob>)> = None;
    let mut scratch = SearchBuffers::default();
    let mut sizes: BTreeMap<&str, Option<u8>> = BTreeMap::new();
    for (at, planned) in planned_gpus.iter().enumerate().filter(|(_, planned)| planned.open) {
        let size = sizes.entry(planned.view.model.as_str());
        let size = *size.or_insert_with(|| desired_slices(planned, knowledge, head, now));
        let free_slices = whole_slices(planned).saturating_sub(slices(planned, &planned.busy()));
        // Each running job keeps its size, so this many slices have to be free.
        let Some(size) = size.filter(|size| *size <= free_slices) else { continue };
        if planned.placements.len() >= JOBS_MAX {
            continue;
        }
        let layout_index = planned.mig.layout_index();
        let mut rows: Vec<Vec<i64>> = planned
            .placements
            .iter()
            .map(|placed| moves(planned, knowledge, placed, now))
            .collect();
        rows.push(enters(planned, knowledge, head, size, now));
        let rows: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
        let job = |number: usize| planned.placements.get(number).map_or(head, |placed| placed.job);
        for place in layout_index.with(0) {
            if scratch.score(layout_index.order(place), &rows, JobCoverage::AllJobs).is_none() {
                continue;
            }
            let placements = layout_index.placements_of(
                layout_index.order(place),
                &rows,
                JobCoverage::AllJobs,
                &mut scratch,
            );
            let placements: Vec<PlacedJob> = placements
                .iter()
                .map(|(number, slot)| PlacedJob::alone(job(*number), *slot))
                .collect();
            let stopped = placements
                .iter()
                .filter(|placed| placed.job != head && !planned.placements.contains(placed));
            let prices = stopped
                .clone()
                .filter_map(|placed| knowledge.jobs.facts(placed.job).migration_price);
            let cost = ALPHA.get() + prices.map(Millis::get).max().unwrap_or(0);
            let waits = stopped
                .filter_map(|placed| left(planned, knowledge, placed.job))
                .min()
                .unwrap_or(0);
            let pays = cost <= waits.saturating_add(BETA.get());
            if pays && best.as_ref().is_none_or(|(known, ..)| cost < *known) {
                best = Some((cost, at, planned.mig.full().get(place)?.clone(), placements));
            }
        }
    }
    let (_, at, layout, placements) = best?;
    Some(planned_gpus[at].take(layout, placements))
}

/// Returns the possible slots of a running job: its own, and others of the same size if it can be
/// moved and meets its deadline there.
fn moves(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    placed: &PlacedJob,
    now: Millis,
) -> Vec<i64> {
    let size = placed.slot.and_then(|slot| planned.profile(slot)).map(|p| p.compute_slices);
    let score = |slot: &Slot| {
        if placed.slot == Some(*slot) {
            return Some(1);
        }
        let price = knowledge.jobs.facts(placed.job).migration_price?.get();
        let fits = Some(planned.profile(*slot)?.compute_slices) == size;
        (fits && in_time(planned, knowledge, placed.job, *slot, now, price)).then_some(0)
    };
    planned
        .mig
        .layout_index()
        .slots()
        .iter()
        .map(|slot| score(slot).unwrap_or(NO_PLACEMENT))
        .collect()
}

/// Returns the possible slots of a waiting job: those of its size.
fn enters(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    job: JobId,
    size: u8,
    now: Millis,
) -> Vec<i64> {
    let score = |slot: &Slot| {
        let fits = planned.profile(*slot)?.compute_slices == size;
        (fits && in_time(planned, knowledge, job, *slot, now, 0)).then_some(0)
    };
    planned
        .mig
        .layout_index()
        .slots()
        .iter()
        .map(|slot| score(slot).unwrap_or(NO_PLACEMENT))
        .collect()
}

/// Returns the remaining time of a job that runs there.
fn left(planned: &PlannedGpu<'_>, knowledge: Knowledge<'_>, job: JobId) -> Option<u64> {
    let slot = planned.placements.iter().find(|placed| placed.job == job)?.slot?;
    let all = knowledge.predictor.time_alone(job, planned.view, planned.profile(slot)?)?.get();
    let left = 1_000_000 - u64::from(knowledge.jobs.facts(job).done?);
    Some(all / 1_000 * left / 1_000)
}

fn in_time(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    job: JobId,
    slot: Slot,
    now: Millis,
    price: u64,
) -> bool {
    let Some(deadline) = knowledge.jobs.facts(job).deadline else { return true };
    let time =
        planned.profile(slot).and_then(|p| knowledge.predictor.time_alone(job, planned.view, p));
    let Some(time) = time else { return false };
    let left = 1_000_000 - u64::from(knowledge.jobs.facts(job).done.unwrap_or(0));
    now.get() + price + time.get() / 1_000 * left / 1_000 <= deadline.get()
}
