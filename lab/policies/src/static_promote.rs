//! `static-promote`: the layout never changes; jobs start on the largest idle slice and move up
//! when a larger one becomes idle.
//!
//! Source: MISO's baseline (*StaCon* there; its public program, `exp_static`). A job is placed on
//! the GPU with the largest idle slice, and takes that slice if it is large enough. A job without a
//! slice holds up no other job. When slices are idle, the smallest running jobs of a GPU are
//! stopped and continued on its largest idle slices, pair by pair, while these are larger.

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

    fn needs_run_times(&self) -> bool {
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
        let mut planned_gpus = PlannedGpu::all(cluster);
        let before: Vec<Vec<PlacedJob>> =
            planned_gpus.iter().map(|planned| planned.placements.clone()).collect();
        let mut waits = Vec::new();
        let mut starts = 0;
        for job in queue {
            let largest = |planned: &PlannedGpu<'_>| {
                planned.open.then(|| idle(planned).first().copied()).flatten()
            };
            let best = (0..planned_gpus.len())
                .filter_map(|at| Some((at, largest(&planned_gpus[at])?)))
                .min_by_key(|(at, slot)| (Reverse(slices(&planned_gpus[*at], *slot)), *at));
            let fits = best.filter(|(at, slot)| {
                planned_gpus[*at].speed(knowledge.predictor, job.id, *slot).is_some()
            });
            match fits {
                Some((at, slot)) if starts < starts_max => {
                    planned_gpus[at].placements.push(PlacedJob::alone(job.id, slot));
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
        let changed = planned_gpus.iter_mut().zip(before).filter_map(|(planned, before)| {
            promote(planned, knowledge);
            (planned.placements != before).then(|| reshaped(planned))
        });
        let starts = changed.map(|reshape| {
            let why = because(NAME, "the largest idle slice");
            Decision::Reshape { reshape, why }
        });
        starts.chain(waits).collect()
    }
}

fn reshaped(planned: &mut PlannedGpu<'_>) -> Reshape {
    let (layout, placements) = (planned.layout.clone(), planned.placements.clone());
    planned.take(layout, placements)
}

/// Returns the idle slots, the largest first.
fn idle(planned: &PlannedGpu<'_>) -> Vec<Slot> {
    let busy = planned.busy();
    let mut idle: Vec<Slot> =
        planned.layout.iter().copied().filter(|s| !busy.contains(s)).collect();
    idle.sort_by_key(|slot| (Reverse(slices(planned, *slot)), *slot));
    idle
}

fn slices(planned: &PlannedGpu<'_>, slot: Slot) -> u8 {
    planned.profile(slot).map_or(0, |p| p.compute_slices)
}

fn promote(planned: &mut PlannedGpu<'_>, knowledge: Knowledge<'_>) {
    if !planned.open {
        return;
    }
    let idle = idle(planned);
    let mut order: Vec<usize> = (0..planned.placements.len()).collect();
    order.sort_by_key(|at| planned.placements[*at].slot.map(|slot| slices(planned, slot)));
    for (to, at) in idle.into_iter().zip(order) {
        let Some(from) = planned.placements[at].slot else { continue };
        let job = planned.placements[at].job;
        let larger = slices(planned, to) > slices(planned, from);
        if !larger || planned.speed(knowledge.predictor, job, to).is_none() {
            break;
        }
        planned.placements[at].slot = Some(to);
    }
}
