//! When jobs end: as is forecast, and at the latest when their users said.

use tessera_model::mig::{Profile, ProfileId};
use tessera_model::{JobId, Millis};

use crate::board::Gpu;
use crate::forecast::Forecast;
use crate::view::GpuView;

/// How much longer a job goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) left: Millis,
    /// Whether that is its user's limit, before which it may well end: nothing else is known, or more
    /// is forecast.
    pub(super) by_limit: bool,
}

/// Tells when jobs end.
#[derive(Clone, Copy)]
pub(super) struct Ends<'f> {
    pub(super) forecast: &'f dyn Forecast,
    pub(super) now: Millis,
}

impl Ends<'_> {
    /// Returns how much longer a job goes on that runs on a GPU.
    pub(super) fn of_running(self, gpu: &Gpu<'_>, job: JobId) -> Option<End> {
        let held = gpu.instances.iter().find(|i| gpu.holders(i.slot).contains(&job))?;
        let profile = held.slot.and_then(|slot| profile_of(gpu.view, slot.profile));
        let done = self.forecast.done(job);
        let expected = profile.zip(done).and_then(|(profile, done)| {
            let whole = self.forecast.time(job, gpu.view, profile)?;
            Some(left_of(whole, done))
        });
        let limit = self.forecast.limit(job).map(|limit| {
            // Who is still being started has all of it before it.
            let began = self.forecast.since(job).unwrap_or(self.now);
            began.plus(limit).minus(self.now)
        });
        sooner(expected, limit)
    }

    /// Returns how long a job goes on that starts now on such a slice; no profile is a whole GPU with
    /// MIG off.
    pub(super) fn of_starting(
        self,
        job: JobId,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Millis> {
        let whole = profile.and_then(|profile| self.forecast.time(job, gpu, profile));
        let expected = whole.map(|whole| left_of(whole, self.forecast.done(job).unwrap_or(0)));
        sooner(expected, self.forecast.limit(job)).map(|end| end.left)
    }
}

/// Returns what is left of a time, of which so many millionths are done.
fn left_of(whole: Millis, done: u32) -> Millis {
    let left = u128::from(1_000_000_u32.saturating_sub(done));
    let left = u128::from(whole.get()) * left / 1_000_000;
    Millis::new(u64::try_from(left).unwrap_or(u64::MAX))
}

fn sooner(expected: Option<Millis>, limit: Option<Millis>) -> Option<End> {
    let by_limit = limit.is_some_and(|limit| expected.is_none_or(|expected| limit < expected));
    let left = if by_limit { limit } else { expected };
    left.map(|left| End { left, by_limit })
}

fn profile_of(gpu: &GpuView, id: ProfileId) -> Option<&Profile> {
    gpu.mig.as_ref()?.geometry.profile(id)
}
