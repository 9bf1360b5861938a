//! Whether what is free could hold any waiting job. If it could hold none, a run of the policy starts none, whatever its
//! order, its predictions and its reservations are. So an end that frees what no job requests costs no search.
//!
//! Only requests and free memory slices are compared. More than fits is assumed to fit, never less: a round may be
//! decided for nothing, and no start is missed. Jobs that may start without a free slice always need a run: those that
//! share one, and those that may send others back. While a running job may be migrated out of the way, all need one.

use crate::state::ClusterState;
use crate::state::inventory::GpuState;
use std::sync::Arc;
use tessera_model::Millis;
use tessera_model::spec::GpuRequest;
use tessera_placement::{MigView, could_hold};

/// The free capacity of GPUs that are alike.
struct FreeCapacity {
    /// `None` for GPUs with MIG off, which are free as a whole.
    mig: Option<Arc<MigView>>,
    /// The memory slices that attempts hold, as a bit mask.
    held: u64,
}

impl FreeCapacity {
    fn is_same(&self, other: &Self) -> bool {
        let same_mig = match (&self.mig, &other.mig) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.held == other.held && same_mig
    }

    fn could_hold(&self, request: &GpuRequest) -> bool {
        let Some(mig) = &self.mig else { return true };
        mig.geometry.profiles.iter().filter(|profile| could_hold(request, mig, profile)).any(
            |profile| {
                let mut places = profile.starts.iter().filter_map(|start| profile.span(*start));
                places.any(|place| place & self.held == 0)
            },
        )
    }
}

impl ClusterState {
    /// Returns whether a run of the policy would start no job now.
    pub(crate) fn can_start_nothing(&self, now: Millis) -> bool {
        if self.queue.waiting.is_empty()
            || self.migrations.has_kept_placements()
            || self.attempts.live.values().any(|live| live.facts.movable)
        {
            return false;
        }
        let free = self.free_capacity(now);
        // Equal jobs have equal requests, and each of them may preempt if the one that has waited longest may.
        self.queue.distinct().all(|waiting| {
            let job = &waiting.job;
            job.share.is_none()
                && job.auto.is_none()
                && !matches!(job.gpu, GpuRequest::Compute(_))
                && !self.may_preempt(job.id, now)
                && !free.iter().any(|free| free.could_hold(&job.gpu))
        })
    }

    fn free_capacity(&self, now: Millis) -> Vec<FreeCapacity> {
        let mut kinds: Vec<FreeCapacity> = Vec::new();
        let available =
            self.inventory.gpus.values().filter(|gpu| self.inventory.is_available(gpu, now));
        for found in available.filter_map(|gpu| self.free_on(gpu)) {
            if !kinds.iter().any(|kind| kind.is_same(&found)) {
                kinds.push(found);
            }
        }
        kinds
    }

    /// Returns what is free on a GPU; `None` if nothing is.
    fn free_on(&self, gpu: &GpuState) -> Option<FreeCapacity> {
        let mut held = 0;
        for live in self.attempts.on_gpu(&gpu.report.gpu) {
            // An attempt without a slot holds the whole GPU, whatever its MIG mode is now.
            let (slot, mig) = (live.slot?, gpu.mig.as_deref()?);
            held |= mig.geometry.mask(slot).ok()?;
        }
        Some(FreeCapacity { mig: gpu.mig.clone(), held })
    }
}
