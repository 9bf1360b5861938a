//! Jobs that may run only on some nodes, or on some models of GPUs.
//!
//! None of the papers that the policies follow restricts jobs. All jobs of a round have one order, count towards
//! the same quotas, and see each other's starts and reservations, wherever they may run. So restrictions do not
//! divide the round. They divide the GPUs into more kinds ([`ClusterView::with_parts`]), and a job has no run time on
//! those that its user excluded ([`PlacePredictor`]). A running job is moved to an allowed GPU only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_model::mig::Profile;
use tessera_model::place::PlaceFilter;
use tessera_model::{JobId, Millis};

use crate::facts::{Account, JobFacts, JobTable};
use crate::fair::OrderedJob;
use crate::policy::Policy;
use crate::predictor::{Predictor, RunTime, SharedPart, SpeedBasis, SpeedRange};
use crate::preemption::PreemptionPrice;
use crate::view::{ClusterView, GpuView, InstanceState, MpsClient};

/// The most kinds into which restrictions may divide GPUs. With more, each kind of restriction is decided separately.
/// Chosen to limit the duration of a round: a job's time is predicted for each kind.
const KINDS_MAX: usize = 32;

/// The restrictions of the jobs that a round may place or move, by job.
#[derive(Debug, Default)]
pub(crate) struct Places {
    of: BTreeMap<JobId, Arc<PlaceFilter>>,
}

impl Places {
    /// Collects the restrictions of waiting jobs, and of running ones if the policy may move them.
    pub(crate) fn of(
        policy: &dyn Policy,
        cluster: &ClusterView,
        jobs: &dyn JobTable,
        waiting: &[OrderedJob<'_>],
    ) -> Self {
        let waiting = waiting.iter().filter_map(|OrderedJob { job, .. }| {
            job.place.as_ref().map(|place| (job.id, Arc::clone(place)))
        });
        let mut of: BTreeMap<_, _> = waiting.collect();
        let running: BTreeSet<JobId> = match policy.moves() {
            true => jobs.restricted().into_iter().collect(),
            false => BTreeSet::new(),
        };
        if running.is_empty() {
            return Self { of };
        }
        let alone = cluster.gpus.iter().flat_map(|gpu| {
            let jobs = gpu.instances.iter().filter_map(|instance| match instance.state {
                InstanceState::Taken { job } => Some(job),
                _ => None,
            });
            jobs.filter(|job| running.contains(job)).map(move |job| (gpu, job))
        });
        // A job that runs elsewhere than its user lets it is not moved for that reason.
        of.extend(alone.filter_map(|(gpu, job)| {
            let place = jobs.place(job)?;
            place.allows(&gpu.node, &gpu.model).then_some((job, place))
        }));
        Self { of }
    }

    /// Returns whether no job is restricted.
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Returns the cluster with GPUs of different kinds where the restrictions differ; `None` if these are too many.
    pub(crate) fn divide(&self, cluster: &ClusterView) -> Option<ClusterView> {
        let divided = cluster.with_parts(self.of.values().map(|place| &**place));
        (divided.gpu_kinds().first.len() <= KINDS_MAX).then_some(divided)
    }

    fn allows(&self, job: JobId, gpu: &GpuView) -> bool {
        self.of.get(&job).is_none_or(|place| place.allows(&gpu.node, &gpu.model))
    }
}

/// Predicts nothing for a job on a GPU on which it may not run.
#[derive(Clone, Copy)]
pub(crate) struct PlacePredictor<'k> {
    pub(crate) predictor: &'k dyn Predictor,
    pub(crate) places: &'k Places,
}

impl Predictor for PlacePredictor<'_> {
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        if !self.places.allows(job, gpu) {
            return None;
        }
        self.predictor.predict_run(job, gpu, profile)
    }

    fn predict_shared_run(
        &self,
        job: JobId,
        shared: SharedPart<'_>,
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        if !self.places.allows(job, gpu) {
            return None;
        }
        self.predictor.predict_shared_run(job, shared, gpu, profile)
    }

    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        basis: SpeedBasis,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        self.predictor.predict_speeds(clients, basis, gpu, profile)
    }

    fn predict_rest_alone(
        &self,
        job: JobId,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Millis> {
        if !self.places.allows(job, gpu) {
            return None;
        }
        self.predictor.predict_rest_alone(job, gpu, profile)
    }
}

/// Facts for a round that decides each kind of restriction separately. Restricted jobs that run are not moved: the
/// decisions of another kind would not consider where they may run.
#[derive(Clone, Copy)]
pub(crate) struct UnmovedJobs<'k> {
    pub(crate) jobs: &'k dyn JobTable,
    pub(crate) places: &'k Places,
}

impl JobTable for UnmovedJobs<'_> {
    fn facts(&self, job: JobId) -> JobFacts {
        let facts = self.jobs.facts(job);
        match facts.since.is_some() && self.places.of.contains_key(&job) {
            true => JobFacts { migration_price: None, resting: false, ..facts },
            false => facts,
        }
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        self.jobs.since(job)
    }

    fn migration_price(&self, job: JobId) -> Option<Millis> {
        let moves = !self.places.of.contains_key(&job) || self.jobs.since(job).is_none();
        moves.then(|| self.jobs.migration_price(job))?
    }

    fn place(&self, job: JobId) -> Option<Arc<PlaceFilter>> {
        self.jobs.place(job)
    }

    fn restricted(&self) -> Vec<JobId> {
        self.jobs.restricted()
    }

    fn unlisted(&self) -> usize {
        self.jobs.unlisted()
    }

    fn may_preempt(&self, job: JobId) -> bool {
        self.jobs.may_preempt(job)
    }

    fn preemption_price(&self, job: JobId) -> Option<PreemptionPrice> {
        self.jobs.preemption_price(job)
    }

    fn received(&self, job: JobId, model: &str) -> Millis {
        self.jobs.received(job, model)
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.jobs.account(job)
    }
}
