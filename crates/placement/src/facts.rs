//! Facts about jobs, apart from their requests: plain data, which the caller keeps in a table.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::place::PlaceFilter;
use tessera_model::{Bytes, JobId, Millis};

use crate::preemption::PreemptionPrice;

/// How much of a whole GPU a job keeps busy when it runs alone on it, in thousandths.
///
/// Source: co-execution study, calibration table (average SM and memory utilisation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Demand {
    /// Streaming multiprocessors.
    pub sm: u16,
    /// Memory bandwidth.
    pub memory: u16,
}

/// The user and the memory of a job that may share a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoRunner {
    /// The job's user. Under MPS a fault of one job stops all co-runners, so users are never mixed.
    #[serde(with = "crate::view::shared_text")]
    pub user: Arc<str>,
    /// Memory that must be free for it.
    pub memory: Bytes,
}

/// The account that a job is charged to: its recent usage, and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Jobs with the same account name are charged to one account.
    #[serde(with = "crate::view::shared_text")]
    pub name: Arc<str>,
    /// Its shares, relative to those of the other accounts.
    pub shares: u32,
    /// Recent usage: time on compute slices, weighted by age and summed over slices.
    pub used: Millis,
    /// Most compute slices that its jobs may hold at once, if that is limited.
    pub quota: Option<u32>,
    /// The limit of the job's user within the account, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<SliceLimit>,
}

/// Most compute slices that the jobs of one user or account may hold at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceLimit {
    /// The user or account. Jobs under limits of the same name count together.
    #[serde(with = "crate::view::shared_text")]
    pub name: Arc<str>,
    /// Compute slices.
    pub slices: u32,
}

impl Account {
    /// Returns its recent usage for each of its shares, in milliseconds of a compute slice. Without shares it counts as one.
    pub fn usage_per_share(&self) -> f64 {
        self.used.duration().as_secs_f64() * 1_000.0 / f64::from(self.shares.max(1))
    }

    /// Returns every limit on what its jobs hold at once.
    pub fn limits(&self) -> impl Iterator<Item = SliceLimit> {
        let own = self.quota.map(|slices| SliceLimit { name: Arc::clone(&self.name), slices });
        own.into_iter().chain(self.member.clone())
    }
}

/// The facts about one job. In the default nothing is known about the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFacts {
    /// Finished part of its work, in millionths; `None` where nothing predicts its run time.
    pub done: Option<u32>,
    /// When its current attempt began; `None` if it doesn't run.
    pub since: Option<Millis>,
    /// When it was submitted, where that is known.
    pub submitted: Option<Millis>,
    /// Longest time from the start of an attempt to its end: the user's time limit plus the time
    /// that stopping takes.
    pub limit: Option<Millis>,
    /// Time that is lost if the job is stopped and continues elsewhere; `None` if it would lose its
    /// work.
    pub migration_price: Option<Millis>,
    /// Whether it may be migrated later, and rests now after its start ([`crate::migration_cooldown`]). Until then it has
    /// no price.
    pub resting: bool,
    /// Least memory of a slice that it could be moved to, where that is known.
    pub memory: Option<Bytes>,
    /// With so many multiprocessors its first kernel took as few steps as on a whole GPU, in an earlier attempt.
    pub multiprocessors: Option<u16>,
    /// When the job should have ended, on the view's clock.
    pub deadline: Option<Millis>,
    /// Whether it serves requests (MMK's *online* class).
    pub online: bool,
    /// How busy it keeps a GPU alone.
    pub demand: Option<Demand>,
    /// Its user and memory if it may share a slice; `None` if it needs its own slice.
    pub co_runner: Option<CoRunner>,
}

/// Read access to the facts about jobs.
///
/// A trait and not a map: a round of a controller reads the facts of some of its 100,000 jobs, and
/// progress and migration costs change with time. So facts are computed when they are read, from
/// tables that the caller has anyway. [`KnownJobs`] is the plain table for callers that have all
/// facts in memory.
///
/// Within one round, a job's facts must not change.
pub trait JobTable {
    /// Returns the facts about a job.
    fn facts(&self, job: JobId) -> JobFacts;

    /// Returns when a job's current attempt began, as in its facts. A search reads only this fact
    /// of all running jobs, and computing the others takes longer.
    fn since(&self, job: JobId) -> Option<Millis> {
        self.facts(job).since
    }

    /// Returns the time that is lost if a job is migrated, as in its facts. It is read for all
    /// running jobs.
    fn migration_price(&self, job: JobId) -> Option<Millis> {
        self.facts(job).migration_price
    }

    /// Returns the only nodes and models of GPUs on which a job may run, if its user restricted it. Of waiting jobs the
    /// queue has the same.
    fn place(&self, _job: JobId) -> Option<Arc<PlaceFilter>> {
        None
    }

    /// Returns the running jobs that have such a restriction and could be moved, now or later.
    fn restricted(&self) -> Vec<JobId> {
        Vec::new()
    }

    /// Returns how many more jobs wait than the round lists. Each equals a listed one ahead of it, and could not start
    /// in this round, because so many of those are listed. They count as demand.
    fn unlisted(&self) -> usize {
        0
    }

    /// Returns whether a waiting job of the class `online` may send others back to the queue now. Policies request
    /// it of no other jobs.
    fn may_preempt(&self, _job: JobId) -> bool {
        false
    }

    /// Returns what it costs to send a running job back to the queue; `None` if it must not be.
    fn preemption_price(&self, _job: JobId) -> Option<PreemptionPrice> {
        None
    }

    /// Returns for how long a job has had placements on GPUs of a model so far, over all its attempts. It is zero
    /// where that is not kept: only the simulator keeps it, for policies that weigh what jobs have received.
    fn received(&self, _job: JobId, _model: &str) -> Millis {
        Millis::ZERO
    }

    /// Returns the account of a job, which is the same for all jobs of a user. `None` where usage
    /// is not kept, so that all jobs are equal. It is separate from the facts, since it is read for
    /// only a few jobs of each user.
    fn account(&self, job: JobId) -> Option<Account>;
}

/// A table of facts in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownJobs {
    /// By job.
    pub facts: BTreeMap<JobId, JobFacts>,
    /// The account of each job, where usage is kept.
    pub accounts: BTreeMap<JobId, Account>,
    /// What it costs to send running jobs back to the queue, for those that may be. Online jobs may do that if
    /// there is any.
    pub preemption_prices: BTreeMap<JobId, PreemptionPrice>,
    /// The restrictions of running jobs to nodes and models.
    pub places: BTreeMap<JobId, Arc<PlaceFilter>>,
}

impl JobTable for KnownJobs {
    fn facts(&self, job: JobId) -> JobFacts {
        self.facts.get(&job).cloned().unwrap_or_default()
    }

    fn place(&self, job: JobId) -> Option<Arc<PlaceFilter>> {
        self.places.get(&job).cloned()
    }

    fn restricted(&self) -> Vec<JobId> {
        self.places.keys().copied().collect()
    }

    fn may_preempt(&self, _: JobId) -> bool {
        !self.preemption_prices.is_empty()
    }

    fn preemption_price(&self, job: JobId) -> Option<PreemptionPrice> {
        self.preemption_prices.get(&job).copied()
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.accounts.get(&job).cloned()
    }
}
