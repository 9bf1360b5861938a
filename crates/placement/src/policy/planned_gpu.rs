//! GPUs as seen by policies that move running jobs: which job is where, and what may be changed.

use tessera_model::JobId;
use tessera_model::mig::{Layout, Profile, Slot};
use tessera_model::spec::Priority;

use crate::decision::{Explanation, PlacedJob, Reshape, StayingJobs};
use crate::predictor::Predictor;
use crate::view::{ClusterView, GpuView, InstanceState, MigView};

/// One GPU with the plans of the round.
#[derive(Clone, Debug)]
pub struct PlannedGpu<'c> {
    /// The GPU at the start of the round.
    pub view: &'c GpuView,
    /// Its geometry and its state space.
    pub mig: &'c MigView,
    /// Its existing instances.
    pub layout: Layout,
    /// Its jobs.
    pub placements: Vec<PlacedJob>,
    /// Whether its layout and its jobs may be changed in this round.
    pub open: bool,
}

impl<'c> PlannedGpu<'c> {
    /// Reads a GPU. A GPU with MIG off, or with instances that must not be touched, is left alone.
    pub fn new(view: &'c GpuView) -> Option<Self> {
        let mig = view.mig.as_deref()?;
        let mut placements = Vec::new();
        let mut layout = Layout::new();
        for instance in &view.instances {
            layout.extend(instance.slot);
            let slot = instance.slot;
            match &instance.state {
                InstanceState::Idle => {}
                InstanceState::Taken { job } => {
                    placements.push(PlacedJob { job: *job, slot, sm: None, kernel_priority: None });
                }
                InstanceState::Shared(tenancy) => {
                    for (job, share) in &tenancy.sharers {
                        let known = tenancy.kernel_sharer(*job).map(|sharer| sharer.priority);
                        // A job of unknown priority gets the default priority.
                        let kernel_priority =
                            share.is_kernel().then(|| known.unwrap_or(Priority::DEFAULT));
                        placements.push(PlacedJob {
                            job: *job,
                            slot,
                            sm: share.sm(),
                            kernel_priority,
                        });
                    }
                }
                InstanceState::Cut(_)
                | InstanceState::Foreign
                | InstanceState::Stuck
                | InstanceState::Leaving
                | InstanceState::Quarantined => return None,
            }
        }
        let open = view.available && !view.changing && view.operator.pinned.is_none();
        Some(Self { view, mig, layout, placements, open })
    }

    /// Reads all GPUs that can be placed.
    pub fn all(cluster: &'c ClusterView) -> Vec<Self> {
        cluster.gpus.iter().filter_map(Self::new).collect()
    }

    /// Returns the jobs on the GPU.
    pub fn jobs(&self) -> Vec<JobId> {
        self.placements.iter().map(|placed| placed.job).collect()
    }

    /// Returns the slots that have jobs.
    pub fn busy(&self) -> Layout {
        self.placements.iter().filter_map(|placed| placed.slot).collect()
    }

    /// Returns the profile of a slot.
    pub fn profile(&self, slot: Slot) -> Option<&'c Profile> {
        self.mig.geometry.profile(slot.profile)
    }

    /// Returns the slot that is the whole GPU.
    pub fn whole(&self) -> Option<Slot> {
        let largest = self.mig.largest()?;
        Some(Slot { start: *largest.starts.first()?, profile: largest.id })
    }

    /// Returns a job's speed in a slot, in millionths of that on the whole GPU.
    pub fn speed(&self, predictor: &dyn Predictor, job: JobId, slot: Slot) -> Option<i64> {
        predictor.relative_speed(job, self.view, self.mig, self.profile(slot)?)
    }

    /// Sets a layout and placements for the rest of the round; the GPU gets no other decision until
    /// the next one.
    pub fn take(&mut self, layout: Layout, placements: Vec<PlacedJob>) -> Reshape {
        self.layout = layout;
        self.placements = placements;
        self.open = false;
        Reshape {
            gpu: self.view.id.clone(),
            layout: self.layout.clone(),
            placements: self.placements.clone(),
            trial: None,
            stayers: StayingJobs::RunOn,
        }
    }
}

/// Returns an explanation of one sentence.
pub fn because(policy: &str, summary: impl Into<String>) -> Explanation {
    Explanation { policy: policy.to_owned(), summary: summary.into(), ..Explanation::default() }
}
