//! What policies may know about jobs, from the cluster state.

use crate::memory_requests::memory_needed;
use crate::migration::checks::is_live_movable;
use crate::predictions::TaskFacts;
use crate::preemption::price_of;
use crate::state::ClusterState;
use crate::state::attempts::LiveAttempt;
use crate::state::inventory::kind;
use crate::state::predictions::part_of;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tessera_model::mig::Profile;
use tessera_model::place::PlaceFilter;
use tessera_model::spec::GpuRequest;
use tessera_model::{AttemptId, Bytes, JobId, Millis};
use tessera_placement::migration_cooldown::has_rested;
use tessera_placement::preemption::PreemptionPrice;
use tessera_placement::{
    Account, Basis, GpuView, JobFacts, JobTable, Knowledge, MpsClient, Predictor, RunTime,
    SearchBudget, SpeedBasis, SpeedRange, could_hold,
};

/// What policies may know about jobs.
#[derive(Debug)]
pub(crate) struct ClusterForecast<'c> {
    pub(crate) cluster: &'c ClusterState,
    pub(crate) now: Millis,
    /// A cache by user: thousands of jobs belong to a few users.
    pub(crate) accounts: RefCell<BTreeMap<Arc<str>, Account>>,
    /// A cache of jobs: a round reads each running job many times.
    pub(crate) jobs: RefCell<HashMap<JobId, KnownJob<'c>>>,
    /// A cache of their facts, which need several predictions and don't change within a round.
    pub(crate) facts: RefCell<HashMap<JobId, JobFacts>>,
    /// How many jobs wait that the round does not list.
    pub(crate) unlisted: usize,
    /// When the search for better placements began, by the stopwatch.
    pub(crate) improves: Cell<Option<Duration>>,
}

/// A job that waits or runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownJob<'c> {
    pub(crate) facts: &'c TaskFacts,
    pub(crate) live: Option<&'c LiveAttempt>,
    /// Its running attempt.
    attempt: Option<AttemptId>,
    pub(crate) done: u32,
    pub(crate) gpu_request: &'c GpuRequest,
    pub(crate) user: &'c Arc<str>,
    /// What the first kernel of an earlier attempt needed, if it waits.
    multiprocessors: Option<u16>,
}

impl KnownJob<'_> {
    fn since(&self) -> Option<Millis> {
        self.live.and_then(|live| live.began)
    }
}

impl JobTable for ClusterForecast<'_> {
    /// A job shares a slice only if its user requests or allows it, and the search makes no pairs.
    /// So demands and co-runners are left empty.
    fn facts(&self, job: JobId) -> JobFacts {
        if let Some(known) = self.facts.borrow().get(&job) {
            return known.clone();
        }
        let facts = self.known(job).map(|known| self.facts_of(&known)).unwrap_or_default();
        self.facts.borrow_mut().insert(job, facts.clone());
        facts
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        self.known(job)?.since()
    }

    fn migration_price(&self, job: JobId) -> Option<Millis> {
        self.price_of_migration(&self.known(job)?)
    }

    fn place(&self, job: JobId) -> Option<Arc<PlaceFilter>> {
        let place = match self.cluster.attempts.of_job(job) {
            Some(live) => &live.facts.rules.place,
            None => &self.known(job)?.facts.rules.place,
        };
        (!place.is_open()).then(|| Arc::new(place.clone()))
    }

    fn restricted(&self) -> Vec<JobId> {
        let is_restricted =
            |live: &&LiveAttempt| live.facts.movable && !live.facts.rules.place.is_open();
        self.cluster.attempts.live.values().filter(is_restricted).map(|live| live.job).collect()
    }

    fn unlisted(&self) -> usize {
        self.unlisted
    }

    fn may_preempt(&self, job: JobId) -> bool {
        self.cluster.may_preempt(job, self.now)
    }

    fn preemption_price(&self, job: JobId) -> Option<PreemptionPrice> {
        price_of(self.cluster, job, self.now)
    }

    fn account(&self, job: JobId) -> Option<Account> {
        let (cluster, user) = (self.cluster, self.known(job)?.user);
        if let Some(known) = self.accounts.borrow().get(user) {
            return Some(known.clone());
        }
        let had = |user: &str| {
            cluster.accounting.ledger.recent_usage(user, &cluster.accounting.accounts, self.now)
        };
        let account = cluster.accounting.accounts.account(user, had);
        self.accounts.borrow_mut().insert(Arc::clone(user), account.clone());
        Some(account)
    }
}

