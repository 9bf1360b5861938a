//! Reads of the store, as answers of the API.
//!
//! Each runs in its own task on the runtime that owns the connections. A pooled connection belongs
//! to the reactor that opened it. A request that is dropped must not leave a connection in the middle of
//! a statement.

mod attempts;
mod audit;
mod cluster_events;
mod counts;
mod decisions;
mod dependencies;
mod events;
mod jobs;
mod kernel_views;
mod layout_plans;
mod memory;
mod numbers;
mod page;
mod past_jobs;
mod predictions;
mod records;
mod report;
mod rounds;
mod targets;

use std::collections::{BTreeMap, HashSet};
use std::future::Future;

use sqlx::{PgPool, Postgres, Transaction};
use tessera_api_types::{
    AttemptMemoryView, AuditPage, ClusterEvents, DecisionPage, DecisionView, JobCounts, JobDetail,
    JobEvents, JobPage, JobRecords, JobView, KernelTasks, LayoutPlan, LayoutPlans,
    MemoryPredictionView, PastJobs, PredictionReport, PredictionView, RecordedRounds,
    TaskEfficiency, TaskKernels,
};
use tessera_model::dependency::JobRange;
use tessera_model::share::SharingMode;
use tessera_model::sizing::SizeSource;
use tessera_model::{Bytes, DecisionId, GpuId, JobId, JobRef, Millis, PlanId};
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

pub use self::attempts::LogSource;
pub(crate) use self::decisions::candidate_view;
pub use self::dependencies::DependencyOrigin;
pub(crate) use self::memory::{band_view, growth_view, points_of};
pub(crate) use self::page::parse_name;
pub use self::page::{Cursor, JobQuery, PageSize};
pub use self::past_jobs::PastQuery;
pub(crate) use self::predictions::{memory_view, prediction_view};
pub use self::records::RecordQuery;
pub use self::report::{ReportRow, ReportSpan};
pub use self::rounds::From as RoundsFrom;
pub use self::targets::{SubmissionShape, Targets};
use super::StoreError;
use crate::principal::JobScope;
use tessera_control::answers::{ModelStatus, WaitReasonRun};

/// The transaction of one read: it sees one snapshot, and can change nothing.
///
/// Every read is a look-up by an index, whatever its parameters: planning it once is enough, and
/// no read deserves several processors. Knowing parameters, the planner may read a whole table
/// in parallel for a thousand rows of it.
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
                        SET LOCAL plan_cache_mode = force_generic_plan; \
                        SET LOCAL random_page_cost = 1.1; \
                        SET LOCAL max_parallel_workers_per_gather = 0";

/// Reads of the store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reads {
    pool: PgPool,
    runtime: Handle,
}

/// A job with its newest recorded decision.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The job as the decision left it.
    pub job: JobView,
    /// The decision about its newest attempt, or else why it waited.
    pub decision: Option<DecisionView>,
    /// The predicted run time of its newest attempt.
    pub prediction: Option<PredictionView>,
    /// The memory estimate of its newest attempt, if the job names no memory.
    pub memory_prediction: Option<MemoryPredictionView>,
    /// Where the size of its newest attempt came from, and the memory that it was given.
    pub size: Option<(SizeSource, Bytes)>,
}

impl Reads {
    /// Reads through `pool`, whose connections are to live on `runtime`.
    pub const fn new(pool: PgPool, runtime: Handle) -> Self {
        Self { pool, runtime }
    }

    /// Returns the runtime that the connections live on.
    pub const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Lists jobs, newest first.
    ///
    /// # Errors
    ///
    /// As every read: [`StoreError::Unavailable`] if PostgreSQL doesn't answer,
    /// [`StoreError::Corrupt`] if a row can't be understood.
    pub async fn jobs(&self, query: JobQuery) -> Result<JobPage, StoreError> {
        self.run(|mut at| async move { jobs::page(&mut at, &query).await }).await
    }

