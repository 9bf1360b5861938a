//! What the policy knows of jobs: the truth, or the truth and an error.

use std::sync::Arc;

use tessera_model::mig::Profile;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};
use tessera_placement::{
    Account, CoRunner, Demand, GpuView, JobFacts, JobTable, KernelSharer, Knowledge, Predictor,
    RunTime,
};

use super::{SimulationRun, TaskPhase, index, speed};
use crate::cluster::colocation;
use crate::cluster::contention::{self, ContentionSharer};
use crate::cluster::job::{JobClass, WHOLE};
use tessera_predict::random::SeededRng;

/// The run as policies may know it.
pub(super) struct RunPredictions<'r, 's> {
    run: &'r SimulationRun<'s>,
}

impl<'r, 's> RunPredictions<'r, 's> {
    pub(super) const fn new(run: &'r SimulationRun<'s>) -> Self {
        Self { run }
    }

    /// The factor by which a prediction is off, in thousandths.
    fn error(&self, job: JobId, slices: u8) -> u64 {
        let most = u64::from(self.run.setup.overheads.prediction_error);
        if most == 0 {
            return 1_000;
        }
        let key = job.number().wrapping_mul(16).wrapping_add(u64::from(slices));
        let mut rng = SeededRng::new(self.run.setup.seed ^ key.wrapping_mul(0x9E37_79B9));
        (1_000 + rng.below(2 * most + 1)).saturating_sub(most).max(1)
    }

    /// Returns what a policy may know of jobs.
    pub(super) fn knowledge(&self) -> Knowledge<'_> {
        Knowledge::of(self)
    }

    fn time(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis> {
        if self.run.tasks.get(index(job))?.requested > profile.memory {
            return None;
        }
        let ms = self.run.alone.time(index(job), &gpu.model, profile.compute_slices)?;
        Some(Millis::new((ms * self.error(job, profile.compute_slices) / 1_000).max(1)))
    }
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
        JobFacts {
            done: u32::try_from((WHOLE - left) / 1_000_000).ok(),
            since: task.spot.map(|spot| Millis::new(spot.since)),
            // No job here has to be stopped for lasting too long.
            limit: None,
            migration_price: restore
                .map(|restore| Millis::new(restore.saturating_add(truth.step_ms()))),
            deadline: truth.deadline_ms.map(Millis::new),
            online: truth.class == JobClass::Online,
            demand: truth.demand,
            // The papers' jobs share with any other; what users allow matters in the live cluster only.
            co_runner: Some(CoRunner {
                user: Arc::clone(&self.run.users[index(job)]),
                memory: task.requested,
            }),
        }
    }

    /// Every user has an account with the same part of the cluster.
    fn account(&self, job: JobId) -> Option<Account> {
        let truth = self.run.setup.jobs.get(index(job))?;
        self.run.usage.account(&truth.user, self.run.now)
    }
}

/// The speeds of co-runners are predicted for pairs and groups by `predict_mps_run` alone: no job joins
/// by `predict_speeds`.
impl Predictor for RunPredictions<'_, '_> {
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        self.time(job, gpu, profile).map(RunTime::measured)
    }

    /// By the forest for jobs whose demands are known (MMK, §III-A); for others by the rule that
    /// stands in for it.
    fn predict_mps_run(
        &self,
        job: JobId,
        sm: SmPercent,
        others: &[(JobId, SmPercent)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        self.time(job, gpu, profile)?;
        let truth = self.run.setup.jobs.get(index(job))?;
        let slices = profile.compute_slices;
        let whole = gpu.mig.as_deref()?.largest()?.compute_slices;
        let base = speed::base_ms(truth, &gpu.model, slices, Some(sm));
        let known = |job: JobId| self.run.setup.jobs.get(index(job)).and_then(|job| job.demand);
        let demands: Option<Vec<(Demand, u8)>> =
            others.iter().map(|(other, sm)| Some((known(*other)?, sm.get()))).collect();
        let slowed = match (truth.demand, demands) {
            (Some(own), Some(others)) if !others.is_empty() => {
                let online = truth.class == JobClass::Online;
                let shared =
                    colocation::shared_job(own, sm.get(), &others, (slices, whole), online);
                1_000_000 / self.run.speed_cache.borrow_mut().speed(&shared).max(1)
            }
            _ => {
                let others = others.iter().map(|(other, sm)| (known(*other), sm.get()));
                let all = [(truth.demand, sm.get())].into_iter().chain(others);
                let all: Vec<ContentionSharer> =
                    all.map(|(demand, cap)| ContentionSharer { demand, cap }).collect();
                contention::under_mps(&all, slices, whole).first().copied()?
            }
        };
        let error = self.error(job, slices);
        let ms = u128::from(base) * u128::from(slowed) / 1_000 * u128::from(error) / 1_000;
        Some(Millis::new(u64::try_from(ms).ok()?.max(1)))
    }

    /// By the model for jobs whose parts of busy time are known, or by the simulated queue.
    fn predict_kernel_shared_run(
        &self,
        job: JobId,
        priority: Priority,
        others: &[(JobId, Priority)],
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