impl Predictor for ClusterForecast<'_> {
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        let known = self.known(job)?;
        let mig = gpu.mig.as_deref()?;
        if !could_hold(known.gpu_request, mig, profile) {
            return None;
        }
        let enough = memory_needed(&self.cluster.predictions, &self.cluster.inventory, known.facts);
        if enough.is_some_and(|need| need > profile.memory) {
            return None;
        }
        let whole =
            self.cluster.predictions.predict(known.facts, &kind(&gpu.model, mig, profile)?)?;
        // A time limit bounds the run time, and is the same for all slices.
        let expected = (whole.basis != Basis::TimeLimit).then_some(whole.expected)?;
        // A job that takes longer than expected would also do so on another slice.
        let longer = |live: &LiveAttempt| {
            let (here, lasted) = self.cluster.predictions.course(live, live.ran(self.now))?;
            let all = lasted.plus(here.after(lasted).expected);
            Some(part_of(expected, all.get(), here.expected.get()))
        };
        let time = known.live.and_then(longer).unwrap_or(expected).max(Millis::new(1));
        // A running job fills no reserved slot, so that only its expected time counts.
        let latest = if known.live.is_some() { time } else { whole.high.max(time) };
        Some(RunTime { time, latest, is_measured: whole.basis.is_measured() })
    }

    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        basis: SpeedBasis,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        self.cluster.predictions.predict_speeds(clients, basis, gpu, profile)
    }

    fn predict_rest_alone(
        &self,
        job: JobId,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Millis> {
        let known = self.known(job).filter(|known| known.live.is_none())?;
        let on = (gpu, profile);
        self.cluster.predictions.predict_rest_alone(job, known.facts, known.done, on)
    }
}

impl SearchBudget for ClusterForecast<'_> {
    fn allows(&self, _: usize) -> bool {
        self.has_searched_for() < self.cluster.planner.improve_for
    }

    fn allows_plan(&self, _: usize, shortest: Millis) -> bool {
        self.has_searched_for() < self.cluster.planner.plan_for(shortest)
    }
}

impl<'c> ClusterForecast<'c> {
    /// Returns the time since the round began to improve placements: now, if it has not.
    fn has_searched_for(&self) -> Duration {
        let now = self.cluster.planner.stopwatch.read();
        let began = self.improves.get().unwrap_or(now);
        self.improves.set(Some(began));
        now.saturating_sub(began)
    }

    pub(crate) fn new(cluster: &'c ClusterState, now: Millis) -> Self {
        Self {
            cluster,
            now,
            accounts: RefCell::default(),
            jobs: RefCell::default(),
            facts: RefCell::default(),
            unlisted: 0,
            improves: Cell::default(),
        }
    }

    fn facts_of(&self, known: &KnownJob<'_>) -> JobFacts {
        let facts = known.facts;
        JobFacts {
            done: self.done(known),
            since: known.since(),
            submitted: known.live.map(|live| live.submitted),
            limit: facts.limit.map(|limit| limit.plus(facts.grace)),
            migration_price: self.price_of_migration(known),
            resting: self.rests(known),
            memory: self.least_memory(known),
            multiprocessors: known.multiprocessors,
            deadline: facts.deadline.map(|at| self.cluster.clock.on_boot_clock(at)),
            online: facts.online,
            ..JobFacts::default()
        }
    }

