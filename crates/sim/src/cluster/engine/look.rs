//! How much of the cluster is used, for plots.

use tessera_placement::InstanceState;

use super::Run;
use crate::cluster::metrics::Sample;

impl Run<'_> {
    /// Counts compute slices in use, those that stand idle or are cut to pieces, and who waits.
    pub(super) fn look(&self) -> Sample {
        let (mut slices, mut used, mut stranded) = (0_u64, 0_u64, 0_u64);
        for gpu in &self.view.gpus {
            let Some(mig) = gpu.mig.as_deref() else { continue };
            let whole = mig.geometry.largest().map_or(0, |p| u64::from(p.compute_slices));
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
        Sample {
            at_ms: self.now,
            used_per_mille: per_mille(used, slices),
            stranded_per_mille: per_mille(stranded, slices),
            waiting: u64::try_from(self.queue.len()).unwrap_or(u64::MAX),
            running: u64::try_from(self.running).unwrap_or(u64::MAX),
        }
    }
}

fn per_mille(part: u64, whole: u64) -> u64 {
    (part * 1_000).checked_div(whole).unwrap_or(0)
}
