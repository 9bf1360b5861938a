//! `static-promote`: the layout stays as it stands; jobs start on the largest idle slice and move
//! up when a larger one falls idle.
//!
//! Source: MISO's baseline (*StaCon* there; its public program, `exp_static`): a job goes to the
//! GPU with the largest idle slice, and takes that slice if it is enough; whoever doesn't find one
//! holds nobody up. When slices stand idle, the smallest running jobs of a GPU are stopped and go
//! on on its largest idle slices, pair by pair, while that is larger.

use std::cmp::Reverse;

use tessera_model::Millis;
use tessera_model::mig::Slot;

use tessera_placement::Policy;
use tessera_placement::decision::{Decision, PlacedJob, Reshape, WaitReason};
use tessera_placement::policy::SliceManner;
use tessera_placement::policy::planned_gpu::{PlannedGpu, because};
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, QueuedJob};

const NAME: &str = "static-promote";

/// The policy `static-promote`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticPromote;

impl Policy for StaticPromote {
    fn name(&self) -> &'static str {
        NAME
    }

    fn asks_times(&self) -> bool {
        false
    }

    fn slice_manner(&self) -> SliceManner {
        SliceManner::AsTheyStand
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        _now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let mut cards = PlannedGpu::all(cluster);
        let before: Vec<Vec<PlacedJob>> =
            cards.iter().map(|card| card.placements.clone()).collect();
        let mut waits = Vec::new();
        let mut starts = 0;
        for job in queue {
            let largest =
                |card: &PlannedGpu<'_>| card.open.then(|| idle(card).first().copied()).flatten();
            let best = (0..cards.len())
                .filter_map(|at| Some((at, largest(&cards[at])?)))
                .min_by_key(|(at, slot)| (Reverse(slices(&cards[*at], *slot)), *at));
            let fits = best.filter(|(at, slot)| {
                cards[*at].speed(knowledge.predictor, job.id, *slot).is_some()
            });
            match fits {
                Some((at, slot)) if starts < starts_max => {
                    cards[at].placements.push(PlacedJob::alone(job.id, slot));
                    starts += 1;
                }
                _ => {
                    let why = because(NAME, "the largest idle slice doesn't hold it");
                    let reason = WaitReason::Resources;
                    waits.push(Decision::Wait { job: job.id, reason, why });
                }
            }
            if best.is_none() || starts >= starts_max {
                break;
            }
        }
        let changed = cards.iter_mut().zip(before).filter_map(|(card, before)| {
            promote(card, knowledge);
            (card.placements != before).then(|| reshaped(card))
        });
        let starts = changed.map(|reshape| {
            let why = because(NAME, "the largest slice that stands idle");
            Decision::Reshape { reshape, why }
        });
        starts.chain(waits).collect()
    }
}

fn reshaped(card: &mut PlannedGpu<'_>) -> Reshape {
    let (layout, placements) = (card.layout.clone(), card.placements.clone());
    card.take(layout, placements)
}

/// Returns the idle slots, the largest first.
fn idle(card: &PlannedGpu<'_>) -> Vec<Slot> {
    let busy = card.busy();
    let mut idle: Vec<Slot> = card.layout.iter().copied().filter(|s| !busy.contains(s)).collect();
    idle.sort_by_key(|slot| (Reverse(slices(card, *slot)), *slot));
    idle
}

fn slices(card: &PlannedGpu<'_>, slot: Slot) -> u8 {
    card.profile(slot).map_or(0, |p| p.compute_slices)
}

fn promote(card: &mut PlannedGpu<'_>, knowledge: Knowledge<'_>) {
    if !card.open {
        return;
    }
    let idle = idle(card);
    let mut order: Vec<usize> = (0..card.placements.len()).collect();
    order.sort_by_key(|at| card.placements[*at].slot.map(|slot| slices(card, slot)));
    for (to, at) in idle.into_iter().zip(order) {
        let Some(from) = card.placements[at].slot else { continue };
        let job = card.placements[at].job;
        let larger = slices(card, to) > slices(card, from);
        if !larger || card.speed(knowledge.predictor, job, to).is_none() {
            break;
        }
        card.placements[at].slot = Some(to);
    }
}
