//! The meters of a node's GPUs, shared by the sampling and its readers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tessera_frames::cluster::{
    ATTEMPT_FIGURES_MAX, AttemptFigures, AttemptMemory, AttemptUsage, GpuFigures, GpuReport,
    SLICES_MAX, SliceFigures,
};
use tessera_model::{AttemptId, BootId, Bytes, GpuId, Millis};

use crate::messages::telemetry::TELEMETRY_EVENTS_MAX;
use crate::nvml::counts::RequestCounts;
use tessera_agent_core::nvml::sample::GpuSample;
use tessera_agent_core::telemetry::job_map::JobMap;
use tessera_agent_core::telemetry::meter::{GpuTenancy, Meter, MeterState};
use tessera_agent_core::telemetry::readings::{CompanionTrail, ReadingReports};
use tessera_agent_core::telemetry::tracks::{TrackSubject, TrackedFigure};

/// Every GPU's meter. Held for moments only, never while anything is waited for.
#[derive(Clone, Debug, Default)]
pub struct SharedTelemetry(Arc<Mutex<TelemetryState>>);

impl SharedTelemetry {
    /// Reads or changes the meters.
    pub fn with<T>(&self, look: impl FnOnce(&mut TelemetryState) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The meters, by GPU.
#[derive(Clone, Debug, Default)]
pub struct TelemetryState {
    meters: BTreeMap<GpuId, Meter>,
    /// The state at the agent's start, for GPUs that are found later.
    inventory: Option<Vec<GpuTenancy>>,
    /// Samples by GPU: good ones, and failed ones.
    counts: BTreeMap<GpuId, (u64, u64)>,
    /// The request of the driver.
    calls: RequestCounts,
    /// What the controller predicts the memory of running attempts from.
    readings: ReadingReports,
}

impl TelemetryState {
    /// Begins a meter, from the state of an earlier agent.
    pub fn resume(&mut self, gpu: &GpuId, kept: MeterState) {
        let mut meter = Meter::resume(kept);
        if let Some(held) = &self.inventory {
            take_inventory(gpu, &mut meter, held);
        }
        self.meters.insert(gpu.clone(), meter);
    }

    /// Sets the properties of a GPU.
    pub fn describe(&mut self, report: &GpuReport) {
        if let Some(meter) = self.meters.get_mut(&report.gpu) {
            meter.describe(report);
        }
    }

    /// Records the state of an attempt.
    pub fn tenancy(&mut self, tenancy: &GpuTenancy) {
        if let Some(held) = &mut self.inventory {
            // A GPU that is found only later must not be given an attempt that is over.
            held.retain(|known| known.attempt != tenancy.attempt);
            if !self.meters.contains_key(&tenancy.gpu) && held.len() < TELEMETRY_EVENTS_MAX {
                held.push(tenancy.clone());
            }
        }
        let Some(meter) = self.meters.get_mut(&tenancy.gpu) else { return };
        meter.begin(tenancy);
        if let Some(ended) = tenancy.ended {
            meter.end(tenancy.attempt, ended);
        }
    }

    /// Records which attempts the node holds after a start of the agent.
    pub fn inventory(&mut self, held: &[GpuTenancy]) {
        for (gpu, meter) in &mut self.meters {
            take_inventory(gpu, meter, held);
        }
        // GPUs may be found later than that.
        self.inventory = Some(held.to_vec());
    }

    /// Records how much memory an attempt's own processes had.
    pub fn observe_memory(&mut self, attempt: AttemptId, peak: Bytes) {
        self.meters.values_mut().for_each(|meter| meter.observe_memory(attempt, peak));
    }

    /// Forgets an attempt whose figures the controller has.
    pub fn acknowledged(&mut self, attempt: AttemptId) {
        self.meters.values_mut().for_each(|meter| meter.acknowledged(attempt));
        self.readings.forget(attempt);
    }

    /// Records the report of an attempt's companions.
    pub fn observe_trail(&mut self, attempt: AttemptId, trail: CompanionTrail) {
        self.readings.observe(attempt, trail);
    }

    /// Takes the unreported memory readings of attempts on a GPU.
    pub fn take_readings(&mut self, gpu: &GpuId) -> Vec<AttemptMemory> {
        self.meters.get(gpu).map(|meter| self.readings.take(meter)).unwrap_or_default()
    }

    /// Records a sample or its absence; returns whether an attempt's figures are complete now.
    pub fn sampled(
        &mut self,
        gpu: &GpuId,
        boot: BootId,
        at: Millis,
        sample: Option<GpuSample>,
    ) -> bool {
        let Some(meter) = self.meters.get_mut(gpu) else { return false };
        let (good, failed) = self.counts.entry(gpu.clone()).or_default();
        match sample {
            Some(sample) => {
                *good += 1;
                meter.take(boot, at, sample)
            }
            None => {
                *failed += 1;
                meter.miss(at)
            }
        }
    }

    /// Returns whether a GPU is to be sampled more often.
    pub fn is_busy(&self, gpu: &GpuId) -> bool {
        self.meters.get(gpu).is_some_and(Meter::is_busy)
    }

    /// Returns the state that must outlive this process.
    pub fn kept(&self, gpu: &GpuId) -> Option<Vec<u8>> {
        serde_json::to_vec(self.meters.get(gpu)?.kept()).ok()
    }

    /// Returns the complete figures of attempts that have ended, at most `most`.
    pub fn usages(&self, gpu: &GpuId, most: usize) -> Vec<AttemptUsage> {
        self.meters.get(gpu).into_iter().flat_map(Meter::ended_usages).take(most).collect()
    }

    /// Returns how many samples of each GPU were good, and how many failed.
    pub const fn counts(&self) -> &BTreeMap<GpuId, (u64, u64)> {
        &self.counts
    }

    /// Sets the counters of requests to the driver.
    pub fn follow(&mut self, calls: &RequestCounts) {
        self.calls = calls.clone();
    }

    /// Returns the counts of requests to the driver.
    pub const fn calls(&self) -> &RequestCounts {
        &self.calls
    }

    /// Returns which jobs are where, as DCGM names places.
    pub fn job_map(&self) -> JobMap {
        let mut map = JobMap::default();
        self.meters.values().for_each(|meter| meter.map_jobs(&mut map));
        map
    }

    /// Returns the meters.
    pub const fn meters(&self) -> &BTreeMap<GpuId, Meter> {
        &self.meters
    }

    /// Returns a GPU's current figures; `None` while it can't be read.
    pub fn figures(&self, gpu: &GpuId) -> Option<GpuFigures> {
        let meter = self.meters.get(gpu)?;
        let latest = meter.latest.as_ref()?;
        let newest = |of, figure| meter.tracks.of(of, figure)?.newest().map(|(_, value)| value);
        let activity = |of| u16::try_from(newest(of, TrackedFigure::Activity)?).ok();
        let slices = latest.sample.places.iter().take(SLICES_MAX).map(|place| SliceFigures {
            slot: place.slot,
            memory_used: place.memory_used,
            activity: activity(TrackSubject::Slot(place.slot)),
        });
        let attempts =
            meter.tenancies().take(ATTEMPT_FIGURES_MAX).map(|(attempt, job, _)| AttemptFigures {
                attempt,
                job,
                memory_used: newest(TrackSubject::Attempt(attempt), TrackedFigure::Memory)
                    .map(Bytes::new),
                activity: activity(TrackSubject::Attempt(attempt)),
                energy_mj: meter.ledger().of(attempt),
                memory_peak: meter.peak_of(attempt),
                idle_since: meter.idle_since(attempt),
            });
        Some(GpuFigures {
            gpu: gpu.clone(),
            at_unix: latest.at,
            memory_used: latest.sample.memory_used,
            power_mw: latest.sample.power_mw,
            activity: activity(TrackSubject::Gpu),
            attempts_mj: meter.ledger().attempts_mj(),
            other_mj: meter.ledger().other_mj(),
            idle_mj: meter.ledger().idle_mj(),
            slices: slices.collect(),
            attempts: attempts.collect(),
        })
    }
}

fn take_inventory(gpu: &GpuId, meter: &mut Meter, held: &[GpuTenancy]) {
    for tenancy in held.iter().filter(|tenancy| tenancy.gpu == *gpu) {
        meter.begin(tenancy);
        if let Some(ended) = tenancy.ended {
            meter.end(tenancy.attempt, ended);
        }
    }
    meter.end_unless(|attempt| held.iter().any(|tenancy| tenancy.attempt == attempt));
}
