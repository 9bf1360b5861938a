//! A typed client of the REST API.
//!
//! Every call may be repeated without harm. While the controller restarts, is not yet leader or
//! requests a pause, the client repeats the call within its [`RetryPatience`].

#![forbid(unsafe_code)]

mod certificates;
mod error;
mod history;
mod http;
mod identity;
mod operator;
mod raw;
mod retry;
mod sessions;

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tessera_model::JobRef;

pub use self::error::ClientError;
pub use self::http::LogStream;
use self::http::{ApiCall, HttpConnection};
pub use self::operator::OperatorVerb;
pub use self::retry::RetryPatience;
pub use self::sessions::{
    MAIN_SESSION, SessionBroken, SessionMessage, SessionReceiver, SessionSender,
};
use tessera_api_types::{
    AccountingReport, ClusterInfo, GpuListing, JobCounts, JobDetail, JobEvents, JobExplanation,
    JobFilter, JobPage, JobRecords, JobScriptView, JobView, KernelTasks, LayoutPlans,
    MigModeRequest, NodeDetails, NodeListing, PowerReport, PredictionReport, RecordFilter,
    ReportQuery, StepReceipt, StepReport, SubmitRequest, SubmitResponse, TaskKernels,
    UpdateRequest, UsageReport,
};

/// Longest time that the controller holds one request for a job's end open. Proxies
/// and firewalls cut connections that stay silent for a minute.
const WAIT_SECS: u64 = 25;
/// Jobs on one page of a listing: the controller's maximum.
const PAGE_JOBS: u32 = 1_000;

/// What makes a repeated submit harmless: the controller accepts each key once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitKey(String);

impl SubmitKey {
    /// Returns a new unique key.
    pub fn new_unique() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// Returns a key that the caller can reproduce, such as a trace's name and line.
    pub fn named(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which output of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOutput {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Which part of a job's output to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogQuery {
    /// The output.
    pub stream: LogOutput,
    /// Which attempt, by number; by default the newest.
    pub attempt: Option<u32>,
    /// First byte to read.
    pub offset: u64,
    /// Whether to continue until the attempt ends.
    pub follow: FollowMode,
}

/// Whether a log stream ends at the end of what was written so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowMode {
    /// Follows the output until the attempt has ended.
    UntilEnd,
    /// Ends at the current end of the output.
    No,
}

/// What a user may do to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobVerb {
    /// Ends it.
    Cancel,
    /// Keeps it from starting.
    Hold,
    /// Allows it to start again.
    Release,
    /// Ends its attempt, and puts it back into the queue.
    Requeue,
}

impl JobVerb {
    /// Returns the verb's name in the route.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Requeue => "requeue",
        }
    }
}

/// What proves the caller's name to the controller, and the controller's to the caller.
#[derive(Clone, Copy, Default)]
pub struct Access<'a> {
    /// A personal token. The Unix socket needs none.
    pub token: Option<&'a str>,
    /// The authorities (PEM) whose certificates are trusted, for `https://`.
    pub authority: Option<&'a [u8]>,
}

impl std::fmt::Debug for Access<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token must not reach a log.
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// A connection to one controller. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ApiClient {
    http: HttpConnection,
}

impl ApiClient {
    /// Creates a client for the controller at `address`; it connects with the first call.
    ///
    /// # Errors
    ///
    /// [`ClientError::BadAddress`] if `address` is not a `unix://`, `http://` or `https://` URL;
    /// [`ClientError::BadAuthority`] if `access` holds an authority that can't be read.
    pub fn new(
        address: &str,
        access: &Access<'_>,
        patience: RetryPatience,
    ) -> Result<Self, ClientError> {
        HttpConnection::new(address, access, patience).map(|http| Self { http })
    }

    /// Returns the same client with a different retry patience.
    #[must_use]
    pub fn with_patience(&self, patience: RetryPatience) -> Self {
        Self { http: self.http.with_patience(patience) }
    }

