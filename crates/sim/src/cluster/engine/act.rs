//! What decisions do to GPUs and jobs.

use std::collections::BTreeMap;

use tessera_model::JobId;
use tessera_model::mig::{self, Slot, Step};
use tessera_model::share::{MpsShare, Part, SmPercent};
use tessera_placement::{InstanceState, InstanceView, Place, Reshape, Seat, Stayers, Tenancy};

use super::card::Card;
use super::{Event, Phase, Refused, Run, Spot, id, index};
use crate::cluster::job::WHOLE;
use crate::cluster::overheads::Cutting;

/// Returns the parts of a job that are done in so many milliseconds at a pace.
pub(super) fn progress(elapsed_ms: u64, pace: u64) -> u64 {
    let parts = u128::from(elapsed_ms) * 1_000 * u128::from(WHOLE) / u128::from(pace.max(1));
    u64::try_from(parts).unwrap_or(u64::MAX)
}

/// Returns the milliseconds, rounded up, in which so many parts are done at a pace.
pub(super) fn lasts(parts: u64, pace: u64) -> u64 {
    let ms = (u128::from(parts) * u128::from(pace)).div_ceil(1_000 * u128::from(WHOLE));
    u64::try_from(ms).unwrap_or(u64::MAX)
}

impl Run<'_> {
    /// Starts a job as the controller would: the steps, then the job.
    pub(super) fn start(&mut self, job: JobId, place: &Place) -> Result<(), Refused> {
        let task = index(job);
        let gpu = self.gpu(&place.gpu)?;
        if self.tasks.get(task).is_none_or(|t| t.spot.is_some() || t.ended.is_some()) {
            return Err(self.impossible(format!("{job:?} doesn't wait")));
        }
        for step in &place.steps {
            self.step_layout(gpu, *step)?;
        }
        let asked = self.tasks[task].asked;
        let free = |i: &&mut InstanceView| i.slot == place.slot && i.state == InstanceState::Idle;
        let Some(instance) = self.view.gpus[gpu].instances.iter_mut().find(free) else {
            return Err(self.impossible(format!("{job:?} goes where no idle instance stands")));
        };
        if instance.memory < asked {
            return Err(self.impossible(format!("{job:?} asks for more than its instance has")));
        }
        instance.state = InstanceState::Taken { job };
        self.touch(gpu);
        self.dequeue(task);
        self.seat(task, gpu, place.slot, None);
        self.draw_steps(gpu, &place.steps);
        let takes = self.steps_ms(gpu, &place.steps);
        self.cut(gpu, takes);
        if place.steps.is_empty() {
            self.load(task);
        }
        Ok(())
    }

    /// Gives a GPU another layout and other jobs.
    pub(super) fn reshape(&mut self, reshape: Reshape) -> Result<(), Refused> {
        let gpu = self.gpu(&reshape.gpu)?;
        if self.view.gpus[gpu].changing {
            return Err(self.impossible(format!("{} is being changed", reshape.gpu)));
        }
        let Some(trial) = reshape.trial else { return self.apply(gpu, &reshape) };
        let whole = self.whole_slot(gpu)?;
        let together =
            |seat: &Seat| Seat { slot: Some(whole), sm: Some(SmPercent::DEFAULT), ..*seat };
        let first = Reshape {
            layout: [whole].into(),
            seats: reshape.seats.iter().map(together).collect(),
            gpu: reshape.gpu.clone(),
            trial: None,
            stayers: Stayers::RunOn,
        };
        self.apply(gpu, &first)?;
        self.cards[gpu].trial_ms = trial.get();
        self.cards[gpu].after_trial = Some(Reshape { trial: None, ..reshape });
        if !self.view.gpus[gpu].changing {
            self.begin_trial(gpu);
        }
        Ok(())
    }

    fn whole_slot(&self, gpu: usize) -> Result<Slot, Refused> {
        let mig = self.view.gpus[gpu].mig.as_deref();
        let largest = mig.and_then(|mig| mig.geometry.largest());
        let slot = largest.and_then(|p| Some(Slot { start: *p.starts.first()?, profile: p.id }));
        slot.ok_or_else(|| self.impossible("a trial on a GPU without MIG"))
    }

    fn begin_trial(&mut self, gpu: usize) {
        self.view.gpus[gpu].changing = true;
        self.touch(gpu);
        self.cards[gpu].stamp += 1;
        let (stamp, least) = (self.cards[gpu].stamp, self.now + self.cards[gpu].trial_ms);
        // Who looks only every so often finds a trial over when looking next.
        let period = self.setup.round_ms.max(1);
        let ends = least.div_ceil(period) * period;
        self.schedule(ends, Event::Tried { gpu, stamp });
    }

    /// A trial is over: whoever hasn't ended meanwhile gets the slice that was chosen.
    pub(super) fn tried(&mut self, gpu: usize) -> Result<(), Refused> {
        self.view.gpus[gpu].changing = false;
        self.touch(gpu);
        let Some(mut reshape) = self.cards[gpu].after_trial.take() else { return Ok(()) };
        let tasks = &self.tasks;
        let here = |seat: &Seat| tasks[index(seat.job)].spot.is_some_and(|spot| spot.gpu == gpu);
        reshape.seats.retain(here);
        self.apply(gpu, &reshape)
    }

    fn apply(&mut self, gpu: usize, reshape: &Reshape) -> Result<(), Refused> {
        self.check_reshape(gpu, reshape)?;
        self.touch(gpu);
        let seats: BTreeMap<usize, Seat> =
            reshape.seats.iter().map(|seat| (index(seat.job), *seat)).collect();
        let stands: Vec<_> = self.view.gpus[gpu].instances.iter().filter_map(|i| i.slot).collect();
        for task in self.jobs_on(gpu) {
            let spot = self.tasks[task].spot;
            let may_stay = reshape.stayers == Stayers::RunOn;
            let stays = may_stay
                && seats.get(&task).is_some_and(|seat| {
                    spot.is_some_and(|s| s.slot == seat.slot && s.sm == seat.sm)
                        && seat.slot.is_none_or(|slot| stands.contains(&slot))
                });
            if !stays {
                self.stop(task);
                if !seats.contains_key(&task) {
                    self.preempted.insert(task);
                    self.enqueue(task);
                }
            }
        }
        let anew = reshape.stayers == Stayers::Restart && !reshape.layout.iter().eq(&stands);
        let gone = stands.iter().filter(|slot| anew || !reshape.layout.contains(slot));
        let made = reshape.layout.iter().filter(|slot| anew || !stands.contains(slot));
        let steps: Vec<Step> = gone
            .map(|slot| Step::Destroy(*slot))
            .chain(made.map(|slot| Step::Create(*slot)))
            .collect();
        for step in &steps {
            self.step_layout(gpu, *step)?;
        }
        self.draw_steps(gpu, &steps);
        let takes = self.steps_ms(gpu, &steps);
        self.take_seats(gpu, &seats);
        self.cut(gpu, takes);
        if !self.view.gpus[gpu].changing {
            let making = self.jobs_on(gpu);
            making.into_iter().for_each(|task| self.load(task));
        }
        self.stale.insert(gpu);
        Ok(())
    }

    fn check_reshape(&self, gpu: usize, reshape: &Reshape) -> Result<(), Refused> {
        let Some(mig) = self.view.gpus[gpu].mig.as_deref() else { return Ok(()) };
        if mig.all().state(&reshape.layout).is_none() {
            return Err(self.impossible(format!("the layout {:?} can't stand", reshape.layout)));
        }
        for seat in &reshape.seats {
            let Some(task) = self.tasks.get(index(seat.job)) else {
                return Err(self.impossible(format!("{:?} doesn't exist", seat.job)));
            };
            if task.ended.is_some() || task.spot.is_some_and(|spot| spot.gpu != gpu) {
                return Err(self.impossible(format!("{:?} is not there to be seated", seat.job)));
            }
            if seat.slot.is_none_or(|slot| !reshape.layout.contains(&slot)) {
                return Err(self.impossible(format!("{:?} sits on no instance", seat.job)));
            }
            let profile = seat.slot.and_then(|slot| mig.geometry.profile(slot.profile));
            let runs = profile.is_some_and(|profile| {
                let time = self.setup.jobs[index(seat.job)]
                    .time(self.cards[gpu].key, profile.compute_slices);
                time.is_some() && profile.memory >= task.asked
            });
            if !runs {
                return Err(self.impossible(format!("{:?} doesn't run on its instance", seat.job)));
            }
            let alone = reshape.seats.iter().filter(|other| other.slot == seat.slot).count() == 1;
            if seat.sm.is_none() && !alone {
                return Err(self.impossible(format!("{:?} shares without a part", seat.job)));
            }
        }
        Ok(())
    }

    fn take_seats(&mut self, gpu: usize, seats: &BTreeMap<usize, Seat>) {
        for (task, seat) in seats {
            if self.tasks[*task].spot.is_none() {
                self.dequeue(*task);
                self.seat(*task, gpu, seat.slot, seat.sm);
            }
        }
        let mut states = BTreeMap::new();
        for seat in seats.values() {
            let asked = self.tasks[index(seat.job)].asked;
            let user = &self.setup.jobs[index(seat.job)].user;
            let state = states.entry(seat.slot).or_insert_with(|| match seat.sm {
                None => InstanceState::Taken { job: seat.job },
                Some(_) => InstanceState::Shared(Tenancy {
                    user: user.as_str().into(),
                    sharers: Vec::new(),
                }),
            });
            if let (InstanceState::Shared(tenancy), Some(sm)) = (state, seat.sm) {
                tenancy.sharers.push((seat.job, Part::Mps(MpsShare { sm, memory: asked })));
            }
        }
        for instance in &mut self.view.gpus[gpu].instances {
            instance.state = states.remove(&instance.slot).unwrap_or(InstanceState::Idle);
        }
    }

    fn seat(&mut self, task: usize, gpu: usize, slot: Option<Slot>, sm: Option<SmPercent>) {
        let now = self.now;
        self.running += 1;
        let phase = Phase::Making;
        let spot = Spot { gpu, slot, sm, since: now, phase, settled: now, pace: u64::MAX };
        self.charge(task, &spot);
        self.tasks[task].spot = Some(spot);
    }

    /// Destroys or creates one instance in the view; time passes elsewhere.
    fn step_layout(&mut self, gpu: usize, step: Step) -> Result<(), Refused> {
        let view = &mut self.view.gpus[gpu];
        match step {
            Step::Destroy(slot) => view.instances.retain(|i| i.slot != Some(slot)),
            // Only operators cut instances further.
            Step::Cut(..) => {}
            Step::Create(slot) => {
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

    fn steps_ms(&self, gpu: usize, steps: &[Step]) -> Option<u64> {
        let mig = self.view.gpus[gpu].mig.as_deref()?;
        if steps.is_empty() {
            return None;
        }
        Some(match self.setup.overheads.cutting {
            Cutting::Measured => mig::predicted(&mig.geometry, steps).get(),
            Cutting::Free => 0,
        })
    }

    /// Counts what making and destroying instances draws beside an idle GPU.
    fn draw_steps(&mut self, gpu: usize, steps: &[Step]) {
        if self.setup.overheads.cutting == Cutting::Free {
            return;
        }
        let mig = self.view.gpus[gpu].mig.as_deref();
        let slices = |slot: &Slot| {
            mig.and_then(|mig| mig.geometry.profile(slot.profile)).map_or(1, |p| p.compute_slices)
        };
        let drawn: u128 = steps
            .iter()
            .map(|step| match step {
                Step::Create(slot) | Step::Cut(slot, _) => Card::creation_microjoules(slices(slot)),
                Step::Destroy(slot) => Card::destruction_microjoules(slices(slot)),
            })
            .sum();
        self.cards[gpu].microjoules += drawn;
        self.record.cutting_microjoules += drawn;
    }

    /// Lets a cut take its time; cuts of one GPU run one after the other.
    fn cut(&mut self, gpu: usize, takes: Option<u64>) {
        let Some(takes) = takes else { return };
        self.record.reconfigurations += 1;
        self.record.cutting_ms += takes;
        let begins = self.cards[gpu].cut_until.max(self.now);
        self.cards[gpu].cut_until = begins + takes;
        self.cards[gpu].stamp += 1;
        self.view.gpus[gpu].changing = true;
        self.touch(gpu);
        let stamp = self.cards[gpu].stamp;
        self.schedule(begins + takes, Event::Cut { gpu, stamp });
    }

    pub(super) fn cut_done(&mut self, gpu: usize) {
        self.view.gpus[gpu].changing = false;
        self.touch(gpu);
        for task in self.jobs_on(gpu) {
            self.load(task);
        }
        if self.cards[gpu].after_trial.is_some() {
            self.begin_trial(gpu);
        }
    }

    /// Lets a job start or restore, if its instance has just come to stand.
    fn load(&mut self, task: usize) {
        let Some(mut spot) = self.tasks[task].spot.filter(|s| s.phase == Phase::Making) else {
            return;
        };
        let job = &self.setup.jobs[task];
        let costs = match self.tasks[task].saved {
            true => self.setup.overheads.move_ms(job).unwrap_or(0),
            false => self.setup.overheads.start_ms(job),
        };
        if self.tasks[task].saved {
            self.tasks[task].moves += 1;
            self.record.moves += 1;
            self.record.moving_ms += costs;
        }
        self.tasks[task].first_start.get_or_insert(self.now);
        spot.phase = Phase::Loading(self.now + costs);
        spot.settled = self.now;
        self.tasks[task].spot = Some(spot);
        self.tasks[task].stamp += 1;
        let stamp = self.tasks[task].stamp;
        self.schedule(self.now + costs, Event::Wakes { job: task, stamp });
    }

    /// Takes a job from its GPU with its progress.
    pub(super) fn stop(&mut self, task: usize) {
        self.settle(task);
        let Some(spot) = self.tasks[task].spot.take() else { return };
        self.running -= 1;
        self.refund(task, &spot);
        self.segment(task, &spot);
        self.tasks[task].stamp += 1;
        let keeps = self.setup.overheads.move_ms(&self.setup.jobs[task]).is_some();
        // Who was still loading for the first time has nothing to save.
        if keeps && self.tasks[task].left < WHOLE {
            self.tasks[task].saved = true;
        } else {
            self.record.lost_parts += u128::from(WHOLE - self.tasks[task].left);
            self.tasks[task].left = WHOLE;
            self.tasks[task].saved = false;
        }
        self.stale.insert(spot.gpu);
    }

    /// Counts a job's progress until now.
    pub(super) fn settle(&mut self, task: usize) {
        let now = self.now;
        let Some(spot) = &mut self.tasks[task].spot else { return };
        if spot.phase == Phase::Works {
            let done = progress(now - spot.settled, spot.pace);
            spot.settled = now;
            self.tasks[task].left = self.tasks[task].left.saturating_sub(done);
        }
    }

    /// Frees a job's part of its instance.
    pub(super) fn leave(&mut self, task: usize) {
        let Some(spot) = self.tasks[task].spot.take() else { return };
        self.running -= 1;
        self.refund(task, &spot);
        self.segment(task, &spot);
        self.tasks[task].stamp += 1;
        self.stale.insert(spot.gpu);
        self.touch(spot.gpu);
        let gpu = &mut self.view.gpus[spot.gpu];
        for instance in gpu.instances.iter_mut().filter(|i| i.slot == spot.slot) {
            match &mut instance.state {
                InstanceState::Shared(tenancy) => {
                    tenancy.sharers.retain(|(job, _)| *job != id(task));
                    if tenancy.sharers.is_empty() {
                        instance.state = InstanceState::Idle;
                    }
                }
                state => *state = InstanceState::Idle,
            }
        }
    }

    pub(super) fn jobs_on(&self, gpu: usize) -> Vec<usize> {
        let mut jobs = Vec::new();
        for instance in &self.view.gpus[gpu].instances {
            match &instance.state {
                InstanceState::Taken { job } => jobs.push(index(*job)),
                InstanceState::Shared(tenancy) => {
                    jobs.extend(tenancy.sharers.iter().map(|(job, _)| index(*job)));
                }
                InstanceState::Idle
                | InstanceState::Cut(_)
                | InstanceState::Foreign
                | InstanceState::Stuck
                | InstanceState::Leaving
                | InstanceState::Quarantined => {}
            }
        }
        jobs
    }

    fn gpu(&self, gpu: &tessera_model::GpuId) -> Result<usize, Refused> {
        let known = self.by_gpu.get(gpu).copied();
        known.ok_or_else(|| self.impossible(format!("there is no {gpu}")))
    }
}
