//! The policy's knowledge about jobs: the true values, or true values with an error.

use std::sync::Arc;

use tessera_model::mig::Profile;
use tessera_model::number::clamped;
use tessera_model::place::PlaceFilter;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};
use tessera_placement::preemption::PreemptionPrice;
use tessera_placement::{
    Account, CoRunner, Estimator, GpuView, JobFacts, JobTable, KernelSharer, Knowledge, MpsClient,
    Prediction, Predictor, RunTime, SharedPart, SliceKind, SpeedBasis, SpeedRange,
};

use super::{SimulationRun, TaskPhase, id, index, speed};
use crate::cluster::job::{JobClass, WHOLE};
use crate::cluster::overheads::{ContentionTruth, RunTimeKnowledge, SimulatedSharing};
use crate::cluster::sharing::{SharedInstance, SharingJob};
use tessera_predict::random::SeededRng;

/// The part of a run that policies may know.
pub(super) struct RunPredictions<'r, 's> {
    run: &'r SimulationRun<'s>,
}

impl<'r, 's> RunPredictions<'r, 's> {
    pub(super) const fn new(run: &'r SimulationRun<'s>) -> Self {
        Self { run }
    }

    /// The error factor of a prediction, in thousandths.
    fn error(&self, job: JobId, slices: u8) -> u64 {
        let most = u64::from(self.run.setup.overheads.prediction_error);
        if most == 0 {
            return 1_000;
        }
        let key = job.number().wrapping_mul(16).wrapping_add(u64::from(slices));
        let mut rng = SeededRng::new(self.run.setup.seed ^ key.wrapping_mul(0x9E37_79B9));
        (1_000 + rng.below(2 * most + 1)).saturating_sub(most).max(1)
    }

    /// Returns the knowledge that a policy may have about jobs.
    pub(super) fn knowledge(&self) -> Knowledge<'_> {
        Knowledge::of(self)
    }

    fn time(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis> {
        if self.run.tasks.get(index(job))?.requested > profile.memory {
            return None;
        }
        match self.run.setup.overheads.times {
            RunTimeKnowledge::Unknown => return None,
            RunTimeKnowledge::Learned => {
                return Some(self.run.learned_run(job, gpu, profile)?.time);
            }
            RunTimeKnowledge::Known => {}
        }
        let ms = self.run.alone.time(index(job), &gpu.model, profile.compute_slices)?;
        Some(Millis::new((ms * self.error(job, profile.compute_slices) / 1_000).max(1)))
    }
}

impl SimulationRun<'_> {
    /// Learns from an ended job, if it ran alone on one slice from its start.
    pub(super) fn learn(&mut self, task: usize) {
        let state = &self.tasks[task];
        let Some(spot) = state.spot else { return };
        let undisturbed = state.moves == 0 && state.preempted == 0 && state.out_of_memory == 0;
        let is_alone = spot.sm.is_none() && spot.kernel_priority.is_none();
        if self.setup.overheads.times != RunTimeKnowledge::Learned || !undisturbed || !is_alone {
            return;
        }
        let gpu = &self.view.gpus[spot.gpu];
        let mig = gpu.mig.as_deref();
        let on = mig.and_then(|mig| {
            let profile = mig.geometry.profile(spot.slot?.profile)?;
            Some((slice_kind(gpu, profile)?, profile.compute_slices))
        });
        let Some((kind, slices)) = on else { return };
        if let Some(ms) = self.alone.time(task, &gpu.model, slices) {
            self.learned.learn(&self.task_key(task), &kind, Millis::new(ms));
        }
    }

    /// Returns the task that a controller would assume for a job: one user's program.
    fn task_key(&self, task: usize) -> String {
        format!("{}/{}", self.setup.jobs[task].user, self.setup.jobs[task].name)
    }

    /// Returns the expected time of a job on an instance, from what has been learned.
    fn learned_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        let key = self.task_key(index(job));
        let whole = self.learned.predict(&key, &slice_kind(gpu, profile)?)?;
        // A job that takes longer than expected would also do so on another slice.
        let longer = |(here, lasted): (Prediction, Millis)| {
            let all = u128::from(lasted.plus(here.after(lasted).expected).get());
            let scaled =
                u128::from(whole.expected.get()) * all / u128::from(here.expected.get().max(1));
            clamped(scaled)
        };
        let ms = self.course(index(job)).map_or(whole.expected.get(), longer);
        let time = Millis::new(ms.max(1));
        // As in a controller: a running job fills no reserved slot.
        let is_running = self.tasks[index(job)].spot.is_some();
        let latest = if is_running { time } else { whole.high.max(time) };
        Some(RunTime { time, latest, is_measured: whole.basis.is_measured() })
    }

    /// Returns the expected time of a job on its slice, and how long it has run there.
    fn course(&self, task: usize) -> Option<(Prediction, Millis)> {
        let spot = self.tasks[task].spot?;
        let gpu = &self.view.gpus[spot.gpu];
        let profile = gpu.mig.as_deref()?.geometry.profile(spot.slot?.profile)?;
        let here = self.learned.predict(&self.task_key(task), &slice_kind(gpu, profile)?)?;
        Some((here, Millis::new(self.now - spot.since)))
    }

    /// Returns the finished part of a job, in millionths, as policies know it.
    fn known_progress(&self, task: usize, left: u64) -> Option<u32> {
        let truth = u32::try_from((WHOLE - left) / 1_000_000).ok();
        match self.setup.overheads.times {
            RunTimeKnowledge::Known => truth,
            RunTimeKnowledge::Unknown => None,
            RunTimeKnowledge::Learned => match self.tasks[task].spot {
                // The work in a checkpoint is known.
                None => truth,
                Some(_) => {
                    let (here, lasted) = self.course(task)?;
                    let all = lasted.plus(here.after(lasted).expected).get().max(1);
                    let done = u128::from(lasted.get()) * 1_000_000 / u128::from(all);
                    u32::try_from(done).ok()
                }
            },
        }
    }
}

