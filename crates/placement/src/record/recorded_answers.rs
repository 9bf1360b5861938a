//! Answers a policy from a record.

use std::sync::Arc;

use tessera_model::mig::Profile;
use tessera_model::place::PlaceFilter;
use tessera_model::{JobId, Millis};

use super::answers::Answers;
use super::gpu_kind::{GpuKind, number_of};
use crate::facts::{Account, JobFacts, JobTable};
use crate::predictor::{
    Knowledge, Predictor, RunTime, SearchBudget, SharedPart, SpeedBasis, SpeedRange,
};
use crate::preemption::PreemptionPrice;
use crate::view::{GpuView, MpsClient};

/// Returns recorded answers. Answers that were not recorded are unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedAnswers<'a> {
    pub(super) kinds: &'a [GpuKind],
    pub(super) answers: &'a Answers,
}

impl RecordedAnswers<'_> {
    pub(super) fn knowledge(&self) -> Knowledge<'_> {
        Knowledge { jobs: self, predictor: self, budget: self }
    }
}

impl JobTable for RecordedAnswers<'_> {
    fn facts(&self, job: JobId) -> JobFacts {
        self.answers.facts.get(&job).cloned().unwrap_or_default()
    }

    fn place(&self, job: JobId) -> Option<Arc<PlaceFilter>> {
        self.answers.places.get(&job).cloned()?
    }

    fn restricted(&self) -> Vec<JobId> {
        self.answers.places.keys().copied().collect()
    }

    fn unlisted(&self) -> usize {
        self.answers.unlisted
    }

    fn may_preempt(&self, job: JobId) -> bool {
        self.answers.preempting.get(&job).copied().unwrap_or(false)
    }

    fn preemption_price(&self, job: JobId) -> Option<PreemptionPrice> {
        self.answers.preemption_prices.get(&job).copied()?
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.answers.with_usage(self.answers.accounts.get(&job).cloned()?)
    }
}

impl Predictor for RecordedAnswers<'_> {
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        let kind = number_of(self.kinds, gpu)?;
        self.answers.runs.get(&(job, kind, profile.id))?.run()
    }

    fn predict_shared_run(
        &self,
        job: JobId,
        shared: SharedPart<'_>,
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let on = (job, number_of(self.kinds, gpu)?, profile.id);
        match shared {
            SharedPart::Mps { sm, co_runners } => {
                self.answers.mps_runs.get(&(on, sm, co_runners.to_vec())).copied()?
            }
            SharedPart::Kernel { priority, co_runners } => self
                .answers
                .kernel_shared_runs
                .get(&(on, priority, co_runners.to_vec()))
                .copied()?,
        }
    }

    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        basis: SpeedBasis,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        let kind = number_of(self.kinds, gpu)?;
        let key = (kind, profile.map(|profile| profile.id), clients.to_vec());
        match basis {
            SpeedBasis::SamePercentage => {
                let speeds = self.answers.speeds.get(&key)?.as_ref()?;
                Some(speeds.iter().copied().map(SpeedRange::without_interval).collect())
            }
            SpeedBasis::WholeInstance => self.answers.shared_speeds.get(&key).cloned()?,
        }
    }

    fn predict_rest_alone(
        &self,
        job: JobId,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Millis> {
        let kind = number_of(self.kinds, gpu)?;
        let key = (job, kind, profile.map(|profile| profile.id));
        self.answers.rests_alone.get(&key).copied()?
    }
}

impl SearchBudget for RecordedAnswers<'_> {
    fn allows(&self, searches: usize) -> bool {
        self.answers.budget.get(&searches).is_none_or(|allowed| *allowed)
    }
}
