//! Running jobs that are moved, and the places that are kept for them.

use std::collections::BTreeMap;
use tessera_frames::cluster::ExitRecord;
use tessera_model::life::Outcome;
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, GpuId, JobId, Millis};
use tessera_placement::{Explanation, InstanceState, InstanceView};

/// The default migration cooldown: how long a job runs at least before it is moved. It is many
/// times the cost of a migration, so that migrations take a small part of a job's time.
pub(crate) const MOVE_REST: Millis = Millis::from_secs(300);

/// Jobs that are being migrated, and the placements that are kept for them.
#[derive(Clone, Debug)]
pub(crate) struct Migrations {
    /// The migration cooldown: how long a job runs at least before it is asked to move, or to move
    /// again.
    pub(crate) cooldown: Millis,
    pub(crate) asked: BTreeMap<AttemptId, MoveRequest>,
    pub(crate) reseats: BTreeMap<GpuId, KeptPlacements>,
    /// Jobs that did not end in time, and until when they are not asked again.
    pub(crate) reluctant: BTreeMap<JobId, Millis>,
    /// Jobs that checkpointed and don't run again yet, with the time of the request.
    pub(crate) underway: BTreeMap<JobId, Millis>,
}

/// A request to an attempt to checkpoint and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveRequest {
    pub(crate) since: Millis,
    pub(crate) until: Millis,
}

/// Placements that are kept on one GPU.
#[derive(Clone, Debug)]
pub(crate) struct KeptPlacements {
    pub(crate) seats: Vec<(JobId, Slot)>,
    pub(crate) until: Millis,
    pub(crate) why: Explanation,
}

impl Default for Migrations {
    fn default() -> Self {
        Self {
            cooldown: MOVE_REST,
            asked: BTreeMap::new(),
            reseats: BTreeMap::new(),
            reluctant: BTreeMap::new(),
            underway: BTreeMap::new(),
        }
    }
}

impl Migrations {
    /// Forgets everything but the settings, since the state is read again from the store.
    pub(crate) fn forget(&mut self) {
        *self = Self { cooldown: self.cooldown, ..Self::default() };
    }

    /// Whether an attempt was asked to checkpoint.
    pub(crate) fn is_asked_to_move(&self, attempt: AttemptId) -> bool {
        self.asked.contains_key(&attempt)
    }

    /// Whether a placement is kept for the job.
    pub(crate) fn has_kept_placement(&self, job: JobId) -> bool {
        self.reseats.values().any(|reseat| reseat.seats.iter().any(|(seated, _)| *seated == job))
    }

    /// Returns the jobs for which placements are kept.
    pub(crate) fn waiting(&self) -> Vec<JobId> {
        self.reseats.values().flat_map(|reseat| reseat.seats.iter().map(|(job, _)| *job)).collect()
    }

    /// Returns the first job for which a placement is kept on the GPU.
    pub(crate) fn first_job_on(&self, gpu: &GpuId) -> Option<JobId> {
        self.reseats.get(gpu)?.seats.first().map(|(job, _)| *job)
    }

    pub(crate) fn place_of(&self, job: JobId) -> Option<(&GpuId, Slot, Millis)> {
        self.reseats.iter().find_map(|(gpu, reseat)| {
            let seat = reseat.seats.iter().find(|(seated, _)| *seated == job)?;
            Some((gpu, seat.1, reseat.until))
        })
    }

    /// Shows idle instances of the GPU as taken while placements are kept there.
    pub(crate) fn close(&self, gpu: &GpuId, views: &mut [InstanceView]) {
        let Some(job) = self.first_job_on(gpu) else { return };
        for view in views.iter_mut().filter(|view| view.state == InstanceState::Idle) {
            view.state = InstanceState::Taken { job };
        }
    }

    /// Whether some job did not end in time.
    #[cfg(test)]
    pub(crate) fn has_reluctant_jobs(&self) -> bool {
        !self.reluctant.is_empty()
    }

    /// Records an end. Returns whether the attempt ended because it was asked to.
    pub(crate) fn ended(&mut self, job: JobId, attempt: AttemptId, record: &ExitRecord) -> bool {
        self.underway.remove(&job);
        let Some(asked) = self.asked.remove(&attempt) else { return false };
        let moves = record.outcome == Outcome::Preempted;
        if moves {
            self.underway.insert(job, asked.since);
        }
        moves
    }
}
