//! The memory of a running job for users: its curve, the predicted band, and the sizes of slices
//! around it.

use crate::answers::{LiveMemory, MemoryOverview};
use crate::memory_growth::terms_of;
use crate::state::ClusterState;
use crate::state::attempts::LiveAttempt;
use crate::state::inventory::GpuState;
use std::collections::BTreeSet;
use tessera_frames::cluster::MigReport;
use tessera_model::{AttemptId, Bytes, GpuId, JobId, Millis};
use tessera_predict::peak::WatchAdvice;

impl ClusterState {
    /// Returns the memory of a job's running attempt, and the sizes of slices on a GPU: that of the attempt, else the
    /// given one.
    pub fn memory_overview(&self, job: JobId, gpu: Option<&GpuId>, now: Millis) -> MemoryOverview {
        let attempt = self.attempts.by_job.get(&job).copied();
        let live = attempt.and_then(|attempt| Some((attempt, self.attempts.live.get(&attempt)?)));
        let gpu = live.map(|(_, live)| &live.gpu).or(gpu);
        let known = gpu.and_then(|gpu| self.inventory.gpus.get(gpu));
        MemoryOverview {
            live: live.and_then(|(attempt, live)| self.live_memory(attempt, live, now)),
            sizes: known.map(sizes_of).unwrap_or_default(),
        }
    }

    fn live_memory(
        &self,
        attempt: AttemptId,
        live: &LiveAttempt,
        now: Millis,
    ) -> Option<LiveMemory> {
        let watched = self.watches.live.get(&attempt)?;
        let watch = &watched.watch;
        let forecast = match watch.advise(&terms_of(&self.predictions, live, now)) {
            WatchAdvice::Wait => None,
            WatchAdvice::Report(forecast) | WatchAdvice::Act(forecast) => Some(forecast),
        };
        let band = forecast.map(|forecast| watch.band(forecast.crossing)).unwrap_or_default();
        Some(LiveMemory {
            attempt,
            mode: self.watches.mode_of(live),
            curve: watch.curve().clone(),
            preallocated: watch.is_preallocated(),
            moving: watched.moving,
            forecast,
            band,
        })
    }
}

/// Returns the sizes that slices of a GPU can have, the smallest first.
fn sizes_of(gpu: &GpuState) -> Vec<Bytes> {
    let sizes: BTreeSet<Bytes> = match (&gpu.report.mig, gpu.mig.as_deref()) {
        (MigReport::On { .. }, Some(mig)) => mig.plain().map(|profile| profile.memory).collect(),
        (_, _) => [gpu.report.memory].into(),
    };
    sizes.into_iter().collect()
}
