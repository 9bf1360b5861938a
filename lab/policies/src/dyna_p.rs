//! `dyna-p`: sizes by a trade-off of latency and throughput, whole windows of jobs at once, and
//! reconfiguration last.
//!
//! Source: Adufu and Kim, *Dyna-P*: Batch-aware Partition Predictor (Algorithm 1), scheduler with
//! branch and bound (Algorithms 2 and 3), Reconfiguration-Last Placement (eq. 11).
//!
//! - **NumberedRequest.** A job wants the partition with the largest `F = λ·ΔLat + (1−λ)·ΔMT` of those that
//!   hold it in time for its deadline; of equals the smallest. The paper takes its bases from
//!   the largest batch that a partition holds; one job has one batch here, so its smallest
//!   partition is the base: `ΔLat = 1 − t(g)/t(base)`, and `ΔMT` counts throughput per slice.
//!   `λ` is not printed: 0.2, with which the proxy of its 50 jobs comes out ([`LAMBDA`]).
//! - **Window.** GPUs in ascending order of fragmentation `1 − allocated/total` above zero; on
//!   each the window is the next `|G|` jobs of the queue, however few slices are free (else a job
//!   that fits none would keep those behind it out), and of all subsets and layouts that
//!   leave running jobs alone the one with the largest throughput `m·ΣRT` is taken. The search is
//!   exact: it goes through sets of jobs instead of branching and bounding, with the same result.
//! - **Reconfiguration last.** Of equal layouts the one with the fewest steps: as it is, merge or
//!   split. Running jobs are moved only for the head of the queue, if that costs at most
//!   [`BETA`] more than waiting and breaks no deadline: `C_r − C_w ≤ β`, read as the text has it
//!   (equation 11 and line 27 of Algorithm 2 contradict each other). `C_r` is the fixed cost and
//!   the dearest move, `C_w` the time until the jobs in the way would have ended.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_model::mig::{Layout, Slot};
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

/// What moving may cost more than waiting. Chosen: the paper calls it a threshold and prints no value.
pub const BETA: Millis = Millis::ZERO;

/// Part of latency in `F`, in thousandths. The paper calls it tunable and prints no value. From
/// 0.3 on, jobs that gain little by larger partitions take them all the same, and less runs side
/// by side than under MISO, whom the paper beats; at 0.1 jobs that would gain don't.
const LAMBDA: i64 = 200;

