//! The search of `tessera`: one GPU exactly, the GPUs by what a job adds.

use std::collections::BTreeMap;

use tessera_model::mig::{Layout, Slot};
use tessera_model::{JobId, Millis};

use super::super::cards::{Card, because};
use super::{NAME, Tessera};
use crate::decision::{Decision, Reshape, Seat};
use crate::forecast::Forecast;
use crate::seating::{self, Must, SEATED_MAX};
use crate::view::QueuedJob;

/// Moves to GPUs that fell idle that one round makes at most.
const SPREAD_MAX: usize = 8;

/// Seats of one GPU with what they are worth, less what moving to them costs.
#[derive(Clone, Debug)]
struct Plan {
    layout: Layout,
    seats: Vec<Seat>,
    worth: i64,
}

pub(super) struct Search<'c, 'f> {
    settings: &'f Tessera,
    cards: Vec<Card<'c>>,
    forecast: &'f dyn Forecast,
    now: Millis,
    weights: BTreeMap<JobId, f64>,
    /// What GPUs are to become, while jobs are still being added.
    promised: BTreeMap<usize, Plan>,
    /// In the order in which they must be carried out.
    changes: Vec<(Reshape, String)>,
}

impl<'c, 'f> Search<'c, 'f> {
    pub(super) const fn new(
        settings: &'f Tessera,
        cards: Vec<Card<'c>>,
        forecast: &'f dyn Forecast,
        now: Millis,
    ) -> Self {
        Self {
            settings,
            cards,
            forecast,
            now,
            weights: BTreeMap::new(),
            promised: BTreeMap::new(),
            changes: Vec::new(),
        }
    }

    pub(super) fn any_open(&self) -> bool {
        self.cards.iter().any(|card| card.open)
    }

    pub(super) fn decisions(self) -> Vec<Decision> {
        let changes = self.changes.into_iter();
        changes
            .map(|(reshape, text)| Decision::Reshape { reshape, why: because(NAME, text) })
            .collect()
    }

    /// Returns what orders jobs that wait: the shortest first, more so the longer it waits.
    pub(super) fn urgency(&self, job: &QueuedJob) -> f64 {
        let aged =
            1.0 + float(self.now.minus(job.submitted)) / float(self.settings.ageing).max(1.0);
        self.short(job.id).powf(self.settings.eagerness) * aged
    }

    fn weight(&mut self, job: JobId) -> f64 {
        if let Some(known) = self.weights.get(&job) {
            return *known;
        }
        let weight = self.short(job).powf(self.settings.shortness);
        self.weights.insert(job, weight);
        weight
    }

    /// Returns how many such jobs an hour of a whole GPU finishes.
    fn short(&self, job: JobId) -> f64 {
        3_600_000.0 / self.left_ms(job).unwrap_or(3_600_000.0).max(1_000.0)
    }

    /// Returns what is left of a job on a whole GPU, in milliseconds.
    fn left_ms(&self, job: JobId) -> Option<f64> {
        let card = self.cards.first()?;
        let times = self.cards.iter().find_map(|card| {
            let largest = card.mig.geometry.largest()?;
            self.forecast.time(job, card.view, largest)
        });
        let all =
            times.or_else(|| self.forecast.time(job, card.view, card.mig.geometry.largest()?))?;
        let done = f64::from(self.forecast.done(job)?) / 1_000_000.0;
        Some(float(all) * (1.0 - done))
    }

    /// Finds a place for a job that waits, where it adds most; `false` if it adds nothing.
    ///
    /// The GPU is not changed yet: jobs that come after it in the round may still join it, and
    /// then all of them are seated anew.
    pub(super) fn seat(&mut self, job: &QueuedJob) -> bool {
        let mut best: Option<(i64, usize, Plan)> = None;
        for at in self.candidates() {
            let before = self.promised.get(&at).map(|plan| plan.worth);
            let before = before.unwrap_or_else(|| self.present(at));
            let Some(plan) = self.plan(at, Some(job.id), None) else { continue };
            let gain = plan.worth - before;
            if gain > 0 && best.as_ref().is_none_or(|(known, ..)| gain > *known) {
                best = Some((gain, at, plan));
            }
        }
        let Some((_, at, plan)) = best else { return false };
        self.promised.insert(at, plan);
        true
    }

