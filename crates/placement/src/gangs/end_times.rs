//! When jobs end: by predictions, and at the latest by their time limits.

use tessera_model::mig::{Profile, ProfileId};
use tessera_model::{JobId, Millis};

use crate::facts::JobTable;
use crate::numbers::saturating_millis;
use crate::predictor::Predictor;
use crate::view::GpuView;
use crate::working_state::WorkingGpu;

/// The remaining time of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobEnd {
    pub(super) left: Millis,
    /// Whether the time is its user's limit, before which it may end: no prediction exists, or it
    /// is longer than the limit.
    pub(super) by_limit: bool,
}

/// Returns when jobs end.
#[derive(Clone, Copy)]
pub(super) struct EndTimes<'f> {
    pub(super) jobs: &'f dyn JobTable,
    pub(super) predictor: &'f dyn Predictor,
    pub(super) now: Millis,
}

impl EndTimes<'_> {
    /// Returns the remaining time of a job that runs on a GPU.
    pub(super) fn of_running(self, gpu: &WorkingGpu<'_>, job: JobId) -> Option<JobEnd> {
        let held = gpu.instances.iter().find(|i| gpu.holders(i.slot).contains(&job))?;
        let profile = held.slot.and_then(|slot| profile_of(gpu.view, slot.profile));
        let facts = self.jobs.facts(job);
        let expected = profile.zip(facts.done).and_then(|(profile, done)| {
            let whole = self.predictor.time_alone(job, gpu.view, profile)?;
            Some(left_of(whole, done))
        });
        let limit = facts.limit.map(|limit| {
            // A job that is still starting has its whole run ahead.
            let began = facts.since.unwrap_or(self.now);
            began.plus(limit).minus(self.now)
        });
        sooner(expected, limit)
    }

    /// Returns the run time of a job that starts now on such a slice; no profile means a whole GPU
    /// with MIG off.
    pub(super) fn of_starting(
        self,
        job: JobId,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Millis> {
        let facts = self.jobs.facts(job);
        let whole = profile.and_then(|profile| self.predictor.time_alone(job, gpu, profile));
        let expected = whole.map(|whole| left_of(whole, facts.done.unwrap_or(0)));
        sooner(expected, facts.limit).map(|end| end.left)
    }
}

/// Returns the remaining part of a time, of which `done` millionths have passed.
fn left_of(whole: Millis, done: u32) -> Millis {
    let left = u128::from(1_000_000_u32.saturating_sub(done));
    let left = u128::from(whole.get()) * left / 1_000_000;
    saturating_millis(left)
}

fn sooner(expected: Option<Millis>, limit: Option<Millis>) -> Option<JobEnd> {
    let by_limit = limit.is_some_and(|limit| expected.is_none_or(|expected| limit < expected));
    let left = if by_limit { limit } else { expected };
    left.map(|left| JobEnd { left, by_limit })
}

fn profile_of(gpu: &GpuView, id: ProfileId) -> Option<&Profile> {
    gpu.mig.as_ref()?.geometry.profile(id)
}