    /// Submits a job, or an array. Returns once it is committed.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] states which field to change; the others as everywhere.
    pub async fn submit(
        &self,
        request: &SubmitRequest,
        key: &SubmitKey,
    ) -> Result<SubmitResponse, ClientError> {
        self.http
            .json(ApiCall::post("v1/jobs").body(request).header("Idempotency-Key", &key.0))
            .await
    }

    /// Lists one page of jobs, newest first.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the filter names an unknown state.
    pub async fn jobs(&self, filter: &JobFilter) -> Result<JobPage, ClientError> {
        self.http.json(ApiCall::get("v1/jobs").queries(filter)).await
    }

    /// Lists up to `at_most` jobs, page by page.
    ///
    /// # Errors
    ///
    /// As [`ApiClient::jobs`].
    pub async fn all_jobs(
        &self,
        filter: &JobFilter,
        at_most: usize,
    ) -> Result<JobPage, ClientError> {
        let mut filter = JobFilter { limit: Some(PAGE_JOBS), ..filter.clone() };
        let mut all = JobPage { items: Vec::new(), next_cursor: None };
        while all.items.len() < at_most {
            let missing = u32::try_from(at_most - all.items.len());
            filter.limit = Some(missing.map_or(PAGE_JOBS, |missing| missing.min(PAGE_JOBS)));
            let page = self.jobs(&filter).await?;
            all.items.extend(page.items);
            all.next_cursor = page.next_cursor.clone();
            match page.next_cursor {
                Some(cursor) => filter.cursor = Some(cursor),
                None => break,
            }
        }
        Ok(all)
    }

    /// Lists jobs as accounting and Slurm's commands need them, by number.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the filter names no jobs.
    pub async fn records(&self, filter: &RecordFilter) -> Result<JobRecords, ClientError> {
        self.http.json(ApiCall::get("v1/records").queries(filter)).await
    }

    /// Adds up what attempts used in a period.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the period or a key is wrong.
    pub async fn report(&self, query: &ReportQuery) -> Result<AccountingReport, ClientError> {
        self.http.json(ApiCall::get("v1/report").queries(query)).await
    }

