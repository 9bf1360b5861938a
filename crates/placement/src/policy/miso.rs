//! `miso`: a job a slice, the layout that slows the jobs of a GPU least, measured under MPS first.
//! `oracle`: the same by one who knows the speeds and measures nothing.
//!
//! Source: Li et al., *MISO: Exploiting Multi-Instance GPU Capability on Multi-Tenant GPU
//! Clusters*, SoCC 2022, §4 (trial under MPS, optimiser over partitions) and its public program.
//!
//! - Jobs come in turn (FIFO). The head goes to the GPU with the fewest jobs whose layouts have a
//!   slice for each of its jobs and the new one. A job that is alone gets the whole GPU at once.
//! - Otherwise every job of the GPU is stopped, all run together under MPS for [`TRIAL`], and then
//!   the GPU gets the layout with one slice a job whose mean slow-down is least.
//! - When nobody waits and a job has ended, its GPU gets the best layout for those that are left,
//!   who are stopped and go on.
//!
//! Where it had to choose: the layouts on an A100 are those of MISO's list ([`PARTITIONS`]), which
//! leaves 4g+3g out; on other models all full layouts. What the trial measures is the forecast's:
//! the paper's neural predictor, which turns MPS speeds into slice speeds, is part of that. Jobs
//! without a forecast are waited for. A GPU is always cut anew as a whole, and all of its jobs are
//! stopped for that, those as well that would keep their slice: so does MISO's program.

use std::collections::BTreeSet;

use tessera_model::mig::{Layout, Slot};
use tessera_model::{JobId, Millis};

use super::Policy;
use super::cards::{Card, because};
use crate::decision::{Decision, Explanation, Reshape, Seat, Stayers, WaitReason};
use crate::forecast::Forecast;
use crate::seating::{self, Must, Seating};
use crate::view::{ClusterView, InstanceState, MigView, QueuedJob};

/// How long jobs run together before their GPU is cut. Source: MISO's program.
pub const TRIAL: Millis = Millis::from_secs(30);

/// MISO's 18 partitions of an A100, by compute slices, in its order.
pub const PARTITIONS: [&[u8]; 18] = [
    &[7],
    &[2, 1, 4],
    &[1, 1, 1, 4],
    &[3, 3],
    &[2, 1, 3],
    &[1, 1, 1, 3],
    &[3, 2, 2],
    &[3, 2, 1, 1],
    &[3, 1, 1, 2],
    &[3, 1, 1, 1, 1],
    &[2, 1, 2, 2],
    &[2, 1, 2, 1, 1],
    &[2, 1, 1, 1, 2],
    &[1, 1, 1, 2, 1, 1],
    &[1, 1, 1, 1, 1, 2],
    &[2, 1, 1, 1, 1, 1],
    &[1, 2, 1, 1, 1, 1],
    &[1, 1, 1, 1, 1, 1, 1],
];

/// The policies `miso` and `oracle`.
#[derive(Clone, Copy, Debug)]
pub struct Miso {
    measures: Measures,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measures {
    UnderMps,
    Nothing,
}

impl Miso {
    /// `miso`, which measures.
    pub const MISO: Self = Self { measures: Measures::UnderMps };
    /// `oracle`, which knows.
    pub const ORACLE: Self = Self { measures: Measures::Nothing };
}

impl Policy for Miso {
    fn name(&self) -> &'static str {
        match self.measures {
            Measures::UnderMps => "miso",
            Measures::Nothing => "oracle",
        }
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        forecast: &dyn Forecast,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut cards = Card::all(cluster);
        let mut decisions = Vec::new();
        while decisions.len() < starts_max {
            let Some(job) = queue.next() else {
                let tidied = cards.iter_mut().filter_map(|card| tidy(card, forecast));
                decisions.extend(tidied.map(|reshape| self.decision(reshape)));
                break;
            };
            let Some(reshape) = self.arrive(&mut cards, forecast, job.id) else {
                let reason = WaitReason::Resources;
                decisions.push(Decision::Wait { job: job.id, reason, why: self.wait() });
                break;
            };
            decisions.push(self.decision(reshape));
        }
        decisions
    }
}

