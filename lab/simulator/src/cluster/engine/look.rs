//! How much of the cluster is used, for plots.

use std::collections::BTreeSet;

use tessera_placement::InstanceState;

use super::SimulationRun;
use crate::cluster::metrics::{ClusterSample, InstanceSegment, RunRecord};

impl SimulationRun<'_> {
    /// Counts compute slices in use, those that are idle or fragmented, and the waiting jobs.
    pub(super) fn look(&self) -> ClusterSample {
        let (mut slices, mut used, mut stranded) = (0_u64, 0_u64, 0_u64);
        for gpu in &self.view.gpus {
            let Some(mig) = gpu.mig.as_deref() else { continue };
            let whole = mig.largest().map_or(0, |p| u64::from(p.compute_slices));
            let mut taken = 0_u64;
            for instance in &gpu.instances {
                if instance.state == InstanceState::Idle {
                    continue;
                }
                let profile = instance.slot.and_then(|slot| mig.geometry.profile(slot.profile));
                taken += profile.map_or(0, |p| u64::from(p.compute_slices));
            }
            slices += whole;
            used += taken.min(whole);
            if taken > 0 {
                stranded += whole.saturating_sub(taken);
            }
        }
        ClusterSample {
            at_ms: self.now,
            used_per_mille: per_mille(used, slices),
            stranded_per_mille: per_mille(stranded, slices),
            waiting: self.queue.len() as u64,
            running: self.running as u64,
            milliwatts: Some(self.gpu_states.iter().map(|gpu_state| gpu_state.milliwatts).sum()),
        }
    }

    /// Records which instances exist now that did not before, and which no longer do.
    pub(super) fn note_slices(&mut self) {
        let mut now = BTreeSet::new();
        for (number, gpu) in self.view.gpus.iter().enumerate() {
            let Some(mig) = gpu.mig.as_deref() else { continue };
            for slot in gpu.instances.iter().filter_map(|instance| instance.slot) {
                let size = mig.geometry.profile(slot.profile).map_or(1, |p| p.memory_slices);
                now.insert((number, slot.start, size));
            }
        }
        self.record.slices_are(&now, self.now);
    }
}

impl RunRecord {
    fn slices_are(&mut self, now: &BTreeSet<(usize, u8, u8)>, at_ms: u64) {
        let slices = &mut self.slices;
        self.standing.retain(|place, since| {
            let stands = now.contains(place);
            if !stands && *since < at_ms {
                slices.push(stood(*place, *since, at_ms));
            }
            stands
        });
        for place in now {
            self.standing.entry(*place).or_insert(at_ms);
        }
    }

    /// Every instance that still exists existed until the end.
    pub(crate) fn close_slices(&mut self, end_ms: u64) {
        self.slices_are(&BTreeSet::new(), end_ms);
        self.slices.sort_by_key(|slice| (slice.from_ms, slice.gpu, slice.start));
    }
}

const fn stood((gpu, start, slices): (usize, u8, u8), from_ms: u64, to_ms: u64) -> InstanceSegment {
    InstanceSegment { gpu, start, slices, from_ms, to_ms }
}

fn per_mille(part: u64, whole: u64) -> u64 {
    (part * 1_000).checked_div(whole).unwrap_or(0)
}
