//! Migration of running jobs: a policy's [`Reshape`] carried out, and what it costs.
//!
//! Placements are kept for the jobs that will get them. Each job that has to leave its slice is
//! requested to checkpoint, and its end is awaited. When slots become free, placements are reserved
//! for their jobs as for any others, and the layout follows from that.
//!
//! Only the requests are in the store. If the leader dies, these jobs end as pre-empted and wait.
//! The others continue to run, and the next leader's policy decides again. So a crash at any point
//! loses a migration, and never a job.
//!
//! A job that doesn't end in time keeps its placement for as long as it runs. Its node kills it
//! after its grace time, which uses up no retry, and it is not migrated again for a while.

use crate::attempt_changes::AttemptChanges;
use crate::duration::duration_text;
use crate::migration::checks::{FeasibleReshape, ReshapeCheck, overlaps};
use crate::overrides::overrides_of;
use crate::plans::{must_stay, steps_to};
use crate::rows::transitions::MigrationRow;
use crate::state::ClusterState;
use crate::state::attempts::{AttemptTable, LiveAttempt};
use crate::state::inventory::slice_at;
use crate::state::layouts::LayoutRequests;
use crate::state::migrations::{KeptPlacements, MigrationRequest, Migrations};
use crate::state::overrides::OverrideTable;
use crate::state::predictions::Predictions;
use crate::state::queue::JobQueue;
use crate::view::cluster_view;
use std::collections::BTreeMap;
use tessera_frames::cluster::StopCause;
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, DecisionId, GpuId, JobId, Millis};
use tessera_placement::{ClusterView, Explanation, JobPlacement, Reshape};
use uuid::Uuid;

pub(crate) mod checks;

/// How long after its grace time the end of a migrating job may take to be reported. An agent may
/// restart, or a connection may break.
pub(crate) const MOVE_SLACK: Millis = Millis::from_secs(30);

/// How long a job that did not end in time is not migrated again.
const RELUCTANT_FOR: Millis = Millis::from_secs(600);

/// The inputs, other than jobs and nodes, that decide whether a kept placement can be given to its job.
#[derive(Clone, Copy)]
pub(crate) struct PlacementLimits<'r> {
    pub(crate) overrides: &'r OverrideTable,
    pub(crate) layouts: &'r LayoutRequests,
    /// No job is placed before this time (rule F14).
    pub(crate) hold_until: Millis,
}

