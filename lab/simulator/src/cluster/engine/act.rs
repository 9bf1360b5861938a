//! Carries out decisions on GPUs and jobs.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::JobId;
use tessera_model::mig::{PlanStep, Slot};
use tessera_model::share::{KernelShare, MpsShare, SliceShare, SmPercent};
use tessera_placement::{
    Decision, InstanceState, InstanceView, JobPlacement, MpsClient, PlacedJob, Reshape,
    SharingRequest, StayingJobs, Tenancy,
};

use super::{SimulationError, SimulationEvent, SimulationRun, TaskPhase, index};
impl SimulationRun<'_> {
    /// Starts a job like a controller: first the steps, then the job.
    pub(super) fn start(
        &mut self,
        job: JobId,
        place: &JobPlacement,
    ) -> Result<(), SimulationError> {
        let task = index(job);
        let gpu = self.gpu(&place.gpu)?;
        if self.tasks.get(task).is_none_or(|t| t.spot.is_some() || t.ended.is_some()) {
            return Err(self.impossible(format!("{job:?} doesn't wait")));
        }
        for step in &place.steps {
            self.step_layout(gpu, *step)?;
        }
        let requested = self.tasks[task].requested;
        let there = |i: &&InstanceView| i.slot == place.slot;
        let instance = self.view.gpus[gpu].instances.iter().find(there);
        if instance.is_some_and(|instance| instance.memory < requested) {
            return Err(self.impossible(format!("{job:?} requests more than its instance has")));
        }
        let placed = self.placed(job, place);
        self.occupy(gpu, &placed)?;
        self.touch(gpu);
        self.dequeue(task);
        self.place_task(task, gpu, placed);
        self.draw_steps(gpu, &place.steps);
        let takes = self.steps_ms(gpu, &place.steps);
        self.cut(gpu, takes);
        if place.steps.is_empty() && !self.is_promised(task) {
            self.load(task);
        }
        Ok(())
    }

    /// Returns whether a job joined another one on an instance that is still being created.
    fn is_promised(&self, task: usize) -> bool {
        let Some(spot) = self.tasks[task].spot else { return false };
        let others = self.jobs_on(spot.gpu).into_iter().filter(|other| *other != task);
        let mut spots = others.filter_map(|other| self.tasks[other].spot);
        spots.any(|other| other.slot == spot.slot && other.phase == TaskPhase::Making)
    }

    /// Gives a GPU another layout and other jobs.
    pub(super) fn reshape(&mut self, reshape: Reshape) -> Result<(), SimulationError> {
        let gpu = self.gpu(&reshape.gpu)?;
        if self.view.gpus[gpu].changing {
            return Err(self.impossible(format!("{} is being changed", reshape.gpu)));
        }
        let Some(trial) = reshape.trial else { return self.apply(gpu, &reshape) };
        let whole = self.whole_slot(gpu)?;
        let together = |placed: &PlacedJob| PlacedJob {
            slot: Some(whole),
            sm: Some(SmPercent::DEFAULT),
            ..*placed
        };
        let first = Reshape {
            layout: [whole].into(),
            placements: reshape.placements.iter().map(together).collect(),
            gpu: reshape.gpu.clone(),
            trial: None,
            stayers: StayingJobs::RunOn,
        };
        self.apply(gpu, &first)?;
        self.gpu_states[gpu].trial_ms = trial.get();
        self.gpu_states[gpu].after_trial = Some(Reshape { trial: None, ..reshape });
        if !self.view.gpus[gpu].changing {
            self.begin_trial(gpu);
        }
        Ok(())
    }

    fn whole_slot(&self, gpu: usize) -> Result<Slot, SimulationError> {
        let mig = self.view.gpus[gpu].mig.as_deref();
        let largest = mig.and_then(|mig| mig.largest());
        let slot = largest.and_then(|p| Some(Slot { start: *p.starts.first()?, profile: p.id }));
        slot.ok_or_else(|| self.impossible("a trial on a GPU without MIG"))
    }

    pub(super) fn begin_trial(&mut self, gpu: usize) {
        self.view.gpus[gpu].changing = true;
        self.touch(gpu);
        self.gpu_states[gpu].stamp += 1;
        let (stamp, least) = (self.gpu_states[gpu].stamp, self.now + self.gpu_states[gpu].trial_ms);
        // A policy that runs at intervals detects the end of a trial in its next round.
        let period = self.setup.round_ms.max(1);
        let ends = least.div_ceil(period) * period;
        self.schedule(ends, SimulationEvent::Tried { gpu, stamp });
    }

    /// A trial has ended: jobs that haven't ended in between get the chosen slices.
    pub(super) fn tried(&mut self, gpu: usize) -> Result<(), SimulationError> {
        self.view.gpus[gpu].changing = false;
        self.touch(gpu);
        let Some(mut reshape) = self.gpu_states[gpu].after_trial.take() else { return Ok(()) };
        let tasks = &self.tasks;
        let here =
            |placed: &PlacedJob| tasks[index(placed.job)].spot.is_some_and(|spot| spot.gpu == gpu);
        reshape.placements.retain(here);
        self.apply(gpu, &reshape)
    }

    /// Removes jobs from their GPUs that are placed on others: of two jobs that swap places, both
    /// have left before either is placed, as in a controller.
    pub(super) fn part(&mut self, decisions: &[Decision]) {
        let reshapes = || {
            decisions.iter().filter_map(|decision| match decision {
                Decision::Reshape { reshape, .. } => Some(reshape),
                Decision::Start { .. } | Decision::Wait { .. } | Decision::Preempt { .. } => None,
            })
        };
        let reshaped: BTreeSet<usize> =
            reshapes().filter_map(|reshape| self.by_gpu.get(&reshape.gpu).copied()).collect();
        for reshape in reshapes() {
            let to = self.by_gpu.get(&reshape.gpu).copied();
            for task in reshape.placements.iter().map(|placed| index(placed.job)) {
                let spot = self.tasks.get(task).and_then(|known| known.spot);
                let away = spot.filter(|s| Some(s.gpu) != to && reshaped.contains(&s.gpu));
                let Some(spot) = away else { continue };
                self.stop(task);
                self.free(task, &spot);
                self.preempted.insert(task);
                self.enqueue(task);
            }
        }
    }

    fn apply(&mut self, gpu: usize, reshape: &Reshape) -> Result<(), SimulationError> {
        self.check_reshape(gpu, reshape)?;
        self.touch(gpu);
        let placements: BTreeMap<usize, PlacedJob> =
            reshape.placements.iter().map(|placed| (index(placed.job), *placed)).collect();
        let stands: Vec<_> = self.view.gpus[gpu].instances.iter().filter_map(|i| i.slot).collect();
        for task in self.jobs_on(gpu) {
            let spot = self.tasks[task].spot;
            let may_stay = reshape.stayers == StayingJobs::RunOn;
            let stays = may_stay
                && placements.get(&task).is_some_and(|placed| {
                    spot.is_some_and(|s| {
                        (s.slot, s.sm, s.kernel_priority)
                            == (placed.slot, placed.sm, placed.kernel_priority)
                    }) && placed.slot.is_none_or(|slot| stands.contains(&slot))
                });
            if !stays {
                self.stop(task);
                if !placements.contains_key(&task) {
                    self.preempted.insert(task);
                    self.enqueue(task);
                }
            }
        }
        let restarts =
            reshape.stayers == StayingJobs::Restart && !reshape.layout.iter().eq(&stands);
        let gone = stands.iter().filter(|slot| restarts || !reshape.layout.contains(slot));
        let made = reshape.layout.iter().filter(|slot| restarts || !stands.contains(slot));
        let steps: Vec<PlanStep> = gone
            .map(|slot| PlanStep::Destroy(*slot))
            .chain(made.map(|slot| PlanStep::Create(*slot)))
            .collect();
        for step in &steps {
            self.step_layout(gpu, *step)?;
        }
        self.draw_steps(gpu, &steps);
        let takes = self.steps_ms(gpu, &steps);
        self.apply_placements(gpu, &placements);
        self.cut(gpu, takes);
        if !self.view.gpus[gpu].changing {
            let making = self.jobs_on(gpu);
            making.into_iter().for_each(|task| self.load(task));
        }
        self.stale.insert(gpu);
        Ok(())
    }

    fn check_reshape(&self, gpu: usize, reshape: &Reshape) -> Result<(), SimulationError> {
        let Some(mig) = self.view.gpus[gpu].mig.as_deref() else { return Ok(()) };
        if mig.all().state(&reshape.layout).is_none() {
            return Err(self.impossible(format!("the layout {:?} can't stand", reshape.layout)));
        }
        for placed in &reshape.placements {
            let Some(task) = self.tasks.get(index(placed.job)) else {
                return Err(self.impossible(format!("{:?} doesn't exist", placed.job)));
            };
            if task.ended.is_some() || task.spot.is_some_and(|spot| spot.gpu != gpu) {
                return Err(self.impossible(format!("{:?} is not there to be placed", placed.job)));
            }
            if placed.slot.is_none_or(|slot| !reshape.layout.contains(&slot)) {
                return Err(self.impossible(format!("{:?} is on no instance", placed.job)));
            }
            let profile = placed.slot.and_then(|slot| mig.geometry.profile(slot.profile));
            let runs = profile.is_some_and(|profile| {
                let time = self.setup.jobs[index(placed.job)]
                    .time(self.gpu_states[gpu].key, profile.compute_slices);
                time.is_some() && profile.memory >= task.requested
            });
            if !runs {
                return Err(
                    self.impossible(format!("{:?} doesn't run on its instance", placed.job))
                );
            }
            let alone =
                reshape.placements.iter().filter(|other| other.slot == placed.slot).count() == 1;
            if !placed.shares() && !alone {
                return Err(self.impossible(format!("{:?} shares without a part", placed.job)));
            }
            let other = |other: &PlacedJob| {
                other.slot == placed.slot && other.sm.is_some() != placed.sm.is_some()
            };
            if reshape.placements.iter().any(other)
                || (placed.sm.is_some() && placed.kernel_priority.is_some())
            {
                return Err(self.impossible(format!("{:?} shares in another way", placed.job)));
            }
        }
        Ok(())
    }

    fn apply_placements(&mut self, gpu: usize, placements: &BTreeMap<usize, PlacedJob>) {
        for (task, placed) in placements {
            if self.tasks[*task].spot.is_none() {
                self.dequeue(*task);
                self.place_task(*task, gpu, *placed);
            }
        }
        let mut states = BTreeMap::new();
        for placed in placements.values() {
            let Some(sharer) = self.sharer(gpu, placed) else {
                states.insert(placed.slot, InstanceState::Taken { job: placed.job });
                continue;
            };
            match states.get_mut(&placed.slot) {
                Some(InstanceState::Shared(tenancy)) => tenancy.add(placed.job, &sharer),
                _ => {
                    let tenancy = Tenancy::begun(placed.job, &sharer);
                    states.insert(placed.slot, InstanceState::Shared(tenancy));
                }
            }
        }
        for instance in &mut self.view.gpus[gpu].instances {
            instance.state = states.remove(&instance.slot).unwrap_or(InstanceState::Idle);
        }
    }

    /// Returns how a job shares its instance, if it does.
    pub(super) fn sharer(&self, gpu: usize, placed: &PlacedJob) -> Option<SharingRequest> {
        let (task, memory) = (index(placed.job), self.tasks[index(placed.job)].requested);
        let user = self.setup.jobs[task].user.as_str();
        match (placed.sm, placed.kernel_priority) {
            (Some(sm), _) => {
                let client = self.auto(task).map(|known| MpsClient {
                    online: known.online,
                    sm,
                    busy: known.busy,
                });
                let share = SliceShare::Mps(MpsShare { sm, memory });
                Some(SharingRequest { client, ..SharingRequest::new(user, share) })
            }
            (None, Some(priority)) => {
                let slices = self.slices(gpu, placed.slot);
                let kernel_sharer =
                    Some(self.kernel_sharer(task, priority, self.gpu_states[gpu].key, slices));
                let share = SliceShare::Kernel(KernelShare { memory });
                Some(SharingRequest { kernel_sharer, ..SharingRequest::new(user, share) })
            }
            (None, None) => None,
        }
    }

    fn gpu(&self, gpu: &tessera_model::GpuId) -> Result<usize, SimulationError> {
        let known = self.by_gpu.get(gpu).copied();
        known.ok_or_else(|| self.impossible(format!("there is no {gpu}")))
    }
}
