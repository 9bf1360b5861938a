//! The speeds of jobs in their placements, and the resulting power.

use std::collections::BTreeMap;

use tessera_model::Bytes;
use tessera_model::mig::Slot;
use tessera_model::share::SmPercent;
use tessera_placement::{InstanceState, KernelSharer};

use super::{SimulationEvent, SimulationRun, TaskPhase, TaskPlacement, placing};
use crate::cluster::contention::{self, ContentionSharer};
use crate::cluster::job::{SimulatedJob, WHOLE};
use crate::cluster::number::{float, whole};
use crate::cluster::sharing::{SharedInstance, SharingJob};

/// The slow-down and power of jobs on one instance.
struct ShareRate {
    /// How much longer each takes than alone there, in thousandths.
    slowed: Vec<u64>,
    /// Their power over that of the same jobs one after another, in thousandths.
    power: u64,
    /// Whether they share kernel by kernel.
    is_kernel_level: bool,
}

impl SimulationRun<'_> {
    /// Computes the speeds on changed GPUs again.
    pub(super) fn rerate(&mut self) {
        while let Some(gpu) = self.stale.pop_first() {
            self.rerate_gpu(gpu);
        }
    }

    fn rerate_gpu(&mut self, gpu: usize) {
        let working: Vec<(usize, TaskPlacement)> = self
            .jobs_on(gpu)
            .into_iter()
            .filter_map(|task| Some((task, self.tasks[task].spot?)))
            .filter(|(_, spot)| spot.phase == TaskPhase::Works)
            .collect();
        let transfers: Vec<u16> =
            working.iter().map(|(task, _)| self.setup.jobs[*task].transfer).collect();
        let bus = contention::over_pcie(&transfers);
        let mut by_slot: BTreeMap<Option<Slot>, Vec<usize>> = BTreeMap::new();
        for (place, (_, spot)) in working.iter().enumerate() {
            by_slot.entry(spot.slot).or_default().push(place);
        }
        let mut busy = 0_u64;
        let slots = by_slot.len();
        for (slot, places) in by_slot {
            let slices = self.slices(gpu, slot);
            let whole_slices = self.whole_slices(gpu);
            let there: Vec<(usize, TaskPlacement)> =
                places.iter().map(|place| working[*place]).collect();
            let ShareRate { slowed, power, is_kernel_level } =
                self.share(gpu, &there, slices, whole_slices);
            let mut drawn = 0_u64;
            for (place, slowed) in places.iter().zip(&slowed) {
                let (task, spot) = working[*place];
                let job = &self.setup.jobs[task];
                let base = base_ms(job, self.gpu_states[gpu].key, slices, spot.sm);
                let pace = base.saturating_mul(*slowed).saturating_mul(bus[*place]) / 1_000;
                self.go_on(task, pace.max(1));
                let alone = self.gpu_states[gpu].busy_milliwatts(job, slices, whole_slices);
                // Under kernel-level sharing each piece of work takes the same energy as alone.
                drawn += if is_kernel_level { alone * 1_000 / (*slowed).max(1) } else { alone };
            }
            let sharing = (places.len() as u64).max(1);
            busy += if is_kernel_level { drawn } else { drawn / sharing * power / 1_000 };
        }
        if slots > 1 {
            // More than one slice draws more than its parts do alone, up to the whole GPU's.
            busy = busy * contention::POWER_UNDER_MIG / 1_000;
        }
        self.gpu_states[gpu].draw(self.now, busy);
    }

    /// Computes how the working jobs of one instance slow each other.
    fn share(
        &self,
        gpu: usize,
        there: &[(usize, TaskPlacement)],
        slices: u8,
        whole_slices: u8,
    ) -> ShareRate {
        let kernel_sharer = |(task, spot): &(usize, TaskPlacement)| {
            Some(self.kernel_sharer(*task, spot.kernel_priority?, self.gpu_states[gpu].key, slices))
        };
        let sharing: Vec<KernelSharer> = there.iter().filter_map(kernel_sharer).collect();
        if sharing.len() == there.len() {
            let slowed = self.slowdown_of_kernel_sharers(&sharing);
            return ShareRate { slowed, power: 1_000, is_kernel_level: true };
        }
        let sharer = |(task, spot): &(usize, TaskPlacement)| SharingJob {
            job: &self.setup.jobs[*task],
            cap: spot.sm.map_or(100, |sm| sm.get()),
        };
        let jobs: Vec<SharingJob<'_>> = there.iter().map(sharer).collect();
        let on = SharedInstance { gpu: self.gpu_states[gpu].key, slices, whole: whole_slices };
        let slowed = on.slowed(self.setup.overheads.contention, &jobs);
        let sharers: Vec<ContentionSharer> = jobs.iter().map(SharingJob::contends).collect();
        ShareRate { slowed, power: contention::power_under_mps(&sharers), is_kernel_level: false }
    }

    /// Counts a job's progress, and continues it at another speed.
    fn go_on(&mut self, task: usize, pace: u64) {
        self.settle(task);
        let memory = self.memory_of(task);
        let Some(spot) = &mut self.tasks[task].spot else { return };
        spot.pace = pace;
        let left = self.tasks[task].left;
        let grows = self.setup.jobs[task].outgrows(memory);
        let until_full = grows.map(|at| at.saturating_sub(WHOLE - left));
        let parts = until_full.map_or(left, |parts| parts.min(left));
        let ends = self.now + placing::lasts(parts, pace);
        self.tasks[task].stamp += 1;
        let stamp = self.tasks[task].stamp;
        self.schedule(ends, SimulationEvent::Wakes { job: task, stamp });
    }

    /// Handles a job's next point; `true` if the policy should decide.
    pub(super) fn wake(&mut self, task: usize) -> bool {
        let Some(spot) = self.tasks[task].spot else { return false };
        if let TaskPhase::Loading(_) = spot.phase {
            let now = self.now;
            if let Some(spot) = &mut self.tasks[task].spot {
                spot.phase = TaskPhase::Works;
                spot.settled = now;
            }
            self.stale.insert(spot.gpu);
            return false;
        }
        self.settle(task);
        let outgrown = self.setup.jobs[task].outgrows(self.memory_of(task));
        let left = self.tasks[task].left;
        if left == 0 && outgrown.is_none() {
            return self.done(task);
        }
        if outgrown.is_some_and(|at| WHOLE - left >= at) {
            self.out_of_memory(task, spot);
            return true;
        }
        self.stale.insert(spot.gpu);
        false
    }

    /// A job outgrew its instance: its work is lost, and it requests the next larger memory.
    ///
    /// Source: MIGM §3.2 (restart on a bigger slice).
    fn out_of_memory(&mut self, task: usize, spot: TaskPlacement) {
        let had = self.memory_of(task);
        let mig = self.view.gpus[spot.gpu].mig.as_deref();
        let next = mig.and_then(|mig| mig.plain().map(|p| p.memory).find(|m| *m > had));
        self.leave(task);
        let entry = &mut self.tasks[task];
        self.record.lost_parts += u128::from(WHOLE - entry.left);
        entry.requested = next.unwrap_or(had).max(entry.requested);
        entry.left = WHOLE;
        entry.saved = false;
        entry.out_of_memory += 1;
        self.record.out_of_memory += 1;
        self.enqueue(task);
        self.restart_others(task);
    }

    /// Returns the memory that a job may grow to where it is: its instance's less its sharers'.
    fn memory_of(&self, task: usize) -> Bytes {
        let Some(spot) = self.tasks[task].spot else { return Bytes::ZERO };
        let instances = &self.view.gpus[spot.gpu].instances;
        let Some(instance) = instances.iter().find(|i| i.slot == spot.slot) else {
            return Bytes::ZERO;
        };
        let mine = self.tasks[task].requested.get();
        let others = match &instance.state {
            InstanceState::Shared(tenancy) => tenancy.memory().get().saturating_sub(mine),
            InstanceState::Idle
            | InstanceState::Taken { .. }
            | InstanceState::Cut(_)
            | InstanceState::Foreign
            | InstanceState::Stuck
            | InstanceState::Leaving
            | InstanceState::Quarantined => 0,
        };
        Bytes::new(instance.memory.get().saturating_sub(others))
    }

    pub(super) fn slices(&self, gpu: usize, slot: Option<Slot>) -> u8 {
        let mig = self.view.gpus[gpu].mig.as_deref();
        let profile = slot.and_then(|slot| mig?.geometry.profile(slot.profile));
        profile.map_or_else(|| self.whole_slices(gpu), |p| p.compute_slices)
    }

    fn whole_slices(&self, gpu: usize) -> u8 {
        let mig = self.view.gpus[gpu].mig.as_deref();
        mig.and_then(|mig| mig.largest()).map_or(1, |p| p.compute_slices)
    }
}