impl AttemptChanges<'_> {
    /// Begins the migrations that a policy decided. A reshape that is not possible is dropped as a
    /// whole.
    pub(crate) fn begin_reshapes(
        &mut self,
        reshapes: Vec<(Reshape, Explanation)>,
        view: &ClusterView,
        limits: PlacementLimits<'_>,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
    ) {
        let check = ReshapeCheck {
            inventory: self.inventory,
            attempts: self.attempts,
            queue: self.queue,
            migrations: self.migrations,
            view,
            now,
        };
        let sound = check.feasible_reshapes(reshapes);
        let leaving = sound.iter().flat_map(|sound| &sound.leaving);
        let grace =
            leaving.filter_map(|attempt| Some(self.attempts.live.get(attempt)?.facts.grace)).max();
        // Jobs that stay on a GPU may wait for one that leaves it.
        let until = now.plus(grace.unwrap_or_default()).plus(MOVE_SLACK);
        for sound in sound {
            for attempt in &sound.leaving {
                self.request_migration(*attempt, until, &sound, now, new_id);
            }
            let FeasibleReshape { gpu, slots, why, .. } = sound;
            let slots: Vec<_> = slots.into_iter().map(|(job, slot)| (job, Some(slot))).collect();
            if !slots.is_empty() {
                self.migrations.kept.insert(gpu, KeptPlacements { slots, until, why });
            }
        }
        self.place_kept_jobs(limits, now, new_id);
    }

    fn request_migration(
        &mut self,
        attempt: AttemptId,
        until: Millis,
        sound: &FeasibleReshape,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
    ) {
        let Some(live) = self.attempts.live.get(&attempt) else { return };
        let job = live.job;
        let Some((_, slot)) = sound.slots.iter().find(|(placed, _)| *placed == job) else { return };
        let place = JobPlacement {
            gpu: sound.gpu.clone(),
            slot: Some(*slot),
            steps: Vec::new(),
            part: None,
            share: None,
        };
        let why = self.explain_migration(live, &place, &sound.why, now);
        let cause = StopCause::Move;
        self.migrations.requests.insert(attempt, MigrationRequest { since: now, until, cause });
        if let Some(live) = self.attempts.live.get_mut(&attempt) {
            live.sent = None;
        }
        let decision = DecisionId::from_uuid(new_id());
        self.jobs.migrations.push(MigrationRow { job, attempt, decision, place, why });
    }

    /// Returns what a migration gains and costs.
    fn explain_migration(
        &self,
        live: &LiveAttempt,
        place: &JobPlacement,
        why: &Explanation,
        now: Millis,
    ) -> Explanation {
        let from = self.inventory.placement_name(&live.gpu, live.slot);
        let to = self.inventory.placement_name(&place.gpu, place.slot);
        let left = |gpu: &GpuId, slot| {
            self.predictions.left_on(live, &self.inventory.slice_kind(gpu, slot)?, now)
        };
        let times = left(&live.gpu, live.slot).zip(left(&place.gpu, place.slot));
        let gain = times.map_or_else(String::new, |(here, there)| {
            format!(": {} left there, {} here", duration_text(there), duration_text(here))
        });
        let cost = duration_text(self.predictions.migration_cost(live));
        let summary = format!(
            "moves from {from} to {to}{gain}; checkpointing and starting again is expected \
             to cost {cost}; {}",
            why.summary
        );
        Explanation { summary, ..why.clone() }
    }

    /// Reserves kept placements when they become free, and cancels those that take too long.
    pub(crate) fn place_kept_jobs(
        &mut self,
        limits: PlacementLimits<'_>,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
    ) {
        give_up_late_migrations(self.migrations, self.queue, self.attempts, now);
        if self.migrations.kept.is_empty() || now < limits.hold_until {
            return;
        }
        for (id, placements) in std::mem::take(&mut self.migrations.kept) {
            let mut kept = Vec::new();
            for (job, slot) in placements.slots {
                if self
                    .attempts
                    .by_job
                    .get(&job)
                    .is_some_and(|attempt| self.migrations.is_migrating(*attempt))
                {
                    kept.push((job, slot));
                    continue;
                }
                if !self.queue.ranks.contains_key(&job) {
                    continue;
                }
                let geometry = self.inventory.geometry(&id);
                let is_apart = |own: Option<Slot>| match (geometry, slot) {
                    (Some(geometry), Some(slot)) => !overlaps(geometry, own, slot),
                    (None, _) | (_, None) => false,
                };
                let mut live = self.attempts.live.values();
                let free = live.all(|live| live.gpu != id || is_apart(live.slot));
                let place = match slot {
                    _ if !free => None,
                    Some(slot) => self.place_for(&id, slot, limits, now),
                    None => self.whole_place_for(&id, limits, now),
                };
                let Some(place) = place else {
                    kept.push((job, slot));
                    continue;
                };
                let PlacementLimits { overrides, layouts, .. } = limits;
                let (inventory, attempts) = (self.inventory, &*self.attempts);
                let view =
                    cluster_view(inventory, attempts, overrides, layouts, self.migrations, now);
                self.reserve_place(job, place, placements.why.clone(), &view, new_id);
            }
            if !kept.is_empty() {
                self.migrations.kept.insert(id, KeptPlacements { slots: kept, ..placements });
            }
        }
    }

    /// Returns a free GPU with MIG off as a placement; `None` while it can't be used.
    fn whole_place_for(
        &self,
        id: &GpuId,
        limits: PlacementLimits<'_>,
        now: Millis,
    ) -> Option<JobPlacement> {
        let PlacementLimits { overrides, layouts, .. } = limits;
        let gpu = self.inventory.gpus.get(id)?;
        let closed = overrides_of(overrides, self.inventory, gpu).closed.is_some()
            || layouts.is_layout_requested(id)
            || gpu.open_plan.is_some();
        let is_whole = self.inventory.geometry(id).is_none();
        (is_whole && !closed && self.inventory.is_available(gpu, now)).then(|| JobPlacement {
            gpu: id.clone(),
            slot: None,
            steps: Vec::new(),
            part: None,
            share: None,
        })
    }

    /// Returns a free slot as a placement, with the steps that make it; `None` while that is not
    /// possible.
    fn place_for(
        &self,
        id: &GpuId,
        slot: Slot,
        limits: PlacementLimits<'_>,
        now: Millis,
    ) -> Option<JobPlacement> {
        let PlacementLimits { overrides, layouts, .. } = limits;
        let gpu = self.inventory.gpus.get(id)?;
        let geometry = self.inventory.geometry(id)?;
        let operator = overrides_of(overrides, self.inventory, gpu);
        let closed =
            operator.closed.is_some() || layouts.is_layout_requested(id) || gpu.open_plan.is_some();
        if !self.inventory.is_available(gpu, now)
            || closed
            || overrides.is_quarantined(id, geometry, slot)
        {
            return None;
        }
        let stays = |slot| must_stay(self.attempts, overrides, (id, geometry), slot);
        let steps = steps_to(geometry, gpu, &[slot], stays)?;
        let stands = slice_at(&gpu.report, Some(slot), None).is_some();
        if stands != steps.is_empty() || (operator.pinned.is_some() && !stands) {
            return None;
        }
        Some(JobPlacement { gpu: id.clone(), slot: Some(slot), steps, part: None, share: None })
    }
}