    /// Counts the jobs by state.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn counts(&self) -> Result<JobCounts, ClientError> {
        self.fetch("v1/jobs/summary").await
    }

    /// Returns one job with all details.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn job(&self, job: JobRef) -> Result<JobDetail, ClientError> {
        self.fetch(&format!("v1/jobs/{job}")).await
    }

    /// Cancels, holds, releases or requeues a job or a whole array.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such job, or if its state doesn't allow it.
    pub async fn act(&self, job: JobRef, verb: JobVerb) -> Result<JobView, ClientError> {
        self.http.json(ApiCall::post(&format!("v1/jobs/{job}/{}", verb.word()))).await
    }

    /// Updates a job or a whole array.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such job, or if it doesn't allow the update.
    pub async fn update(
        &self,
        job: JobRef,
        change: &UpdateRequest,
    ) -> Result<JobView, ClientError> {
        self.http.json(ApiCall::patch(&format!("v1/jobs/{job}")).body(change)).await
    }

    /// Reports a step of a job: that it starts, or that it has ended.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such job, or if the report breaks a rule.
    pub async fn report_step(
        &self,
        job: JobRef,
        report: &StepReport,
    ) -> Result<StepReceipt, ClientError> {
        self.http.json(ApiCall::post(&format!("v1/jobs/{job}/steps")).body(report)).await
    }

    /// Waits at most half a minute for the job's end; returns the job either way.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn wait_a_while(&self, job: JobRef) -> Result<JobView, ClientError> {
        let call = ApiCall::get(&format!("v1/jobs/{job}/wait")).query("timeout_secs", WAIT_SECS);
        // The controller holds the response for WAIT_SECS; the timeout has to be longer.
        self.http.json(call.within(Duration::from_secs(WAIT_SECS * 2))).await
    }

    /// Opens a job's output.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such job, or if it never ran.
    pub async fn logs(&self, job: JobRef, query: LogQuery) -> Result<LogStream, ClientError> {
        let stream = match query.stream {
            LogOutput::Stdout => "stdout",
            LogOutput::Stderr => "stderr",
        };
        let mut call = ApiCall::get(&format!("v1/jobs/{job}/logs"))
            .query("stream", stream)
            .query("offset", query.offset)
            .query("follow", query.follow == FollowMode::UntilEnd);
        if let Some(attempt) = query.attempt {
            call = call.query("attempt", attempt);
        }
        self.http.stream(call).await
    }

    /// Returns a job's script as it was submitted.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job, and 409 if it runs a command.
    pub async fn script(&self, job: JobRef) -> Result<String, ClientError> {
        let found: JobScriptView = self.fetch(&format!("v1/jobs/{job}/script")).await?;
        Ok(found.script)
    }

    /// Returns a job's events.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn events(&self, job: JobRef) -> Result<JobEvents, ClientError> {
        self.fetch(&format!("v1/jobs/{job}/events")).await
    }

    /// Returns why a job waits, or why it was placed where it runs.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn explain(&self, job: JobRef) -> Result<JobExplanation, ClientError> {
        self.fetch(&format!("v1/jobs/{job}/explain")).await
    }

    /// Lists the nodes.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn nodes(&self) -> Result<NodeListing, ClientError> {
        self.fetch("v1/nodes").await
    }

    /// Returns one node.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such node.
    pub async fn node(&self, name: &str) -> Result<NodeDetails, ClientError> {
        self.fetch(&format!("v1/nodes/{}", http::segment(name))).await
    }

    /// Lists the GPUs with their layouts.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn gpus(&self) -> Result<GpuListing, ClientError> {
        self.fetch("v1/gpus").await
    }

    /// Lists layout plans, newest first.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn layouts(&self, gpu: Option<&str>, limit: u32) -> Result<LayoutPlans, ClientError> {
        let call = ApiCall::get("v1/layouts").query("limit", limit);
        self.http.json(call.maybe("gpu", gpu)).await
    }

    /// Returns recent usage, held slices and quotas of accounts and users.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn usage(&self) -> Result<UsageReport, ClientError> {
        self.fetch("v1/usage").await
    }

    /// Returns the power cap, and the expected power of the GPUs.
    ///
    /// # Errors
    ///
    /// As [`Self::job`].
    pub async fn power(&self) -> Result<PowerReport, ClientError> {
        self.fetch("v1/power").await
    }

    /// Returns the accuracy of predictions.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn predictions(&self) -> Result<PredictionReport, ClientError> {
        self.fetch("v1/predictions").await
    }

    /// Lists the tasks with measured kernels.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn kernel_tasks(&self) -> Result<KernelTasks, ClientError> {
        self.fetch("v1/kernels").await
    }

    /// Returns the measured kernels of one task.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there are none.
    pub async fn task_kernels(&self, task_key: &str) -> Result<TaskKernels, ClientError> {
        self.http.json(ApiCall::get("v1/kernels/task").query("task_key", task_key)).await
    }

    /// Switches the MIG mode of a GPU, which must be empty.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if jobs run there, or if the GPU does not support MIG.
    pub async fn set_mig_mode(&self, gpu: &str, on: bool) -> Result<(), ClientError> {
        let path = format!("v1/gpus/{}/mig-mode", http::segment(gpu));
        self.http.done(ApiCall::post(&path).body(&MigModeRequest { on })).await
    }

    /// Returns an overview of the cluster.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn info(&self) -> Result<ClusterInfo, ClientError> {
        self.fetch("v1/info").await
    }

    async fn fetch<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.http.json(ApiCall::get(path)).await
    }
}

/// Reads a flat struct into the pairs of a query; absent fields are left out.
fn pairs(query: &impl Serialize) -> Vec<(String, String)> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(query) else {
        return Vec::new();
    };
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    fields.into_iter().map(|(name, value)| (name, text(value))).collect()
}
