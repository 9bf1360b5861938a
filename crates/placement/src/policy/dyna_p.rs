//! `dyna-p`: sizes by a trade-off of latency and throughput, whole windows of jobs at once, and
//! reconfiguration last.
//!
//! Source: Adufu and Kim, *Dyna-P*: Batch-aware Partition Predictor (Algorithm 1), scheduler with
//! branch and bound (Algorithms 2 and 3), Reconfiguration-Last Placement (eq. 11).
//!
//! - **Size.** A job wants the partition with the largest `F = λ·ΔLat + (1−λ)·ΔMT` of those that
//!   hold it in time for its deadline; of equals the smallest. The paper takes its bases from
//!   the largest batch that a partition holds; one job has one batch here, so its smallest
//!   partition is the base: `ΔLat = 1 − t(g)/t(base)`, and `ΔMT` counts throughput per slice.
//!   `λ` is not printed: 0.5.
//! - **Window.** GPUs in ascending order of fragmentation `1 − allocated/total` above zero; on
//!   each the window is the next `|G|` jobs of the queue, and of all subsets and layouts that
//!   leave running jobs alone the one with the largest throughput `m·ΣRT` is taken. The search is
//!   exact: it goes through sets of jobs instead of branching and bounding, with the same result.
//! - **Reconfiguration last.** Of equal layouts the one with the fewest steps: as it is, merge or
//!   split. Running jobs are moved only for the head of the queue, if that costs at most
//!   [`BETA`] more than waiting and breaks no deadline: `C_r − C_w ≤ β`, read as the text has it
//!   (equation 11 and line 27 of Algorithm 2 contradict each other). `C_r` is the fixed cost and
//!   the dearest move, `C_w` the time until the jobs in the way would have ended.

use std::cmp::Reverse;

use tessera_model::mig::{Layout, Slot};
use tessera_model::{JobId, Millis};

use super::Policy;
use super::cards::{Card, because};
use crate::decision::{Decision, Explanation, Reshape, Seat, WaitReason};
use crate::forecast::Forecast;
use crate::seating::{self, Must, SEATED_MAX};
use crate::view::{ClusterView, QueuedJob};

const NAME: &str = "dyna-p";

/// Fixed cost of a reconfiguration: a merge or a split takes about an eighth of a second.
const ALPHA: Millis = Millis::new(125);

/// What moving may cost more than waiting.
pub const BETA: Millis = Millis::ZERO;

/// Part of latency in `F`, in thousandths.
const LAMBDA: i64 = 500;