impl ClusterState {
    /// Returns the reason why a job with a kept placement waits.
    pub(crate) fn explain_kept_placement(&self, job: JobId, now: Millis) -> Option<Explanation> {
        let (gpu, slot, until) = self.migrations.kept_placement_of(job)?;
        let moves = self.migrations.requests.iter().map(|(id, request)| (*id, request.since));
        let stops = self.migrations.preemptions.requests.iter().filter(|(_, to)| to.by == job);
        let mut requested: BTreeMap<AttemptId, Millis> = moves.collect();
        let is_preempting = stops.clone().next().is_some();
        requested.extend(stops.map(|(id, request)| (*id, request.since)));
        let requests = requested.into_iter().filter_map(|(attempt, since)| {
            let live = self.attempts.live.get(&attempt).filter(|live| live.gpu == *gpu)?;
            let since = now.minus(since).get() / 1_000;
            Some(format!("job {} (requested {since} s ago)", live.job))
        });
        let requests: Vec<_> = requests.collect();
        let place = self.inventory.placement_name(gpu, slot);
        let summary = match (requests.is_empty(), is_preempting) {
            (true, _) => format!("{place} is being freed for it"),
            (false, true) => format!(
                "{place} is kept for it until offline jobs there have gone back to the queue: {}",
                requests.join(", ")
            ),
            (false, false) => format!(
                "{place} is kept for it until the jobs there have checkpointed: {}",
                requests.join(", ")
            ),
        };
        let left = until.minus(now).get().div_ceil(1_000);
        Some(Explanation {
            policy: self.planner.policy.name().to_owned(),
            summary,
            would_start_if: Some(format!("they end; given up after {left} s more")),
            ..Explanation::default()
        })
    }
}

/// Learns and returns how long a migration took, once its job runs again.
pub(crate) fn finish_migration(
    migrations: &mut Migrations,
    predictions: &mut Predictions,
    job: JobId,
    task: &str,
    now: Millis,
) -> Option<Millis> {
    let took = now.minus(migrations.underway.remove(&job)?);
    predictions.learn_migration(task, took);
    Some(took)
}

/// Removes finished migrations, and cancels those that take too long.
fn give_up_late_migrations(
    migrations: &mut Migrations,
    queue: &JobQueue,
    attempts: &AttemptTable,
    now: Millis,
) {
    migrations.reluctant.retain(|_, until| now < *until);
    migrations
        .underway
        .retain(|job, _| queue.ranks.contains_key(job) || attempts.by_job.contains_key(job));
    migrations.kept.retain(|_, placements| now < placements.until);
    let late: Vec<_> = migrations
        .requests
        .iter()
        .filter(|(_, request)| now >= request.until)
        .map(|(attempt, _)| *attempt)
        .collect();
    for attempt in late {
        migrations.requests.remove(&attempt);
        if let Some(live) = attempts.live.get(&attempt) {
            migrations.reluctant.insert(live.job, now.plus(RELUCTANT_FOR));
        }
    }
}

#[cfg(test)]
mod tests;