/// Returns the properties of an instance that determine run times.
fn slice_kind(gpu: &GpuView, profile: &Profile) -> Option<SliceKind> {
    let whole = u16::from(gpu.mig.as_deref()?.largest()?.compute_slices.max(1));
    Some(SliceKind {
        model: gpu.model.clone(),
        profile: profile.name.to_string(),
        part: u16::from(profile.compute_slices) * 1_000 / whole,
    })
}

impl JobTable for RunPredictions<'_, '_> {
    fn facts(&self, job: JobId) -> JobFacts {
        let (Some(truth), Some(task)) =
            (self.run.setup.jobs.get(index(job)), self.run.tasks.get(index(job)))
        else {
            return JobFacts::default();
        };
        let mut left = task.left;
        if let Some(spot) = task.spot.filter(|spot| spot.phase == TaskPhase::Works) {
            left = left
                .saturating_sub(super::placing::progress(self.run.now - spot.settled, spot.pace));
        }
        let restore = self.run.setup.overheads.move_ms(truth);
        let has_rested = self.run.has_rested(index(job));
        let resting = restore.is_some() && !has_rested;
        let restore = restore.filter(|_| has_rested);
        JobFacts {
            done: self.run.known_progress(index(job), left),
            since: task.spot.map(|spot| Millis::new(spot.since)),
            submitted: Some(Millis::new(truth.submit_ms)),
            // A simulated job is stopped at once, so there is no grace after its limit.
            limit: truth.limit_ms.map(Millis::new),
            migration_price: restore
                .map(|restore| Millis::new(restore.saturating_add(truth.step_ms()))),
            resting,
            memory: Some(task.requested),
            // Simulated jobs launch no kernels.
            multiprocessors: None,
            deadline: truth.deadline_ms.map(Millis::new),
            online: truth.class == JobClass::Online,
            demand: truth.demand,
            // The papers' jobs share with any other, where the policy pairs them.
            co_runner: (self.run.setup.overheads.sharing == SimulatedSharing::Policy).then(|| {
                CoRunner { user: Arc::clone(&self.run.users[index(job)]), memory: task.requested }
            }),
        }
    }

    fn may_preempt(&self, job: JobId) -> bool {
        self.run.may_preempt(index(job))
    }

    fn preemption_price(&self, job: JobId) -> Option<PreemptionPrice> {
        self.run.preemption_price(index(job), self.predicted_rest(job))
    }

    fn received(&self, job: JobId, model: &str) -> Millis {
        let Some(task) = self.run.tasks.get(index(job)) else { return Millis::ZERO };
        let before = task.received.get(model).copied().unwrap_or(0);
        let here = task.spot.filter(|spot| self.run.gpu_states[spot.gpu].key == model);
        Millis::new(before + here.map_or(0, |spot| self.run.now - spot.since))
    }

    fn place(&self, job: JobId) -> Option<Arc<PlaceFilter>> {
        self.run.setup.jobs.get(index(job))?.place.clone()
    }

    fn restricted(&self) -> Vec<JobId> {
        let jobs = self.run.setup.jobs.iter().zip(&self.run.tasks).enumerate();
        let running = jobs.filter(|(_, (job, task))| job.place.is_some() && task.spot.is_some());
        running.map(|(at, _)| id(at)).collect()
    }