impl Miso {
    /// Finds a GPU for a job that waits.
    fn arrive(
        &self,
        cards: &mut [Card<'_>],
        forecast: &dyn Forecast,
        job: JobId,
    ) -> Option<Reshape> {
        let mut order: Vec<usize> = (0..cards.len()).filter(|i| cards[*i].open).collect();
        order.sort_by_key(|i| cards[*i].seats.len());
        for index in order {
            let card = &mut cards[index];
            let mut jobs = card.jobs();
            jobs.push(job);
            let Some(seating) = optimum(card, forecast, &jobs) else { continue };
            let mut reshape = seat(card, &jobs, seating);
            if jobs.len() > 1 && self.measures == Measures::UnderMps {
                reshape.trial = Some(TRIAL);
            }
            return Some(reshape);
        }
        None
    }

    fn decision(&self, reshape: Reshape) -> Decision {
        let jobs = reshape.seats.len();
        let after = if reshape.trial.is_some() { ", after a trial under MPS" } else { "" };
        let text =
            format!("of the layouts with {jobs} slices this one slows its jobs least{after}");
        Decision::Reshape { reshape, why: because(self.name(), text) }
    }

    fn wait(&self) -> Explanation {
        let text = "no GPU that may be cut has a layout with a slice for each of its jobs and this";
        Explanation {
            would_start_if: Some("a job ends, or a GPU's trial does".to_owned()),
            ..because(self.name(), text)
        }
    }
}

/// Cuts a GPU anew that has an idle slice.
fn tidy(card: &mut Card<'_>, forecast: &dyn Forecast) -> Option<Reshape> {
    let idle = card.view.instances.iter().any(|i| i.state == InstanceState::Idle);
    if !card.open || !idle || card.seats.is_empty() {
        return None;
    }
    let jobs = card.jobs();
    let seating = optimum(card, forecast, &jobs)?;
    Some(seat(card, &jobs, seating))
}

/// Returns the layout with a slice for each job whose mean slow-down is least.
fn optimum(card: &Card<'_>, forecast: &dyn Forecast, jobs: &[JobId]) -> Option<Seating> {
    if jobs.len() > seating::SEATED_MAX {
        return None;
    }
    // The least slow-down is the greatest worth.
    let mut worth = |job: usize, slot: Slot| {
        Some(-(1_000_000_000 / card.speed(forecast, jobs[job], slot)?.max(1)))
    };
    let mut found: Option<Seating> = None;
    for layout in layouts(card.mig, jobs.len()) {
        let next = seating::best(&layout, jobs.len(), Must::SeatAll, &mut worth);
        let Some(next) = next else { continue };
        if found.as_ref().is_none_or(|best| next.worth > best.worth) {
            found = Some(next);
        }
    }
    found
}

/// The layouts that MISO chooses from, with so many instances, each multiset once.
fn layouts(mig: &MigView, instances: usize) -> Vec<Layout> {
    let whole = mig.geometry.largest().map_or(0, |p| p.compute_slices);
    if whole == 7 {
        let listed = PARTITIONS.iter().filter(|sizes| sizes.len() == instances);
        return listed.filter_map(|sizes| arrange(mig, sizes)).collect();
    }
    let mut seen = BTreeSet::new();
    let full = mig.full().iter().filter(|layout| layout.len() == instances);
    full.filter(|layout| seen.insert(sizes(mig, layout))).cloned().collect()
}

fn sizes(mig: &MigView, layout: &Layout) -> Vec<u8> {
    let profiles = layout.iter().filter_map(|slot| mig.geometry.profile(slot.profile));
    let mut sizes: Vec<u8> = profiles.map(|p| p.compute_slices).collect();
    sizes.sort_unstable();
    sizes
}

/// Finds starts for instances of these sizes: the part of a full layout that has them.
fn arrange(mig: &MigView, wanted: &[u8]) -> Option<Layout> {
    mig.full().iter().find_map(|layout| {
        let mut left: Vec<u8> = wanted.to_vec();
        let mut taken = Layout::new();
        for slot in layout {
            let size = mig.geometry.profile(slot.profile)?.compute_slices;
            if let Some(at) = left.iter().position(|s| *s == size) {
                left.swap_remove(at);
                taken.insert(*slot);
            }
        }
        left.is_empty().then_some(taken)
    })
}

fn seat(card: &mut Card<'_>, jobs: &[JobId], seating: Seating) -> Reshape {
    let seats = seating.seats.iter();
    let seats = seats.map(|(job, slot)| Seat { job: jobs[*job], slot: Some(*slot), sm: None });
    let seats = seats.collect();
    Reshape { stayers: Stayers::Restart, ..card.take(seating.layout, seats) }
}