    /// Changes the GPUs on which jobs were promised seats.
    pub(super) fn keep_promises(&mut self) {
        for (at, plan) in std::mem::take(&mut self.promised) {
            let text =
                format!("of all seats for these {} jobs these are worth most", plan.seats.len());
            self.commit(at, plan, text);
        }
    }

    fn crowd(&self, at: usize) -> usize {
        self.promised.get(&at).map_or(self.cards[at].seats.len(), |plan| plan.seats.len())
    }

    /// Returns the jobs that a GPU has or was promised.
    fn jobs(&self, at: usize) -> Vec<JobId> {
        let promised = self.promised.get(&at);
        promised.map_or_else(
            || self.cards[at].jobs(),
            |plan| plan.seats.iter().map(|seat| seat.job).collect(),
        )
    }

    /// GPUs that are worth a search: those with the fewest jobs; one of the empty ones of a model.
    fn candidates(&self) -> Vec<usize> {
        let crowd = self.settings.crowd.min(SEATED_MAX - 1);
        let mut order: Vec<usize> = (0..self.cards.len())
            .filter(|at| self.cards[*at].open && self.crowd(*at) < crowd)
            .collect();
        order.sort_by_key(|at| self.crowd(*at));
        let mut empty: Vec<&str> = Vec::new();
        order.retain(|at| {
            let model = self.cards[*at].view.model.as_str();
            let is_empty = self.crowd(*at) == 0;
            let again = is_empty && empty.contains(&model);
            if is_empty {
                empty.push(model);
            }
            !again
        });
        order.truncate(self.settings.searched);
        order
    }

    /// Returns what the seats of a GPU are worth as they are.
    fn present(&mut self, at: usize) -> i64 {
        let seats = self.cards[at].seats.clone();
        let worth = seats.iter().filter_map(|seat| self.worth(at, seat.job, seat.slot?));
        worth.sum()
    }

    /// Returns what a job is worth in a slot, less what moving there costs; `None` if it can't be
    /// there, or would be late there and nowhere else.
    fn worth(&mut self, at: usize, job: JobId, slot: Slot) -> Option<i64> {
        let weight = self.weight(job);
        let card = &self.cards[at];
        let speed = card.speed(self.forecast, job, slot)?;
        let seat = card.seats.iter().find(|seat| seat.job == job);
        let stays = seat.is_some_and(|seat| seat.slot == Some(slot));
        let profile = card.profile(slot)?;
        let done = f64::from(self.forecast.done(job)?) / 1_000_000.0;
        let left = float(self.forecast.time(job, card.view, profile)?) * (1.0 - done);
        let begun = done > 0.0 || seat.is_some();
        let price = match (stays, begun) {
            (true, _) | (false, false) => 0.0,
            (false, true) => float(self.forecast.move_price(job)?),
        };
        let kept = left / (left + price).max(1.0);
        let late = |left: f64| {
            let ends = float(self.now) + left;
            self.forecast.deadline(job).is_some_and(|deadline| ends > float(deadline))
        };
        if !stays && late(left + price) && !late(left.min(self.left_ms(job)?)) {
            return None;
        }
        // Speeds are millionths; weights of long jobs are small, so that a finer unit is kept.
        Some(whole(float_of(speed) * weight * kept))
    }

    /// Searches all layouts of a GPU for the best seats of its jobs, with one more or one less.
    fn plan(&mut self, at: usize, more: Option<JobId>, less: Option<JobId>) -> Option<Plan> {
        let mut jobs = self.jobs(at);
        jobs.retain(|job| Some(*job) != less);
        jobs.extend(more);
        if jobs.len() > SEATED_MAX {
            return None;
        }
        let standing = self.cards[at].layout.clone();
        let mig = self.cards[at].mig;
        let mut known: BTreeMap<(usize, Slot), Option<i64>> = BTreeMap::new();
        let mut best: Option<(i64, usize, seating::Seating)> = None;
        for layout in mig.full() {
            if layout.len() < jobs.len() {
                continue;
            }
            let mut worth = |job: usize, slot: Slot| {
                let known = known.entry((job, slot));
                *known.or_insert_with(|| self.worth(at, jobs[job], slot))
            };
            let found = seating::best(layout, jobs.len(), Must::SeatAll, &mut worth);
            let Some(found) = found else { continue };
            let steps = standing.symmetric_difference(layout).count();
            let better = best.as_ref().is_none_or(|(worth, known, _)| {
                (found.worth, usize::MAX - steps) > (*worth, usize::MAX - known)
            });
            if better {
                best = Some((found.worth, steps, found));
            }
        }
        let (worth, _, found) = best?;
        let seats = found.seats.iter();
        let seats = seats.map(|(job, slot)| Seat { job: jobs[*job], slot: Some(*slot), sm: None });
        Some(Plan { seats: seats.collect(), layout: found.layout, worth })
    }

