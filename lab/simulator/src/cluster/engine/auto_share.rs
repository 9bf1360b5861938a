//! Jobs whose sharing the controller decides (`--share auto`): by the same code as in a controller.

use tessera_model::JobId;
use tessera_model::share::SliceShare;
use tessera_model::spec::Priority;
use tessera_placement::policy::session::LOOK_AT_MAX;
use tessera_placement::{
    Decision, InstanceState, JobPlacement, KernelSharer, PlacedJob, QueuedJob, Tenancy,
    share_slices,
};

use super::{SimulationError, SimulationRun, forecast, index};
use crate::cluster::job::JobClass;
use crate::cluster::overheads::SimulatedSharing;

/// The step to which a controller rounds up how busy a task is.
const BUSY_STEP: u16 = 50;

impl SimulationRun<'_> {
    /// Returns the facts about a sharing job, if the controller decides whether it shares.
    pub(super) fn auto(&self, task: usize) -> Option<KernelSharer> {
        let job = &self.setup.jobs[task];
        (self.setup.overheads.sharing == SimulatedSharing::Auto).then(|| {
            let priority = Priority::try_from(job.priority).unwrap_or_default();
            let busy = job.busy.map(|busy| busy.div_ceil(BUSY_STEP) * BUSY_STEP);
            KernelSharer::new(priority, job.class == JobClass::Online, busy)
        })
    }

    /// Lets jobs join others at the end of a round, like a controller.
    pub(super) fn share_slices(&self, decisions: &mut Vec<Decision>) {
        if self.setup.overheads.sharing != SimulatedSharing::Auto || self.queue.is_empty() {
            return;
        }
        let waiting = self.queue.iter().take(LOOK_AT_MAX);
        let waiting: Vec<QueuedJob> = waiting.map(|(_, job)| self.queued(index(*job))).collect();
        let waiting: Vec<&QueuedJob> = waiting.iter().collect();
        let forecast = forecast::RunPredictions::new(self);
        share_slices(&self.view, forecast.knowledge(), &waiting, decisions, usize::MAX);
    }

    /// Returns a job's decided placement, with its share of the slice.
    pub(super) fn placed(&self, job: JobId, place: &JobPlacement) -> PlacedJob {
        let task = &self.setup.jobs[index(job)];
        let (sm, kernel_priority) = match place.share {
            Some(SliceShare::Mps(share)) => (Some(share.sm), None),
            Some(SliceShare::Kernel(_)) => {
                (None, Some(Priority::try_from(task.priority).unwrap_or_default()))
            }
            Some(SliceShare::Compute(_)) | None => (None, None),
        };
        PlacedJob { job, slot: place.slot, sm, kernel_priority }
    }

    /// Places a job on its instance, which is idle or shared by another one.
    pub(super) fn occupy(&mut self, gpu: usize, placed: &PlacedJob) -> Result<(), SimulationError> {
        let sharer = self.sharer(gpu, placed);
        let instances = &mut self.view.gpus[gpu].instances;
        let found = instances.iter_mut().find(|instance| instance.slot == placed.slot);
        let taken = match (found, sharer) {
            (Some(instance), Some(sharer)) => match &mut instance.state {
                InstanceState::Shared(tenancy)
                    if tenancy.has_capacity(&sharer, instance.memory) =>
                {
                    tenancy.add(placed.job, &sharer);
                    true
                }
                state if *state == InstanceState::Idle => {
                    let tenancy = Tenancy::begun(placed.job, &sharer);
                    *state = InstanceState::Shared(tenancy);
                    true
                }
                _ => false,
            },
            (Some(instance), None) if instance.state == InstanceState::Idle => {
                instance.state = InstanceState::Taken { job: placed.job };
                true
            }
            (_, _) => false,
        };
        match taken {
            true => Ok(()),
            false => {
                Err(self.impossible(format!("{:?} is placed where no slot is free", placed.job)))
            }
        }
    }
}