/// Throughput, then the fewest steps.
type WishRank = (i64, Reverse<u32>);

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
        let mut cards = PlannedGpu::all(cluster);
        let mut waiting: Vec<JobId> = queue.map(|job| job.id).collect();
        let mut order: Vec<usize> = (0..cards.len()).filter(|at| cards[*at].open).collect();
        order.sort_by_key(|at| fragmentation(&cards[*at]));
        let mut decisions = Vec::new();
        let mut sizes = RequestNumbers::default();
        let mut left = starts_max;
        for at in order {
            if waiting.is_empty() || left == 0 {
                break;
            }
            let card = &mut cards[at];
            if slices(card, &card.busy()) >= whole_slices(card) {
                continue;
            }
            let Some((reshape, started)) = fill(card, knowledge, &waiting, now, left, &mut sizes)
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
            decisions.push(match reconfigure(&mut cards, knowledge, *head, now) {
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

/// `FM`, in thousandths; what stands empty comes last.
fn fragmentation(card: &PlannedGpu<'_>) -> usize {
    let allocated = (card.placements.len() * 1_000).checked_div(card.layout.len());
    1_000 - allocated.unwrap_or(0).min(1_000)
}

fn slices(card: &PlannedGpu<'_>, layout: &Layout) -> u8 {
    layout.iter().filter_map(|slot| card.profile(*slot)).map(|p| p.compute_slices).sum()
}

fn whole_slices(card: &PlannedGpu<'_>) -> u8 {
    card.mig.largest().map_or(1, |p| p.compute_slices)
}

/// Returns the compute slices that a job wants on such a GPU.
fn wanted(card: &PlannedGpu<'_>, knowledge: Knowledge<'_>, job: JobId, now: Millis) -> Option<u8> {
    let ways: Vec<(u8, u64)> = card
        .mig
        .plain()
        .filter_map(|p| {
            Some((p.compute_slices, knowledge.predictor.time_alone(job, card.view, p)?.get()))
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
        let part = |number: u64, of: u64| i64::try_from(number * 1_000 / of.max(1)).unwrap_or(0);
        let latency = 1_000 - part(ms, base);
        let throughput = part(base * u64::from(base_slices), ms * u64::from(slices)) - 1_000;
        (LAMBDA * latency + (1_000 - LAMBDA) * throughput, Reverse(slices))
    };
    ways.max_by_key(|way| weight(*way)).map(|(slices, _)| slices)
}

/// What jobs want, and their worth in `T` in each slot of that size; by model, once a round.
#[derive(Default)]
struct RequestNumbers(BTreeMap<(String, JobId), SizeChoice>);

/// The size that a job wants, and its worth in each slot.
type SizeChoice = (Option<u8>, Rc<[i64]>);

impl RequestNumbers {
    fn of(
        &mut self,
        card: &PlannedGpu<'_>,
        knowledge: Knowledge<'_>,
        job: JobId,
        now: Millis,
    ) -> SizeChoice {
        let known = self.0.entry((card.view.model.clone(), job)).or_insert_with(|| {
            let size = wanted(card, knowledge, job, now);
            let worth = |slot: &Slot| {
                let slices = card.profile(*slot)?.compute_slices;
                // The share of the GPU in use and the speeds, both of which `T` multiplies.
                let worth =
                    || Some(card.speed(knowledge.predictor, job, *slot)? + i64::from(slices));
                (Some(slices) == size).then(worth).flatten()
            };
            let slots = card.mig.layout_index().slots().iter();
            (size, slots.map(|slot| worth(slot).unwrap_or(NO_PLACEMENT)).collect())
        });
        known.clone()
    }
}

/// Seats jobs of the window beside those that run.
fn fill(
    card: &mut PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    waiting: &[JobId],
    now: Millis,
    most: usize,
    sizes: &mut RequestNumbers,
) -> Option<(Reshape, Vec<JobId>)> {
    let busy = card.busy();
    let window = waiting.len().min(usize::from(whole_slices(card))).min(JOBS_MAX);
    let jobs = &waiting[..window];
    let room = whole_slices(card).saturating_sub(slices(card, &busy));
    let wants: Vec<_> = jobs.iter().map(|job| sizes.of(card, knowledge, *job, now)).collect();
    if !wants.iter().any(|(size, _)| size.is_some_and(|size| size <= room)) {
        return None;
    }
    let atlas = card.mig.layout_index();
    let free = |slot: &Slot| !busy.contains(slot);
    let rows: Vec<Vec<i64>> = wants
        .iter()
        .map(|(_, row)| {
            let worth = row.iter().zip(atlas.slots());
            worth.map(|(worth, slot)| if free(slot) { *worth } else { NO_PLACEMENT }).collect()
        })
        .collect();
    let rows: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    let (taken, standing) = (atlas.mask(&busy), atlas.mask(&card.layout));
    let mut scratch = SearchBuffers::default();
    let mut best: Option<(WishRank, usize, TakenSlots)> = None;
    for place in atlas.with(taken) {
        let Some(sum) = scratch.worth(atlas.order(place), &rows, JobCoverage::AnyJobs) else {
            continue;
        };
        if sum <= 0 {
            continue;
        }
        let mut placements =
            atlas.placements_of(atlas.order(place), &rows, JobCoverage::AnyJobs, &mut scratch);
        placements.truncate(most);
        let here: Layout = placements.iter().map(|(_, slot)| *slot).chain(busy.clone()).collect();
        let rank = (sum * i64::from(slices(card, &here)), Reverse(atlas.steps(place, standing)));
        if best.as_ref().is_none_or(|(known, ..)| rank > *known) {
            best = Some((rank, place, placements));
        }
    }
    let (_, place, new) = best?;
    let started: Vec<JobId> = new.iter().map(|(job, _)| jobs[*job]).collect();
    let new = new.iter().map(|(job, slot)| PlacedJob::alone(jobs[*job], *slot));
    let placements = card.placements.iter().copied().chain(new).collect();
    let layout = card.mig.full().get(place)?.clone();
    Some((card.take(layout, placements), started))
}

/// Moves running jobs for the head of the queue, if that pays.
fn reconfigure(
    cards: &mut [PlannedGpu<'_>],
    knowledge: Knowledge<'_>,
    head: JobId,
    now: Millis,
) -> Option<Reshape> {
    let mut best: Option<(u64, usize, Layout, Vec<PlacedJob>)> = None;
    let mut scratch = SearchBuffers::default();
    let mut sizes: BTreeMap<&str, Option<u8>> = BTreeMap::new();
    for (at, card) in cards.iter().enumerate().filter(|(_, card)| card.open) {
        let size = sizes.entry(card.view.model.as_str());
        let size = *size.or_insert_with(|| wanted(card, knowledge, head, now));
        let room = whole_slices(card).saturating_sub(slices(card, &card.busy()));
        // Everybody keeps the size that it has, so that this many have to be free.
        let Some(size) = size.filter(|size| *size <= room) else { continue };
        if card.placements.len() >= JOBS_MAX {
            continue;
        }
        let atlas = card.mig.layout_index();
        let mut rows: Vec<Vec<i64>> =
            card.placements.iter().map(|placed| moves(card, knowledge, placed, now)).collect();
        rows.push(enters(card, knowledge, head, size, now));
        let rows: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
        let job = |number: usize| card.placements.get(number).map_or(head, |placed| placed.job);
        for place in atlas.with(0) {
            if scratch.worth(atlas.order(place), &rows, JobCoverage::AllJobs).is_none() {
                continue;
            }
            let placements =
                atlas.placements_of(atlas.order(place), &rows, JobCoverage::AllJobs, &mut scratch);
            let placements: Vec<PlacedJob> = placements
                .iter()
                .map(|(number, slot)| PlacedJob::alone(job(*number), *slot))
                .collect();
            let stopped = placements
                .iter()
                .filter(|placed| placed.job != head && !card.placements.contains(placed));
            let prices = stopped
                .clone()
                .filter_map(|placed| knowledge.jobs.facts(placed.job).migration_price);
            let cost = ALPHA.get() + prices.map(Millis::get).max().unwrap_or(0);
            let waits =
                stopped.filter_map(|placed| left(card, knowledge, placed.job)).min().unwrap_or(0);
            let pays = cost <= waits.saturating_add(BETA.get());
            if pays && best.as_ref().is_none_or(|(known, ..)| cost < *known) {
                best = Some((cost, at, card.mig.full().get(place)?.clone(), placements));
            }
        }
    }
    let (_, at, layout, placements) = best?;
    Some(cards[at].take(layout, placements))
}

/// Returns where a job that runs may be: where it is, or, if it can be moved and is in time there,
/// on another slot of the same size.
fn moves(
    card: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    placed: &PlacedJob,
    now: Millis,
) -> Vec<i64> {
    let size = placed.slot.and_then(|slot| card.profile(slot)).map(|p| p.compute_slices);
    let worth = |slot: &Slot| {
        if placed.slot == Some(*slot) {
            return Some(1);
        }
        let price = knowledge.jobs.facts(placed.job).migration_price?.get();
        let fits = Some(card.profile(*slot)?.compute_slices) == size;
        (fits && in_time(card, knowledge, placed.job, *slot, now, price)).then_some(0)
    };
    card.mig.layout_index().slots().iter().map(|slot| worth(slot).unwrap_or(NO_PLACEMENT)).collect()
}

/// Returns where a job that waits may be: on slots of its size.
fn enters(
    card: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    job: JobId,
    size: u8,
    now: Millis,
) -> Vec<i64> {
    let worth = |slot: &Slot| {
        let fits = card.profile(*slot)?.compute_slices == size;
        (fits && in_time(card, knowledge, job, *slot, now, 0)).then_some(0)
    };
    card.mig.layout_index().slots().iter().map(|slot| worth(slot).unwrap_or(NO_PLACEMENT)).collect()
}

/// Returns how long a job that runs there still takes.
fn left(card: &PlannedGpu<'_>, knowledge: Knowledge<'_>, job: JobId) -> Option<u64> {
    let slot = card.placements.iter().find(|placed| placed.job == job)?.slot?;
    let all = knowledge.predictor.time_alone(job, card.view, card.profile(slot)?)?.get();
    let left = 1_000_000 - u64::from(knowledge.jobs.facts(job).done?);
    Some(all / 1_000 * left / 1_000)
}

fn in_time(
    card: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    job: JobId,
    slot: Slot,
    now: Millis,
    price: u64,
) -> bool {
    let Some(deadline) = knowledge.jobs.facts(job).deadline else { return true };
    let time = card.profile(slot).and_then(|p| knowledge.predictor.time_alone(job, card.view, p));
    let Some(time) = time else { return false };
    let left = 1_000_000 - u64::from(knowledge.jobs.facts(job).done.unwrap_or(0));
    now.get() + price + time.get() / 1_000 * left / 1_000 <= deadline.get()
}