    /// Returns which of some jobs exist within a scope.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn within(
        &self,
        jobs: Vec<JobId>,
        scope: JobScope,
    ) -> Result<HashSet<JobId>, StoreError> {
        self.run(move |mut at| async move { targets::within(&mut at, &jobs, &scope).await }).await
    }

    /// Returns one job; for an array's number, its first task.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn job(&self, job: JobRef, scope: &JobScope) -> Result<Option<JobView>, StoreError> {
        let scope = scope.clone();
        self.run(move |mut at| async move { jobs::one(&mut at, job, &scope).await }).await
    }

    /// Returns everything that is known about one job.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn detail(
        &self,
        job: JobRef,
        scope: &JobScope,
    ) -> Result<Option<JobDetail>, StoreError> {
        let scope = scope.clone();
        self.run(move |mut at| async move { jobs::detail(&mut at, job, &scope).await }).await
    }

    /// Returns the memory of a job's attempts over time, oldest first.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn memory_of(&self, job: u64) -> Result<Vec<AttemptMemoryView>, StoreError> {
        self.run(move |mut at| async move { memory::of_job(&mut at, job).await }).await
    }

    /// Compares what tasks requested with what they used.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn efficiency(
        &self,
        since: OffsetDateTime,
        users: Option<Vec<String>>,
    ) -> Result<Vec<TaskEfficiency>, StoreError> {
        self.run(
            move |mut at| async move { memory::efficiency(&mut at, since, users.as_deref()).await },
        )
        .await
    }

    /// Returns what happened to a job, oldest first.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn events(
        &self,
        job: JobRef,
        scope: &JobScope,
    ) -> Result<Option<JobEvents>, StoreError> {
        let scope = scope.clone();
        self.run(move |mut at| async move { events::of_job(&mut at, job, &scope).await }).await
    }

    /// Returns a job with the decision that is recorded about its newest attempt, or about its
    /// wait if it never had one.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn decided(
        &self,
        job: JobRef,
        scope: &JobScope,
    ) -> Result<Option<Decided>, StoreError> {
        let scope = scope.clone();
        self.run(move |mut at| async move {
            let Some(job) = jobs::one(&mut at, job, &scope).await? else { return Ok(None) };
            let decision = decisions::newest_of(&mut at, JobId::from_number(job.id)).await?;
            let number = super::columns::bigint(job.id);
            let (prediction, memory_prediction) =
                attempts::newest_prediction(&mut at, number).await?;
            let size = attempts::newest_size(&mut at, number).await?;
            Ok(Some(Decided { job, decision, prediction, memory_prediction, size }))
        })
        .await
    }

    /// Counts the jobs by state; every state is named.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn counts(&self) -> Result<JobCounts, StoreError> {
        self.run(|mut at| async move { counts::by_state(&mut at).await }).await
    }

    /// Lists decisions, newest first.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn decisions(
        &self,
        job: Option<JobId>,
        scope: &JobScope,
        before: Option<DecisionId>,
        size: PageSize,
    ) -> Result<DecisionPage, StoreError> {
        let scope = scope.clone();
        self.run(
            move |mut at| async move { decisions::page(&mut at, job, &scope, before, size).await },
        )
        .await
    }

    /// Returns one decision.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn decision(
        &self,
        id: DecisionId,
        scope: &JobScope,
    ) -> Result<Option<DecisionView>, StoreError> {
        let scope = scope.clone();
        self.run(move |mut at| async move { decisions::one_of(&mut at, id, &scope).await }).await
    }

    /// Lists layout plans, newest first.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn layouts(
        &self,
        gpu: Option<GpuId>,
        before: Option<Cursor>,
        size: PageSize,
    ) -> Result<LayoutPlans, StoreError> {
        self.run(move |mut at| async move { layout_plans::page(&mut at, gpu, before, size).await })
            .await
    }

    /// Lists the jobs of a period with their runs, oldest first.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn past(&self, query: PastQuery) -> Result<PastJobs, StoreError> {
        self.run(|mut at| async move { past_jobs::page(&mut at, &query).await }).await
    }

    /// Lists jobs as accounting and Slurm's commands need them, by number. If `reasons` are given, jobs that never ran
    /// wait for those.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn records(
        &self,
        query: RecordQuery,
        reasons: Option<Vec<WaitReasonRun>>,
    ) -> Result<JobRecords, StoreError> {
        self.run(
            move |mut at| async move { records::list(&mut at, &query, reasons.as_deref()).await },
        )
        .await
    }

    /// Returns whose jobs these are; jobs that do not exist are left out.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn users_of(&self, jobs: Vec<JobId>) -> Result<Vec<(JobId, String)>, StoreError> {
        self.run(move |mut at| async move { records::users_of(&mut at, &jobs).await }).await
    }

    /// Adds up the attempts of a period.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn report(&self, span: ReportSpan) -> Result<Vec<ReportRow>, StoreError> {
        self.run(|mut at| async move { report::sums(&mut at, &span).await }).await
    }

    /// Lists recorded rounds of the placement, oldest first.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn rounds(
        &self,
        from: RoundsFrom,
        size: PageSize,
    ) -> Result<RecordedRounds, StoreError> {
        self.run(move |mut at| async move { rounds::page(&mut at, from, size).await }).await
    }

    /// Returns how accurate predictions were; `models` names the models.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn predictions(&self, models: ModelStatus) -> Result<PredictionReport, StoreError> {
        self.run(move |mut at| async move { predictions::outcomes(&mut at, models).await }).await
    }

    /// Lists the tasks whose kernels were measured, latest first.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn kernel_tasks(&self, scope: JobScope) -> Result<KernelTasks, StoreError> {
        self.run(move |mut at| async move { kernel_views::tasks(&mut at, &scope).await }).await
    }

    /// Returns what is known about one task's kernels.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn kernel_task(&self, task: String) -> Result<Option<TaskKernels>, StoreError> {
        self.run(move |mut at| async move { kernel_views::task(&mut at, &task).await }).await
    }

    /// Returns one layout plan.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn layout(&self, plan: PlanId) -> Result<Option<LayoutPlan>, StoreError> {
        self.run(move |mut at| async move { layout_plans::one(&mut at, plan).await }).await
    }

    /// Lists what administrators did, newest first.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn cluster_events(
        &self,
        node: Option<String>,
        before: Option<u64>,
        size: PageSize,
    ) -> Result<ClusterEvents, StoreError> {
        self.run(
            move |mut at| async move { cluster_events::events(&mut at, node, before, size).await },
        )
        .await
    }

    /// Estimates when running jobs end, milliseconds since 1970; those about which nothing is known
    /// are left out.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn expected_ends(
        &self,
        jobs: Vec<u64>,
    ) -> Result<BTreeMap<JobId, Millis>, StoreError> {
        self.run(move |mut at| async move { cluster_events::expected_ends(&mut at, &jobs).await })
            .await
    }

    /// Returns where the output of a job's attempt lies: of the newest one, if none is named.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn log_source(
        &self,
        job: JobId,
        number: Option<u32>,
    ) -> Result<Option<LogSource>, StoreError> {
        self.run(move |mut at| async move { attempts::log_source(&mut at, job, number).await })
            .await
    }

    /// Returns which jobs a command on `job` addresses: of a whole array, its unfinished tasks.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn targets(
        &self,
        job: JobRef,
        scope: &JobScope,
    ) -> Result<Option<Targets>, StoreError> {
        let scope = scope.clone();
        self.run(move |mut at| async move { targets::of(&mut at, job, &scope).await }).await
    }

    /// Lists the tasks of an array, or the members of a gang, that have ended.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn ended_tasks(&self, first: JobId, span: i64) -> Result<Vec<JobId>, StoreError> {
        self.run(move |mut at| async move { targets::ended_tasks(&mut at, first, span).await })
            .await
    }

    /// Returns the text of a job's script; `None` if there is no such job, and an empty one for a command.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn script(
        &self,
        job: JobRef,
        scope: &JobScope,
    ) -> Result<Option<String>, StoreError> {
        let scope = scope.clone();
        self.run(move |mut at| async move { targets::script(&mut at, job, &scope).await }).await
    }

    /// Returns what share of a slice a job requested; `None` if there is no such job.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn share(
        &self,
        job: JobRef,
        scope: &JobScope,
    ) -> Result<Option<SharingMode>, StoreError> {
        let scope = scope.clone();
        self.run(move |mut at| async move { targets::share(&mut at, job, &scope).await }).await
    }

    /// Returns whether a submit was accepted under this caller's idempotency key.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn key_is_used(&self, principal: String, key: String) -> Result<bool, StoreError> {
        self.run(move |mut at| async move { targets::key_is_used(&mut at, &principal, &key).await })
            .await
    }

    /// Returns what has to be known of jobs that are to wait for others.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn dependency_facts(
        &self,
        jobs: Vec<JobId>,
        on: Vec<JobRange>,
    ) -> Result<DependencyOrigin, StoreError> {
        self.run(move |mut at| async move { dependencies::facts_of(&mut at, &jobs, &on).await })
            .await
    }

    /// Returns the submissions of some jobs, by the numbers of the jobs.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn submissions_of(
        &self,
        jobs: Vec<JobId>,
        scope: JobScope,
    ) -> Result<BTreeMap<JobId, SubmissionShape>, StoreError> {
        self.run(move |mut at| async move { targets::submissions_of(&mut at, &jobs, &scope).await })
            .await
    }

    /// Lists entries of the audit log, newest first.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn audit(
        &self,
        principal: Option<String>,
        before: i64,
        size: PageSize,
    ) -> Result<AuditPage, StoreError> {
        self.run(move |mut at| async move {
            audit::page(&mut at, principal.as_deref(), before, size).await
        })
        .await
    }

    /// Returns once the database has answered something.
    ///
    /// # Errors
    ///
    /// As [`Self::jobs`].
    pub async fn answers(&self) -> Result<(), StoreError> {
        self.run(|_| async { Ok(()) }).await
    }

    async fn run<T, F, Reading>(&self, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(Transaction<'static, Postgres>) -> Reading + Send + 'static,
        Reading: Future<Output = Result<T, StoreError>> + Send,
    {
        let pool = self.pool.clone();
        let task: JoinHandle<Result<T, StoreError>> = self.runtime.spawn(async move {
            let snapshot = pool
                .begin_with(SNAPSHOT)
                .await
                .map_err(StoreError::while_trying_to("begin a read"))?;
            read(snapshot).await
        });
        // A task ends without an answer only when its runtime shuts down.
        task.await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable { action: "read", cause: sqlx::Error::PoolClosed })
        })
    }
}
