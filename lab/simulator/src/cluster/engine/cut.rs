//! Cuts of GPUs: their steps, their time and their energy.

use tessera_model::mig::{self, PlanStep, Slot};
use tessera_placement::{InstanceState, InstanceView};

use super::gpu_state::GpuState;
use super::{SimulationError, SimulationEvent, SimulationRun};
use crate::cluster::overheads::RepartitionTime;

impl SimulationRun<'_> {
    /// Destroys or creates one instance in the view; time passes elsewhere.
    pub(super) fn step_layout(
        &mut self,
        gpu: usize,
        step: PlanStep,
    ) -> Result<(), SimulationError> {
        let view = &mut self.view.gpus[gpu];
        match step {
            PlanStep::Destroy(slot) => view.instances.retain(|i| i.slot != Some(slot)),
            // Only operators cut instances further.
            PlanStep::Cut(..) => {}
            PlanStep::Create(slot) => {
                let profile = view.mig.as_ref().and_then(|m| m.geometry.profile(slot.profile));
                let memory = profile.map(|p| p.memory).unwrap_or_default();
                let state = InstanceState::Idle;
                view.instances.push(InstanceView { slot: Some(slot), memory, state });
                view.instances.sort_by_key(|i| i.slot);
            }
        }
        let layout = view.instances.iter().filter_map(|i| i.slot).collect();
        let legal = view.mig.as_deref().is_some_and(|mig| mig.all().state(&layout).is_some());
        if legal { Ok(()) } else { Err(self.impossible(format!("{layout:?} can't stand"))) }
    }

    pub(super) fn steps_ms(&self, gpu: usize, steps: &[PlanStep]) -> Option<u64> {
        let mig = self.view.gpus[gpu].mig.as_deref()?;
        if steps.is_empty() {
            return None;
        }
        Some(match self.setup.overheads.cutting {
            RepartitionTime::Measured => mig::predicted(&mig.geometry, steps).get(),
            RepartitionTime::Free => 0,
        })
    }

    /// Counts the energy of creating and destroying instances, in addition to that of an idle GPU.
    pub(super) fn draw_steps(&mut self, gpu: usize, steps: &[PlanStep]) {
        if self.setup.overheads.cutting == RepartitionTime::Free {
            return;
        }
        let mig = self.view.gpus[gpu].mig.as_deref();
        let slices = |slot: &Slot| {
            mig.and_then(|mig| mig.geometry.profile(slot.profile)).map_or(1, |p| p.compute_slices)
        };
        let drawn: u128 = steps
            .iter()
            .map(|step| match step {
                PlanStep::Create(slot) | PlanStep::Cut(slot, _) => {
                    GpuState::creation_microjoules(slices(slot))
                }
                PlanStep::Destroy(slot) => GpuState::destruction_microjoules(slices(slot)),
            })
            .sum();
        self.gpu_states[gpu].microjoules += drawn;
        self.record.cutting_microjoules += drawn;
    }

    /// Schedules the end of a cut; cuts of one GPU run one after another.
    pub(super) fn cut(&mut self, gpu: usize, takes: Option<u64>) {
        let Some(takes) = takes else { return };
        self.record.reconfigurations += 1;
        self.record.cutting_ms += takes;
        let begins = self.gpu_states[gpu].cut_until.max(self.now);
        self.gpu_states[gpu].cut_until = begins + takes;
        self.gpu_states[gpu].stamp += 1;
        self.view.gpus[gpu].changing = true;
        self.touch(gpu);
        let stamp = self.gpu_states[gpu].stamp;
        self.schedule(begins + takes, SimulationEvent::Cut { gpu, stamp });
    }

    pub(super) fn cut_done(&mut self, gpu: usize) {
        self.view.gpus[gpu].changing = false;
        self.touch(gpu);
        for task in self.jobs_on(gpu) {
            self.load(task);
        }
        if self.gpu_states[gpu].after_trial.is_some() {
            self.begin_trial(gpu);
        }
    }
}