    /// Moves jobs to GPUs that are idle while others are shared.
    pub(super) fn spread(&mut self) {
        for _ in 0..SPREAD_MAX {
            let empty = self.cards.iter().position(|card| card.open && card.seats.is_empty());
            let Some(target) = empty else { return };
            let Some((job, source)) = self.best_move(target) else { return };
            let Some(rest) = self.plan(source, None, Some(job)) else { return };
            let Some(there) = self.plan(target, Some(job), None) else { return };
            self.commit(source, rest, format!("{job} moves to a GPU that fell idle"));
            self.commit(target, there, format!("{job} has this GPU to itself"));
        }
    }

    fn best_move(&mut self, target: usize) -> Option<(JobId, usize)> {
        let mut sources: Vec<usize> = (0..self.cards.len())
            .filter(|at| self.cards[*at].open && self.cards[*at].seats.len() > 1)
            .collect();
        sources.sort_by_key(|at| std::cmp::Reverse(self.cards[*at].seats.len()));
        sources.truncate(self.settings.searched);
        let mut best: Option<(i64, JobId, usize)> = None;
        for source in sources {
            let before = self.present(source);
            for job in self.cards[source].jobs() {
                let Some(there) = self.plan(target, Some(job), None) else { continue };
                let Some(rest) = self.plan(source, None, Some(job)) else { continue };
                let gain = there.worth + rest.worth - before;
                if self.clears(gain, before) && best.is_none_or(|(known, ..)| gain > known) {
                    best = Some((gain, job, source));
                }
            }
        }
        best.map(|(_, job, source)| (job, source))
    }

    /// Cuts GPUs anew on which slices stand idle, where that pays.
    pub(super) fn tidy(&mut self) {
        let idle = |card: &Card<'_>| card.layout.len().saturating_sub(card.seats.len());
        let mut order: Vec<usize> = (0..self.cards.len())
            .filter(|at| self.cards[*at].open && !self.cards[*at].seats.is_empty())
            .filter(|at| idle(&self.cards[*at]) > 0)
            .collect();
        order.sort_by_key(|at| std::cmp::Reverse(idle(&self.cards[*at])));
        for at in order.into_iter().take(self.settings.searched) {
            let before = self.present(at);
            let Some(plan) = self.plan(at, None, None) else { continue };
            if self.clears(plan.worth - before, before) {
                self.commit(at, plan, "its slices fit its jobs better so".to_owned());
            }
        }
    }

    const fn clears(&self, gain: i64, before: i64) -> bool {
        gain > before / 1_000 * self.settings.hurdle
    }

    fn commit(&mut self, at: usize, plan: Plan, text: String) {
        let reshape = self.cards[at].take(plan.layout, plan.seats);
        self.changes.push((reshape, text));
    }
}

fn float(time: Millis) -> f64 {
    let ms = time.get();
    let high = u32::try_from(ms >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(ms & 0xFFFF_FFFF).unwrap_or(u32::MAX);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

fn float_of(speed: i64) -> f64 {
    f64::from(i32::try_from(speed).unwrap_or(i32::MAX))
}

/// Rounds a worth down to a whole number: at least one, so that any progress is worth something.
fn whole(worth: f64) -> i64 {
    let clamped = worth.clamp(1.0, 4_000_000_000_000.0);
    let high = (clamped / 1_000_000.0).floor();
    let low = clamped - high * 1_000_000.0;
    integer(high) * 1_000_000 + integer(low)
}

/// Returns the whole part of a number below 2^23.
fn integer(value: f64) -> i64 {
    let mut left = value.floor();
    let mut sum = 0;
    for bit in (0..23).rev() {
        let step = f64::from(1_i32 << bit);
        if left >= step {
            left -= step;
            sum += 1_i64 << bit;
        }
    }
    sum
}
