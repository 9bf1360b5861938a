//! Checks which of a policy's migrations can be carried out.

use crate::state::attempts::{AttemptTable, LiveAttempt};
use crate::state::inventory::NodeInventory;
use crate::state::migrations::Migrations;
use crate::state::queue::JobQueue;
use std::collections::BTreeSet;
use tessera_frames::cluster::MigReport;
use tessera_model::life::JobState;
use tessera_model::mig::{Geometry, Slot};
use tessera_model::{AttemptId, GpuId, JobId, Millis};
use tessera_placement::{ClusterView, Explanation, Reshape, StayingJobs, could_hold};

/// Maximum number of GPUs on which placements are kept at a time.
const KEPT_GPUS_MAX: usize = 64;

/// A reshape that is possible: the attempts that have to leave, and the jobs' new slots.
#[derive(Clone, Debug)]
pub(crate) struct FeasibleReshape {
    pub(crate) gpu: GpuId,
    /// The jobs that are not in their slots yet.
    pub(crate) slots: Vec<(JobId, Slot)>,
    pub(crate) leaving: BTreeSet<AttemptId>,
    pub(crate) why: Explanation,
}

pub(crate) fn overlaps(geometry: &Geometry, one: Option<Slot>, other: Slot) -> bool {
    one.is_none_or(|one| geometry.overlap(one, other))
}

/// Returns whether a running job may be migrated: it has a checkpoint signal and its slice to
/// itself, and its node has reported it.
pub(crate) fn is_movable(
    attempts: &AttemptTable,
    migrations: &Migrations,
    attempt: AttemptId,
    now: Millis,
) -> bool {
    let live = attempts.live.get(&attempt);
    live.is_some_and(|live| is_live_movable(live, migrations, attempt, now))
}

/// Returns the same for an attempt.
pub(crate) fn is_live_movable(
    live: &LiveAttempt,
    migrations: &Migrations,
    attempt: AttemptId,
    now: Millis,
) -> bool {
    let has_signal =
        || live.launch_spec.as_ref().is_some_and(|s| s.spec.run.checkpoint_signal.is_some());
    let left_alone = || migrations.reluctant.get(&live.job).is_some_and(|at| now < *at);
    live.state == JobState::Running
        && live.acknowledged
        && live.share.is_none()
        && live.gang.is_none()
        && live.slot.is_some()
        && has_signal()
        && !left_alone()
        && !migrations.is_migrating(attempt)
}

/// The inputs that decide whether a reshape is possible.
pub(crate) struct ReshapeCheck<'c> {
    pub(crate) inventory: &'c NodeInventory,
    pub(crate) attempts: &'c AttemptTable,
    pub(crate) queue: &'c JobQueue,
    pub(crate) migrations: &'c Migrations,
    pub(crate) view: &'c ClusterView,
    pub(crate) now: Millis,
}

impl ReshapeCheck<'_> {
    /// Keeps the reshapes that are possible. Each job that leaves a GPU needs another placement,
    /// so that dropping one reshape may drop others.
    pub(crate) fn feasible_reshapes(
        &self,
        reshapes: Vec<(Reshape, Explanation)>,
    ) -> Vec<FeasibleReshape> {
        let left_for = KEPT_GPUS_MAX.saturating_sub(self.migrations.kept.len());
        let mut left: Vec<_> = reshapes.into_iter().take(left_for).collect();
        loop {
            let mut placed = BTreeSet::new();
            let once = left.iter().flat_map(|(reshape, _)| &reshape.placements);
            let once = once.map(|placed_job| placed_job.job).all(|job| placed.insert(job));
            let mut gpus = BTreeSet::new();
            if !once || !left.iter().all(|(reshape, _)| gpus.insert(reshape.gpu.clone())) {
                return Vec::new();
            }
            let before = left.len();
            let mut sound = Vec::new();
            left.retain(|(reshape, why)| {
                let found = self.check_reshape(reshape, why, &placed);
                let is_sound = found.is_some();
                sound.extend(found);
                is_sound
            });
            if left.len() == before {
                return sound;
            }
        }
    }

    fn is_movable(&self, attempt: AttemptId) -> bool {
        is_movable(self.attempts, self.migrations, attempt, self.now)
    }

    fn check_reshape(
        &self,
        reshape: &Reshape,
        why: &Explanation,
        placed: &BTreeSet<JobId>,
    ) -> Option<FeasibleReshape> {
        let id = &reshape.gpu;
        let open = self.view.gpus.iter().find(|view| view.id == *id)?;
        let quiet = open.available && !open.changing && open.operator.pinned.is_none();
        let whole = reshape.trial.is_none() && reshape.stayers == StayingJobs::RunOn;
        if !quiet || !whole || self.migrations.kept.contains_key(id) {
            return None;
        }
        let geometry = self.legal_geometry(reshape)?;
        let (mut slots, mut leaving) = (Vec::new(), BTreeSet::new());
        for placed_job in &reshape.placements {
            let slot = placed_job.slot.filter(|_| !placed_job.shares())?;
            let Some(attempt) = self.attempts.by_job.get(&placed_job.job) else {
                self.check_slot_suits(placed_job.job, id, slot)?;
                slots.push((placed_job.job, slot));
                continue;
            };
            let live = self.attempts.live.get(attempt)?;
            if live.gpu == *id && live.slot == Some(slot) {
                continue;
            }
            if !self.is_movable(*attempt) {
                return None;
            }
            self.check_slot_suits(placed_job.job, id, slot)?;
            leaving.insert(*attempt);
            slots.push((placed_job.job, slot));
        }
        for (attempt, live) in self.attempts.live.iter().filter(|(_, live)| live.gpu == *id) {
            if placed.contains(&live.job) {
                let stays =
                    reshape.placements.iter().any(|s| s.job == live.job && s.slot == live.slot);
                if !stays && !leaving.contains(attempt) && !self.is_movable(*attempt) {
                    return None;
                }
            } else if slots.iter().any(|(_, slot)| overlaps(geometry, live.slot, *slot)) {
                // No job is stopped without another placement.
                return None;
            }
        }
        Some(FeasibleReshape { gpu: id.clone(), slots, leaving, why: why.clone() })
    }

    /// Returns the GPU's geometry if the layout is legal there and has every placement's slot.
    fn legal_geometry(&self, reshape: &Reshape) -> Option<&Geometry> {
        let MigReport::On { geometry } = &self.inventory.gpus.get(&reshape.gpu)?.report.mig else {
            return None;
        };
        let layout: Vec<_> = reshape.layout.iter().copied().collect();
        geometry.check(&layout).ok()?;
        let mut slots = BTreeSet::new();
        let known = reshape.placements.iter().all(|placed_job| {
            placed_job.slot.is_some_and(|slot| reshape.layout.contains(&slot) && slots.insert(slot))
        });
        known.then_some(geometry)
    }

    /// Returns whether a slot suits a job that has its slice to itself.
    fn check_slot_suits(&self, job: JobId, gpu: &GpuId, slot: Slot) -> Option<()> {
        let mig = self.inventory.gpus.get(gpu)?.mig.as_deref()?;
        let profile = mig.geometry.profile(slot.profile)?;
        let request = match self.attempts.by_job.get(&job) {
            Some(attempt) => &self.attempts.live.get(attempt)?.request,
            None => {
                let waiting = self.queue.queued(job)?;
                if waiting.job.share.is_some() || self.migrations.has_kept_placement(job) {
                    return None;
                }
                &waiting.job.gpu
            }
        };
        could_hold(request, mig, profile).then_some(())
    }
}