/// Throughput, then the fewest steps.
type Rank = (i64, Reverse<usize>);

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
        forecast: &dyn Forecast,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut cards = Card::all(cluster);
        let mut waiting: Vec<JobId> = queue.map(|job| job.id).collect();
        let mut order: Vec<usize> = (0..cards.len()).filter(|at| cards[*at].open).collect();
        order.sort_by_key(|at| fragmentation(&cards[*at]));
        let mut decisions = Vec::new();
        let mut left = starts_max;
        for at in order {
            if waiting.is_empty() || left == 0 {
                break;
            }
            let card = &mut cards[at];
            if slices(card, &card.busy()) >= whole_slices(card) {
                continue;
            }
            let Some((reshape, started)) = fill(card, forecast, &waiting, now, left) else {
                continue;
            };
            waiting.retain(|job| !started.contains(job));
            left -= started.len();
            let text =
                format!("{} jobs of the window give the most throughput here", started.len());
            decisions.push(Decision::Reshape { reshape, why: because(NAME, text) });
        }
        if let Some(head) = waiting.first() {
            decisions.push(match reconfigure(&mut cards, forecast, *head, now) {
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
fn fragmentation(card: &Card<'_>) -> usize {
    let allocated = (card.seats.len() * 1_000).checked_div(card.layout.len());
    1_000 - allocated.unwrap_or(0).min(1_000)
}

fn slices(card: &Card<'_>, layout: &Layout) -> u8 {
    layout.iter().filter_map(|slot| card.profile(*slot)).map(|p| p.compute_slices).sum()
}

fn whole_slices(card: &Card<'_>) -> u8 {
    card.mig.geometry.largest().map_or(1, |p| p.compute_slices)
}

/// Returns the compute slices that a job wants on such a GPU.
fn wanted(card: &Card<'_>, forecast: &dyn Forecast, job: JobId, now: Millis) -> Option<u8> {
    let ways: Vec<(u8, u64)> = card
        .mig
        .plain()
        .filter_map(|p| Some((p.compute_slices, forecast.time(job, card.view, p)?.get())))
        .collect();
    let (base_slices, base) = ways.first().copied()?;
    let left = 1_000_000 - u64::from(forecast.done(job).unwrap_or(0));
    let in_time = |ms: u64| {
        let ends = now.get().saturating_add(ms / 1_000 * left / 1_000);
        forecast.deadline(job).is_none_or(|deadline| ends <= deadline.get())
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

/// Seats jobs of the window beside those that run.
fn fill(
    card: &mut Card<'_>,
    forecast: &dyn Forecast,
    waiting: &[JobId],
    now: Millis,
    most: usize,
) -> Option<(Reshape, Vec<JobId>)> {
    let busy = card.busy();
    let free = usize::from(whole_slices(card).saturating_sub(slices(card, &busy)));
    let window = waiting.len().min(free).min(most).min(SEATED_MAX);
    let jobs = &waiting[..window];
    let sizes: Vec<Option<u8>> = jobs.iter().map(|job| wanted(card, forecast, *job, now)).collect();
    let mut best: Option<(Rank, Layout, Vec<Seat>)> = None;
    for layout in card.mig.full().iter().filter(|layout| busy.is_subset(layout)) {
        let mut worth = |job: usize, slot: Slot| {
            let fits =
                !busy.contains(&slot) && Some(card.profile(slot)?.compute_slices) == sizes[job];
            let speed = card.speed(forecast, jobs[job], slot)?;
            let slices = i64::from(card.profile(slot)?.compute_slices);
            // The share of the GPU in use and the speeds, both of which `T` multiplies.
            fits.then_some(speed + slices)
        };
        let Some(found) = seating::best(layout, window, Must::SeatAny, &mut worth) else {
            continue;
        };
        if found.seats.is_empty() {
            continue;
        }
        let taken: Layout = found.seats.iter().map(|(_, slot)| *slot).chain(busy.clone()).collect();
        let in_use = i64::from(slices(card, &taken));
        let steps = card.layout.symmetric_difference(layout).count();
        let rank = (found.worth * in_use, Reverse(steps));
        if best.as_ref().is_none_or(|(known, ..)| rank > *known) {
            let seats = found.seats.iter();
            let seats =
                seats.map(|(at, slot)| Seat { job: jobs[*at], slot: Some(*slot), sm: None });
            best = Some((rank, layout.clone(), seats.collect()));
        }
    }
    let (_, layout, new) = best?;
    let started: Vec<JobId> = new.iter().map(|seat| seat.job).collect();
    let seats = card.seats.iter().copied().chain(new).collect();
    Some((card.take(layout, seats), started))
}

/// Moves running jobs for the head of the queue, if that pays.
fn reconfigure(
    cards: &mut [Card<'_>],
    forecast: &dyn Forecast,
    head: JobId,
    now: Millis,
) -> Option<Reshape> {
    let mut best: Option<(u64, usize, Layout, Vec<Seat>)> = None;
    for (at, card) in cards.iter().enumerate().filter(|(_, card)| card.open) {
        let Some(size) = wanted(card, forecast, head, now) else { continue };
        let jobs: Vec<JobId> = card.jobs().into_iter().chain([head]).collect();
        if jobs.len() > SEATED_MAX {
            continue;
        }
        for layout in card.mig.full() {
            let mut worth = |job: usize, slot: Slot| {
                let profile = card.profile(slot)?;
                let seat = card.seats.get(job);
                let least = match seat {
                    None => size,
                    Some(seat) => card.profile(seat.slot?)?.compute_slices,
                };
                let stays = seat.is_some_and(|seat| seat.slot == Some(slot));
                let moved = forecast.move_price(jobs[job]).filter(|_| !stays);
                let pays = stays || moved.is_some() || seat.is_none();
                let fits = profile.compute_slices == least && pays;
                let price = moved.filter(|_| seat.is_some()).map_or(0, Millis::get);
                let kept = stays || in_time(card, forecast, jobs[job], slot, now, price);
                (fits && kept).then_some(if stays { 1 } else { 0 })
            };
            let Some(found) = seating::best(layout, jobs.len(), Must::SeatAll, &mut worth) else {
                continue;
            };
            let seats: Vec<Seat> = found
                .seats
                .iter()
                .map(|(job, slot)| Seat { job: jobs[*job], slot: Some(*slot), sm: None })
                .collect();
            let stopped =
                seats.iter().filter(|seat| seat.job != head && !card.seats.contains(seat));
            let prices = stopped.clone().filter_map(|seat| forecast.move_price(seat.job));
            let cost = ALPHA.get() + prices.map(Millis::get).max().unwrap_or(0);
            let waits =
                stopped.filter_map(|seat| left(card, forecast, seat.job)).min().unwrap_or(0);
            let pays = cost <= waits.saturating_add(BETA.get());
            if pays && best.as_ref().is_none_or(|(known, ..)| cost < *known) {
                best = Some((cost, at, layout.clone(), seats));
            }
        }
    }
    let (_, at, layout, seats) = best?;
    Some(cards[at].take(layout, seats))
}

/// Returns how long a job that runs there still takes.
fn left(card: &Card<'_>, forecast: &dyn Forecast, job: JobId) -> Option<u64> {
    let slot = card.seats.iter().find(|seat| seat.job == job)?.slot?;
    let all = forecast.time(job, card.view, card.profile(slot)?)?.get();
    let left = 1_000_000 - u64::from(forecast.done(job)?);
    Some(all / 1_000 * left / 1_000)
}

fn in_time(
    card: &Card<'_>,
    forecast: &dyn Forecast,
    job: JobId,
    slot: Slot,
    now: Millis,
    price: u64,
) -> bool {
    let Some(deadline) = forecast.deadline(job) else { return true };
    let time = card.profile(slot).and_then(|p| forecast.time(job, card.view, p));
    let Some(time) = time else { return false };
    let left = 1_000_000 - u64::from(forecast.done(job).unwrap_or(0));
    now.get() + price + time.get() / 1_000 * left / 1_000 <= deadline.get()
}
