//! The cluster with the decisions of one round applied.

use std::sync::Arc;

use tessera_model::JobId;
use tessera_model::mig::{Layout, MigState, PlanStep, Slot};

use crate::predictor::Predictor;
use crate::view::{
    ClusterView, GpuView, InstanceState, InstanceView, MigView, SharingRequest, Tenancy,
};

/// One GPU with the decisions of this round applied.
#[derive(Clone, Debug)]
pub struct WorkingGpu<'c> {
    /// The GPU at the start of the round.
    pub view: &'c GpuView,
    /// The predictions for jobs that share its slices.
    pub predictor: &'c dyn Predictor,
    /// Its existing and planned instances.
    pub instances: Vec<InstanceView>,
    /// Its layout; `None` with MIG off, or if an instance is not in the reported geometry: such a
    /// GPU can't be planned for.
    pub layout: Option<GpuLayout<'c>>,
}

/// The layout of a partitioned GPU as states of [`MigView::all`].
#[derive(Clone, Copy, Debug)]
pub struct GpuLayout<'c> {
    /// The GPU's rules.
    pub mig: &'c MigView,
    /// The number of the rules within the cluster; equal rules have equal numbers.
    pub model: usize,
    /// All existing and planned instances.
    pub all: MigState,
    /// The instances that must not be touched.
    pub busy: MigState,
    /// The instances that stay even when every job has ended.
    pub fixed: MigState,
}

/// All GPUs in the cluster's order.
#[derive(Debug)]
pub struct WorkingState<'c> {
    /// The GPUs, in the order of the cluster view.
    pub gpus: Vec<WorkingGpu<'c>>,
}

impl<'c> WorkingState<'c> {
    /// Reads the cluster at the start of a round.
    pub fn new(cluster: &'c ClusterView, predictor: &'c dyn Predictor) -> Self {
        let mut models: Vec<&'c Arc<MigView>> = Vec::new();
        let gpus = cluster
            .gpus
            .iter()
            .map(|view| {
                let layout = view.mig.as_ref().and_then(|mig| {
                    let model = number_of(&mut models, mig);
                    GpuLayout::new(mig, model, &view.instances)
                });
                WorkingGpu { view, predictor, instances: view.instances.clone(), layout }
            })
            .collect();
        Self { gpus }
    }
}

/// Finds the number of a GPU's rules, or assigns the next one. Rules are compared by value, since
/// GPUs need not share them in memory.
fn number_of<'c>(models: &mut Vec<&'c Arc<MigView>>, mig: &'c Arc<MigView>) -> usize {
    let known = models
        .iter()
        .position(|m| Arc::ptr_eq(m, mig))
        .or_else(|| models.iter().position(|m| m.geometry == mig.geometry));
    known.unwrap_or_else(|| {
        models.push(mig);
        models.len() - 1
    })
}

impl<'c> GpuLayout<'c> {
    fn new(mig: &'c MigView, model: usize, instances: &[InstanceView]) -> Option<Self> {
        let state = |keep: &dyn Fn(&InstanceState) -> bool| {
            let slots: Option<Layout> =
                instances.iter().filter(|i| keep(&i.state)).map(|i| i.slot).collect();
            mig.all().state(&slots?)
        };
        let all = state(&|_| true)?;
        let busy = state(&InstanceState::busy)?;
        let fixed = state(&InstanceState::fixed)?;
        Some(Self { mig, model, all, busy, fixed })
    }

    /// Returns `R` of one of this GPU's states.
    pub fn futures(&self, state: MigState) -> usize {
        self.mig.all().reachability(state)
    }
}

impl WorkingGpu<'_> {
    /// Applies the steps of a decision and gives the instance to the job.
    pub fn take(
        &mut self,
        job: JobId,
        share: Option<&SharingRequest>,
        slot: Option<Slot>,
        steps: &[PlanStep],
    ) {
        for step in steps {
            self.step(*step);
        }
        for instance in self.instances.iter_mut().filter(|i| i.slot == slot) {
            match (share, &mut instance.state) {
                (None, state) => *state = InstanceState::Taken { job },
                (Some(sharer), InstanceState::Shared(tenancy)) => {
                    tenancy.add(job, sharer);
                }
                (Some(sharer), state) => {
                    *state = InstanceState::Shared(Tenancy::begun(job, sharer));
                }
            }
        }
        if let (Some(layout), Some(slot)) = (&mut self.layout, slot) {
            layout.busy = layout.mig.all().allocate(layout.busy, slot).unwrap_or(layout.busy);
        }
    }

    fn step(&mut self, step: PlanStep) {
        let Some(layout) = &mut self.layout else { return };
        match step {
            PlanStep::Destroy(slot) => {
                self.instances.retain(|i| i.slot != Some(slot));
                layout.all = layout.mig.all().free(layout.all, slot).unwrap_or(layout.all);
            }
            PlanStep::Create(slot) => {
                let Some(profile) = layout.mig.geometry.profile(slot.profile) else { return };
                self.instances.push(InstanceView {
                    slot: Some(slot),
                    memory: profile.memory,
                    state: InstanceState::Idle,
                });
                layout.all = layout.mig.all().allocate(layout.all, slot).unwrap_or(layout.all);
            }
            // Only operators divide instances further, and no policy touches those.
            PlanStep::Cut(..) => {}
        }
    }

    /// Returns the jobs on the instance in `slot`.
    pub fn holders(&self, slot: Option<Slot>) -> Vec<JobId> {
        let state = self.instances.iter().find(|i| i.slot == slot).map(|i| &i.state);
        match state {
            Some(InstanceState::Taken { job }) => vec![*job],
            Some(InstanceState::Shared(tenancy)) => {
                tenancy.sharers.iter().map(|(job, _)| *job).collect()
            }
            Some(InstanceState::Cut(compute)) => compute.taken().map(|(job, _)| job).collect(),
            Some(
                InstanceState::Idle
                | InstanceState::Foreign
                | InstanceState::Stuck
                | InstanceState::Leaving
                | InstanceState::Quarantined,
            )
            | None => Vec::new(),
        }
    }

    /// Returns the jobs that hold instances here, in the order of their numbers.
    pub fn jobs(&self) -> Vec<JobId> {
        let mut jobs: Vec<_> = self.instances.iter().flat_map(|i| self.holders(i.slot)).collect();
        jobs.sort_unstable();
        jobs
    }

    /// Returns the whole-GPU instance of a GPU with MIG off.
    pub fn unpartitioned(&self) -> Option<&InstanceView> {
        match self.view.mig {
            None => self.instances.iter().find(|i| i.slot.is_none()),
            Some(_) => None,
        }
    }
}