    /// Begins another round with its own time for better placements.
    pub(crate) fn begin_round(&self) {
        self.improves.set(None);
    }

    /// Returns everything that a policy may know about jobs.
    pub(crate) fn knowledge(&self) -> Knowledge<'_> {
        Knowledge::of(self).within(self)
    }

    /// Returns the least memory of a slice that a job may be moved to; `None` for a job that
    /// requests an exact size. A job of unknown need keeps at least its memory.
    fn least_memory(&self, known: &KnownJob<'_>) -> Option<Bytes> {
        let (predictions, inventory) = (&self.cluster.predictions, &self.cluster.inventory);
        let estimate = || memory_needed(predictions, inventory, known.facts);
        match known.gpu_request {
            GpuRequest::Memory(least) => Some(estimate().unwrap_or_default().max(*least)),
            GpuRequest::Unknown => estimate().or_else(|| {
                let live = known.live?;
                let mig = inventory.gpus.get(&live.gpu)?.mig.as_deref()?;
                Some(mig.geometry.profile(live.slot?.profile)?.memory)
            }),
            GpuRequest::Profile(_)
            | GpuRequest::Compute(_)
            | GpuRequest::Whole
            | GpuRequest::Unpartitioned => None,
        }
    }

    fn done(&self, known: &KnownJob<'_>) -> Option<u32> {
        if known.facts.task.is_empty() {
            return None;
        }
        match known.live.map(|live| (live, live.began)) {
            Some((live, Some(began))) => {
                Some(self.cluster.predictions.progress(live, self.now.minus(began)))
            }
            Some((_, None)) | None => Some(known.done),
        }
    }

    fn price_of_migration(&self, known: &KnownJob<'_>) -> Option<Millis> {
        let (Some(live), Some(attempt)) = (known.live, known.attempt) else {
            // The work before the checkpoint is not lost.
            return known.facts.movable.then_some(Millis::ZERO);
        };
        (self.has_rested(live)
            && is_live_movable(live, &self.cluster.migrations, attempt, self.now))
        .then(|| self.cluster.predictions.migration_cost(live))
    }

    fn has_rested(&self, live: &LiveAttempt) -> bool {
        has_rested(live.began, self.cluster.migrations.cooldown, self.now)
    }

    /// Returns whether only the migration cooldown keeps a job where it is.
    fn rests(&self, known: &KnownJob<'_>) -> bool {
        let could_move = |live: &LiveAttempt| {
            known.facts.movable
                && live.share.is_none()
                && live.gang.is_none()
                && live.slot.is_some()
        };
        known.live.is_some_and(|live| !self.has_rested(live) && could_move(live))
    }

    pub(crate) fn known(&self, job: JobId) -> Option<KnownJob<'c>> {
        if let Some(known) = self.jobs.borrow().get(&job) {
            return Some(*known);
        }
        let known = self.find(job)?;
        self.jobs.borrow_mut().insert(job, known);
        Some(known)
    }

    fn find(&self, job: JobId) -> Option<KnownJob<'c>> {
        if let Some(attempt) = self.cluster.attempts.by_job.get(&job) {
            let live = self.cluster.attempts.live.get(attempt)?;
            let (facts, gpu_request) = (&*live.facts, &live.request);
            return Some(KnownJob {
                facts,
                live: Some(live),
                attempt: Some(*attempt),
                done: live.done,
                gpu_request,
                user: &live.user,
                multiprocessors: None,
            });
        }
        let waiting = self.cluster.queue.queued(job)?;
        let (facts, gpu_request) = (&*waiting.facts, &waiting.job.gpu);
        let user = &waiting.job.user;
        let (done, multiprocessors) = (waiting.done, waiting.own.multiprocessors);
        Some(KnownJob {
            facts,
            live: None,
            attempt: None,
            done,
            gpu_request,
            user,
            multiprocessors,
        })
    }
}
