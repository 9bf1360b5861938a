//! Running jobs that are migrated, and the placements that are kept for them.

use super::preemptions::Preemptions;
use std::collections::BTreeMap;
use tessera_frames::cluster::{ExitRecord, StopCause};
use tessera_model::life::Outcome;
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, GpuId, JobId, Millis};
use tessera_placement::migration_cooldown::MIGRATION_COOLDOWN;
use tessera_placement::{Explanation, InstanceState, InstanceView};

/// Jobs that are being migrated, and the placements that are kept for them.
#[derive(Clone, Debug)]
pub(crate) struct Migrations {
    /// The migration cooldown: how long a job runs at least before it is migrated (again).
    pub(crate) cooldown: Millis,
    pub(crate) requests: BTreeMap<AttemptId, MigrationRequest>,
    pub(crate) kept: BTreeMap<GpuId, KeptPlacements>,
    /// Jobs that did not end in time, and until when they are not migrated again.
    pub(crate) reluctant: BTreeMap<JobId, Millis>,
    /// Jobs that checkpointed and don't run again yet, with the time of the request.
    pub(crate) underway: BTreeMap<JobId, Millis>,
    /// Jobs that are stopped in favour of others, and wait again.
    pub(crate) preemptions: Preemptions,
}

/// A request to an attempt to checkpoint and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MigrationRequest {
    pub(crate) since: Millis,
    pub(crate) until: Millis,
    /// The purpose: it continues elsewhere, or with more memory.
    pub(crate) cause: StopCause,
}

/// Placements that are kept on one GPU.
#[derive(Clone, Debug)]
pub(crate) struct KeptPlacements {
    /// The jobs with their slots; no slot is a whole GPU with MIG off.
    pub(crate) slots: Vec<(JobId, Option<Slot>)>,
    pub(crate) until: Millis,
    pub(crate) why: Explanation,
}

impl Default for Migrations {
    fn default() -> Self {
        Self {
            cooldown: MIGRATION_COOLDOWN,
            requests: BTreeMap::new(),
            kept: BTreeMap::new(),
            reluctant: BTreeMap::new(),
            underway: BTreeMap::new(),
            preemptions: Preemptions::default(),
        }
    }
}

impl Migrations {
    /// Forgets everything but the settings, since the state is read again from the store.
    pub(crate) fn forget(&mut self) {
        self.preemptions.forget();
        let preemptions = std::mem::take(&mut self.preemptions);
        *self = Self { cooldown: self.cooldown, preemptions, ..Self::default() };
    }

    /// Returns whether an attempt was requested to checkpoint.
    pub(crate) fn is_migrating(&self, attempt: AttemptId) -> bool {
        self.requests.contains_key(&attempt)
    }

    /// Returns whether a placement is kept for the job.
    pub(crate) fn has_kept_placement(&self, job: JobId) -> bool {
        self.kept.values().any(|kept| kept.slots.iter().any(|(placed, _)| *placed == job))
    }

    /// Returns whether a placement is kept for any job.
    pub(crate) fn has_kept_placements(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Returns the jobs for which placements are kept.
    pub(crate) fn jobs_with_kept_placements(&self) -> Vec<JobId> {
        self.kept.values().flat_map(|kept| kept.slots.iter().map(|(job, _)| *job)).collect()
    }

    /// Returns the first job for which a placement is kept on the GPU.
    pub(crate) fn first_job_on(&self, gpu: &GpuId) -> Option<JobId> {
        self.kept.get(gpu)?.slots.first().map(|(job, _)| *job)
    }

    pub(crate) fn kept_placement_of(&self, job: JobId) -> Option<(&GpuId, Option<Slot>, Millis)> {
        self.kept.iter().find_map(|(gpu, kept)| {
            let place = kept.slots.iter().find(|(placed, _)| *placed == job)?;
            Some((gpu, place.1, kept.until))
        })
    }

    /// Marks idle instances of the GPU as taken while placements are kept there.
    pub(crate) fn hide_idle_instances(&self, gpu: &GpuId, views: &mut [InstanceView]) {
        let Some(job) = self.first_job_on(gpu) else { return };
        for view in views.iter_mut().filter(|view| view.state == InstanceState::Idle) {
            view.state = InstanceState::Taken { job };
        }
    }

    /// Returns whether some job did not end in time.
    #[cfg(test)]
    pub(crate) fn has_reluctant_jobs(&self) -> bool {
        !self.reluctant.is_empty()
    }

    /// Records an end. Returns whether the attempt ended for its migration.
    pub(crate) fn record_end(
        &mut self,
        job: JobId,
        attempt: AttemptId,
        record: &ExitRecord,
    ) -> bool {
        self.underway.remove(&job);
        let Some(request) = self.requests.remove(&attempt) else { return false };
        let is_migrated = record.outcome == Outcome::Preempted;
        // The wait of a job that was sent back shows nothing about how long migrations take.
        if is_migrated && !self.preemptions.requests.contains_key(&attempt) {
            self.underway.insert(job, request.since);
        }
        is_migrated
    }
}