/// Returns the time of all of a job alone where it is. A capped job without a known demand runs as
/// on that part of the instance, between the sizes that were measured.
pub(super) fn base_ms(job: &SimulatedJob, model: &str, slices: u8, sm: Option<SmPercent>) -> u64 {
    // No job is placed where it has no time: `check_reshape` and `least_request` see to that.
    let alone = job.time(model, slices).unwrap_or(u64::MAX / 4_000_000);
    let Some(sm) = sm.filter(|_| job.demand.is_none()) else { return alone };
    let Some(times) = job.times_on(model) else { return alone };
    let slices_used = f64::from(slices) * f64::from(sm.get()) / 100.0;
    let below = times.range(..=slices).rev().find(|(size, _)| f64::from(**size) <= slices_used);
    let above = times.iter().find(|(size, _)| f64::from(**size) >= slices_used);
    let speed = |ms: u64| 1.0 / float(ms.max(1));
    let speed = match (below, above) {
        (Some((a, at_a)), Some((b, at_b))) if a != b => {
            let part = (slices_used - f64::from(*a)) / (f64::from(*b) - f64::from(*a));
            speed(*at_a) * (1.0 - part) + speed(*at_b) * part
        }
        (None, Some((b, at_b))) => speed(*at_b) * slices_used / f64::from(*b),
        (Some((_, at)), _) => speed(*at),
        (None, None) => return alone,
    };
    whole(1.0 / speed).max(alone.min(1))
}