    /// A user whose jobs name no account counts as one; its shares are those of its jobs.
    fn account(&self, job: JobId) -> Option<Account> {
        let truth = self.run.setup.jobs.get(index(job))?;
        self.run.usage.account(truth.account(), self.run.now)
    }
}

impl Predictor for RunPredictions<'_, '_> {
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        match self.run.setup.overheads.times {
            RunTimeKnowledge::Learned => {
                let fits = self.run.tasks.get(index(job))?.requested <= profile.memory;
                fits.then(|| self.run.learned_run(job, gpu, profile))?
            }
            RunTimeKnowledge::Known | RunTimeKnowledge::Unknown => {
                self.time(job, gpu, profile).map(RunTime::measured)
            }
        }
    }

    fn predict_shared_run(
        &self,
        job: JobId,
        shared: SharedPart<'_>,
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        match shared {
            SharedPart::Mps { sm, co_runners } => self.mps_run(job, (sm, co_runners), gpu, profile),
            SharedPart::Kernel { priority, co_runners } => {
                self.kernel_shared_run(job, (priority, co_runners), gpu, profile)
            }
        }
    }

    /// By the model of the public measurements with a controller's knowledge about jobs. No job joins other jobs in a
    /// simulation, so nothing requests speeds with the same percentage.
    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        basis: SpeedBasis,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        let is_known = self.run.setup.overheads.times != RunTimeKnowledge::Unknown;
        if basis == SpeedBasis::SamePercentage || !is_known {
            return None;
        }
        let whole = gpu.mig.as_deref()?.largest()?.compute_slices;
        let on = SharedInstance { gpu: &gpu.model, slices: profile?.compute_slices, whole };
        Some(on.speeds_by_busy(clients))
    }

    fn predict_rest_alone(
        &self,
        job: JobId,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Millis> {
        self.predict_run(job, gpu, profile?).map(|run| run.time)
    }
}

impl RunPredictions<'_, '_> {
    /// Returns in how much time a running job is expected to end, if that is known.
    fn predicted_rest(&self, job: JobId) -> Option<Millis> {
        let spot = self.run.tasks.get(index(job))?.spot?;
        let gpu = &self.run.view.gpus[spot.gpu];
        let profile = gpu.mig.as_deref()?.geometry.profile(spot.slot?.profile)?;
        let whole = self.predict_run(job, gpu, profile)?.time;
        let left = 1_000_000 - u64::from(self.facts(job).done?.min(1_000_000));
        let rest = u128::from(whole.get()) * u128::from(left) / 1_000_000;
        Some(Millis::new(clamped(rest)))
    }

    /// By the model of the public measurements for jobs whose demands are known; for others by the rule that replaces
    /// it.
    fn mps_run(
        &self,
        job: JobId,
        (sm, others): (SmPercent, &[(JobId, SmPercent)]),
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        self.time(job, gpu, profile)?;
        let truth = self.run.setup.jobs.get(index(job))?;
        let slices = profile.compute_slices;
        let whole = gpu.mig.as_deref()?.largest()?.compute_slices;
        let base = speed::base_ms(truth, &gpu.model, slices, Some(sm));
        let others = others.iter().map(|(other, sm)| {
            Some(SharingJob { job: self.run.setup.jobs.get(index(*other))?, cap: sm.get() })
        });
        let all = [Some(SharingJob { job: truth, cap: sm.get() })].into_iter().chain(others);
        let all: Vec<SharingJob<'_>> = all.collect::<Option<_>>()?;
        let on = SharedInstance { gpu: &gpu.model, slices, whole };
        let slowed = on.slowed(ContentionTruth::Predicted, &all).first().copied()?;
        let error = self.error(job, slices);
        let ms = u128::from(base) * u128::from(slowed) / 1_000 * u128::from(error) / 1_000;
        Some(Millis::new(u64::try_from(ms).ok()?.max(1)))
    }

    /// By the model for jobs whose parts of busy time are known, or by the simulated queue.
    fn kernel_shared_run(
        &self,
        job: JobId,
        (priority, others): (Priority, &[(JobId, Priority)]),
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let alone = self.time(job, gpu, profile)?;
        let all = [(job, priority)].into_iter().chain(others.iter().copied());
        let sharers = all.map(|(job, priority)| {
            self.run.setup.jobs.get(index(job))?.busy?;
            Some(self.run.kernel_sharer(index(job), priority, &gpu.model, profile.compute_slices))
        });
        let sharers: Vec<KernelSharer> = sharers.collect::<Option<_>>()?;
        let slowed = self.run.slowdown_of_kernel_sharers(&sharers).first().copied()?;
        Some(Millis::new(alone.get().saturating_mul(slowed) / 1_000))
    }
}
