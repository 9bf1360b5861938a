//! Records the answers that a policy gets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::mig::Profile;
use tessera_model::place::PlaceFilter;
use tessera_model::{JobId, Millis};

use super::answers::{Answers, RecordedRun};
use super::gpu_kind::{GpuKind, number_of};
use crate::facts::{Account, JobFacts, JobTable};
use crate::predictor::{
    Knowledge, Predictor, RunTime, SearchBudget, SharedPart, SpeedBasis, SpeedRange,
};
use crate::preemption::PreemptionPrice;
use crate::view::{GpuView, MpsClient};

/// Forwards questions and keeps the answers. Each question is forwarded once.
pub struct AnswerRecorder<'k> {
    knowledge: Knowledge<'k>,
    kinds: Vec<GpuKind>,
    answers: RefCell<Answers>,
}

impl std::fmt::Debug for AnswerRecorder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnswerRecorder").field("answers", &self.answers).finish_non_exhaustive()
    }
}

impl<'k> AnswerRecorder<'k> {
    pub(super) fn new(knowledge: Knowledge<'k>, kinds: Vec<GpuKind>) -> Self {
        Self { knowledge, kinds, answers: RefCell::default() }
    }

    /// Returns the knowledge that is passed to a policy, which records its questions.
    pub fn knowledge(&self) -> Knowledge<'_> {
        Knowledge { jobs: self, predictor: self, budget: self }
    }

    pub(super) fn into_parts(self) -> (Vec<GpuKind>, Answers) {
        (self.kinds, self.answers.into_inner())
    }

    fn answer_once<K: Ord, V: Clone>(
        &self,
        of: impl Fn(&mut Answers) -> &mut BTreeMap<K, V>,
        key: K,
        predict: impl FnOnce() -> V,
    ) -> V {
        if let Some(known) = of(&mut self.answers.borrow_mut()).get(&key) {
            return known.clone();
        }
        let answer = predict();
        of(&mut self.answers.borrow_mut()).insert(key, answer.clone());
        answer
    }
}

impl JobTable for AnswerRecorder<'_> {
    fn facts(&self, job: JobId) -> JobFacts {
        self.answer_once(|answers| &mut answers.facts, job, || self.knowledge.jobs.facts(job))
    }

    fn place(&self, job: JobId) -> Option<Arc<PlaceFilter>> {
        // Only restrictions are recorded: few jobs have one.
        let place = self.knowledge.jobs.place(job)?;
        self.answers.borrow_mut().places.insert(job, Some(Arc::clone(&place)));
        Some(place)
    }

    fn restricted(&self) -> Vec<JobId> {
        let restricted = self.knowledge.jobs.restricted();
        for job in &restricted {
            self.place(*job);
        }
        restricted
    }

    fn unlisted(&self) -> usize {
        let unlisted = self.knowledge.jobs.unlisted();
        self.answers.borrow_mut().unlisted = unlisted;
        unlisted
    }

    fn may_preempt(&self, job: JobId) -> bool {
        self.answer_once(
            |answers| &mut answers.preempting,
            job,
            || self.knowledge.jobs.may_preempt(job),
        )
    }

    fn preemption_price(&self, job: JobId) -> Option<PreemptionPrice> {
        self.answer_once(
            |answers| &mut answers.preemption_prices,
            job,
            || self.knowledge.jobs.preemption_price(job),
        )
    }

    fn account(&self, job: JobId) -> Option<Account> {
        let known = self.answers.borrow().accounts.get(&job).cloned();
        if let Some(known) = known {
            return self.answers.borrow().with_usage(known);
        }
        let account = self.knowledge.jobs.account(job);
        let mut answers = self.answers.borrow_mut();
        if let Some(account) = &account {
            answers.usage.entry(account.name.to_string()).or_insert(account.used);
        }
        let bare = account.map(|account| Account { used: Millis::ZERO, ..account });
        answers.accounts.insert(job, bare.clone());
        answers.with_usage(bare)
    }
}

// A GPU without a number is not in the recorded view: no record can name it.
impl Predictor for AnswerRecorder<'_> {
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        let predict = || self.knowledge.predictor.predict_run(job, gpu, profile);
        let Some(kind) = number_of(&self.kinds, gpu) else { return predict() };
        let recorded = || RecordedRun::of(predict());
        self.answer_once(|answers| &mut answers.runs, (job, kind, profile.id), recorded).run()
    }

    fn predict_shared_run(
        &self,
        job: JobId,
        shared: SharedPart<'_>,
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let predict = || self.knowledge.predictor.predict_shared_run(job, shared, gpu, profile);
        let Some(kind) = number_of(&self.kinds, gpu) else { return predict() };
        let on = (job, kind, profile.id);
        match shared {
            SharedPart::Mps { sm, co_runners } => {
                let key = (on, sm, co_runners.to_vec());
                self.answer_once(|answers| &mut answers.mps_runs, key, predict)
            }
            SharedPart::Kernel { priority, co_runners } => {
                let key = (on, priority, co_runners.to_vec());
                self.answer_once(|answers| &mut answers.kernel_shared_runs, key, predict)
            }
        }
    }

    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        basis: SpeedBasis,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        let predict = || self.knowledge.predictor.predict_speeds(clients, basis, gpu, profile);
        let Some(kind) = number_of(&self.kinds, gpu) else { return predict() };
        let key = (kind, profile.map(|profile| profile.id), clients.to_vec());
        match basis {
            SpeedBasis::SamePercentage => {
                // A record keeps no interval of these.
                let expected =
                    || Some(predict()?.into_iter().map(|speed| speed.expected).collect());
                let speeds = self.answer_once(|answers| &mut answers.speeds, key, expected)?;
                Some(speeds.into_iter().map(SpeedRange::without_interval).collect())
            }
            SpeedBasis::WholeInstance => {
                self.answer_once(|answers| &mut answers.shared_speeds, key, predict)
            }
        }
    }

    fn predict_rest_alone(
        &self,
        job: JobId,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Millis> {
        let predict = || self.knowledge.predictor.predict_rest_alone(job, gpu, profile);
        let Some(kind) = number_of(&self.kinds, gpu) else { return predict() };
        let key = (job, kind, profile.map(|profile| profile.id));
        self.answer_once(|answers| &mut answers.rests_alone, key, predict)
    }
}

impl SearchBudget for AnswerRecorder<'_> {
    fn allows(&self, searches: usize) -> bool {
        let predict = || self.knowledge.budget.allows(searches);
        self.answer_once(|answers| &mut answers.budget, searches, predict)
    }

    fn allows_plan(&self, candidates: usize, shortest: Millis) -> bool {
        let predict = || self.knowledge.budget.allows_plan(candidates, shortest);
        self.answer_once(|answers| &mut answers.budget, candidates, predict)
    }
}
