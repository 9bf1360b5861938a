//! What the policy is told of jobs: the truth, or the truth and an error.

use tessera_model::mig::Profile;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};
use tessera_placement::{Account, Companion, Demand, Forecast, GpuView, Turn};

use super::{Phase, Run, index, speed};
use crate::cluster::colocation;
use crate::cluster::contention::{self, Sharer};
use crate::cluster::job::{Class, WHOLE};
use crate::kernels::chance::Chance;

/// The run as policies may know it.
pub(super) struct Seen<'r, 's> {
    run: &'r Run<'s>,
}

impl<'r, 's> Seen<'r, 's> {
    pub(super) const fn new(run: &'r Run<'s>) -> Self {
        Self { run }
    }

    /// The factor by which a prediction is off, in thousandths.
    fn error(&self, job: JobId, slices: u8) -> u64 {
        let most = u64::from(self.run.setup.overheads.prediction_error);
        if most == 0 {
            return 1_000;
        }
        let key = job.number().wrapping_mul(16).wrapping_add(u64::from(slices));
        let mut chance = Chance::new(self.run.setup.seed ^ key.wrapping_mul(0x9E37_79B9));
        (1_000 + chance.below(2 * most + 1)).saturating_sub(most).max(1)
    }
}

impl Forecast for Seen<'_, '_> {
    fn time(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis> {
        if self.run.tasks.get(index(job))?.asked > profile.memory {
            return None;
        }
        let ms = self.run.alone.time(index(job), &gpu.model, profile.compute_slices)?;
        Some(Millis::new((ms * self.error(job, profile.compute_slices) / 1_000).max(1)))
    }

    fn is_measured(&self, _: JobId, _: &GpuView, _: &Profile) -> bool {
        true
    }

    fn done(&self, job: JobId) -> Option<u32> {
        let task = self.run.tasks.get(index(job))?;
        let mut left = task.left;
        if let Some(spot) = task.spot.filter(|spot| spot.phase == Phase::Works) {
            left =
                left.saturating_sub(super::seat::progress(self.run.now - spot.settled, spot.pace));
        }
        u32::try_from((WHOLE - left) / 1_000_000).ok()
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        self.run.tasks.get(index(job))?.spot.map(|spot| Millis::new(spot.since))
    }

    fn move_price(&self, job: JobId) -> Option<Millis> {
        let truth = self.run.setup.jobs.get(index(job))?;
        let restore = self.run.setup.overheads.move_ms(truth)?;
        Some(Millis::new(restore.saturating_add(truth.step_ms())))
    }

    fn deadline(&self, job: JobId) -> Option<Millis> {
        self.run.setup.jobs.get(index(job))?.deadline_ms.map(Millis::new)
    }

    fn online(&self, job: JobId) -> bool {
        self.run.setup.jobs.get(index(job)).is_some_and(|job| job.class == Class::Online)
    }

    fn demand(&self, job: JobId) -> Option<Demand> {
        self.run.setup.jobs.get(index(job))?.demand
    }

    /// The forest says so of jobs whose demands are known (MMK, §III-A); of others the rule that
    /// stands in for it.
    fn time_beside(
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
                let online = truth.class == Class::Online;
                let beside = colocation::beside(own, sm.get(), &others, (slices, whole), online);
                1_000_000 / self.run.told.borrow_mut().speed(&beside).max(1)
            }
            _ => {
                let others = others.iter().map(|(other, sm)| (known(*other), sm.get()));
                let all = [(truth.demand, sm.get())].into_iter().chain(others);
                let all: Vec<Sharer> = all.map(|(demand, cap)| Sharer { demand, cap }).collect();
                contention::under_mps(&all, slices, whole).first().copied()?
            }
        };
        let error = self.error(job, slices);
        let ms = u128::from(base) * u128::from(slowed) / 1_000 * u128::from(error) / 1_000;
        Some(Millis::new(u64::try_from(ms).ok()?.max(1)))
    }

    // What company costs is asked of pairs and of crowds by `time_beside`: nobody joins by `together`.
    // Nobody here has to be stopped for lasting too long.
    tessera_placement::knows_no!(together, limit);

    /// The model says so of jobs whose parts of busy time are known, or the queue where it is asked.
    fn time_in_turns(
        &self,
        job: JobId,
        priority: Priority,
        others: &[(JobId, Priority)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let alone = self.time(job, gpu, profile)?;
        let all = [(job, priority)].into_iter().chain(others.iter().copied());
        let turns = all.map(|(job, priority)| {
            self.run.setup.jobs.get(index(job))?.busy?;
            Some(self.run.turn(index(job), priority, &gpu.model, profile.compute_slices))
        });
        let turns: Vec<Turn> = turns.collect::<Option<_>>()?;
        let slowed = self.run.slowed_in_turns(&turns).first().copied()?;
        Some(Millis::new(alone.get().saturating_mul(slowed) / 1_000))
    }

    fn go_on(&self, _: usize) -> bool {
        true
    }

    /// The papers' jobs share with whoever comes; what users allow is the live cluster's matter.
    fn companion(&self, job: JobId) -> Option<Companion> {
        let truth = self.run.setup.jobs.get(index(job))?;
        let task = &self.run.tasks[index(job)];
        Some(Companion { user: truth.user.as_str().into(), memory: task.asked })
    }

    /// Every user has an account with the same part of the cluster.
    fn account(&self, job: JobId) -> Option<Account> {
        let truth = self.run.setup.jobs.get(index(job))?;
        self.run.usage.account(&truth.user, self.run.now)
    }
}
