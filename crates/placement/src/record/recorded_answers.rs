//! Answers a policy from a record.

use tessera_model::mig::Profile;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};

use super::answers::Answers;
use super::gpu_kind::{GpuKind, number_of};
use crate::facts::{Account, JobFacts, JobTable};
use crate::predictor::{Knowledge, Predictor, RunTime, SearchBudget, SpeedRange};
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

    fn account(&self, job: JobId) -> Option<Account> {
        self.answers.with_usage(self.answers.accounts.get(&job).cloned()?)
    }
}

impl Predictor for RecordedAnswers<'_> {
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        let kind = number_of(self.kinds, gpu)?;
        self.answers.runs.get(&(job, kind, profile.id))?.run()
    }

    fn predict_mps_run(
        &self,
        job: JobId,
        sm: SmPercent,
        co_runners: &[(JobId, SmPercent)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let kind = number_of(self.kinds, gpu)?;
        let key = ((job, kind, profile.id), sm, co_runners.to_vec());
        self.answers.mps_runs.get(&key).copied()?
    }

    fn predict_kernel_shared_run(
        &self,
        job: JobId,
        priority: Priority,
        co_runners: &[(JobId, Priority)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let kind = number_of(self.kinds, gpu)?;
        let key = ((job, kind, profile.id), priority, co_runners.to_vec());
        self.answers.kernel_shared_runs.get(&key).copied()?
    }

    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<u64>> {
        let kind = number_of(self.kinds, gpu)?;
        let key = (kind, profile.map(|profile| profile.id), clients.to_vec());
        self.answers.speeds.get(&key).cloned()?
    }

    fn predict_shared_speeds(
        &self,
        clients: &[MpsClient],
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        let kind = number_of(self.kinds, gpu)?;
        let key = (kind, profile.map(|profile| profile.id), clients.to_vec());
        self.answers.shared_speeds.get(&key).cloned()?
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
