//! A typed client of the REST API.
//!
//! Every call may be repeated without harm, so each is: while the controller restarts, is
//! not yet leader or asks for a pause, the client waits within its [`Patience`].

mod error;
mod http;
mod operator;
mod retry;

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tessera_model::JobRef;

pub use self::error::ClientError;
pub use self::http::LogStream;
use self::http::{Call, Http};
pub use self::operator::OperatorVerb;
pub use self::retry::Patience;
use crate::types::{
    ClusterInfo, ClusterSeries, DecisionView, Decisions, Explain, GpuSeries, Gpus, Job, JobCounts,
    JobDetail, JobEvents, JobFilter, JobPage, JobSeries, KernelTasks, LayoutChanges,
    MigModeRequest, Node, Nodes, PastJobs, Predictions, RecordedRounds, SeriesQuery, SubmitRequest,
    Submitted, TaskKernels, UpdateRequest,
};

/// Longest time that one request for a job's end is held open by the controller. Proxies
/// and firewalls cut connections that stay silent for a minute.
const WAIT_SECS: u64 = 25;
/// Jobs on one page of a listing: the most that the controller gives.
const PAGE_JOBS: u32 = 1_000;
/// Recorded rounds on one page.
const PAGE_ROUNDS: u32 = 500;
/// How long a page of history may take: it has megabytes.
const LONG_READ: Duration = Duration::from_secs(60);

/// What makes a repeated submit harmless: the controller accepts each key once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitKey(String);

impl SubmitKey {
    /// Mints a key that nobody else has.
    pub fn fresh() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// Takes a key that the caller can make again, such as a trace's name and line.
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
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Which part of a job's output to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogQuery {
    /// Which output.
    pub stream: Stream,
    /// Which attempt, by number; by default the newest.
    pub attempt: Option<u32>,
    /// First byte to read.
    pub offset: u64,
    /// Whether to go on until the attempt ends.
    pub follow: Follow,
}

/// Whether a log stream ends at the end of what was written so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Goes on until the attempt has ended.
    UntilEnd,
    /// Ends where the output ends now.
    No,
}

/// What a user may do to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Ends it.
    Cancel,
    /// Keeps it from starting.
    Hold,
    /// Lets it go on.
    Release,
}

impl Verb {
    /// Returns the word in the route.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Hold => "hold",
            Self::Release => "release",
        }
    }
}

/// A connection to one controller. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: Http,
}

impl Client {
    /// Prepares a client for the controller at `address`; connects with the first call.
    ///
    /// # Errors
    ///
    /// [`ClientError::BadAddress`] if `address` is no `http://` URL.
    pub fn new(
        address: &str,
        token: Option<&str>,
        patience: Patience,
    ) -> Result<Self, ClientError> {
        Http::new(address, token, patience).map(|http| Self { http })
    }

    /// Returns the same client with other patience.
    #[must_use]
    pub fn with_patience(&self, patience: Patience) -> Self {
        Self { http: self.http.with_patience(patience) }
    }

    /// Submits a job, or an array. Returns once it is committed.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] says which field to change; the others as everywhere.
    pub async fn submit(
        &self,
        request: &SubmitRequest,
        key: &SubmitKey,
    ) -> Result<Submitted, ClientError> {
        self.http.json(Call::post("v1/jobs").body(request).header("Idempotency-Key", &key.0)).await
    }

    /// Lists one page of jobs, newest first.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the filter names a state that there is not.
    pub async fn jobs(&self, filter: &JobFilter) -> Result<JobPage, ClientError> {
        self.http.json(Call::get("v1/jobs").queries(filter)).await
    }

    /// Lists jobs page by page until `at_most` are there.
    ///
    /// # Errors
    ///
    /// As [`Client::jobs`].
    pub async fn all_jobs(
        &self,
        filter: &JobFilter,
        at_most: usize,
    ) -> Result<JobPage, ClientError> {
        let mut filter = JobFilter { limit: Some(PAGE_JOBS), ..filter.clone() };
        let mut all = JobPage { items: Vec::new(), next_cursor: None };
        while all.items.len() < at_most {
            let missing = u32::try_from(at_most - all.items.len()).unwrap_or(PAGE_JOBS);
            filter.limit = Some(missing.min(PAGE_JOBS));
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

    /// Counts the jobs by state.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn counts(&self) -> Result<JobCounts, ClientError> {
        self.fetch("v1/jobs/summary").await
    }

    /// Returns one job with everything that is known of it.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn job(&self, job: JobRef) -> Result<JobDetail, ClientError> {
        self.fetch(&format!("v1/jobs/{job}")).await
    }

    /// Cancels, holds or releases a job or a whole array.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such job, or if its state doesn't allow it.
    pub async fn act(&self, job: JobRef, verb: Verb) -> Result<Job, ClientError> {
        self.http.json(Call::post(&format!("v1/jobs/{job}/{}", verb.word()))).await
    }

    /// Changes a job or a whole array.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such job, or if it doesn't take the change.
    pub async fn update(&self, job: JobRef, change: &UpdateRequest) -> Result<Job, ClientError> {
        self.http.json(Call::patch(&format!("v1/jobs/{job}")).body(change)).await
    }

    /// Waits at most half a minute for the job's end; returns the job either way.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn wait_a_while(&self, job: JobRef) -> Result<Job, ClientError> {
        let call = Call::get(&format!("v1/jobs/{job}/wait")).query("timeout_secs", WAIT_SECS);
        // The controller holds the answer back; only much later is it late.
        self.http.json(call.within(Duration::from_secs(WAIT_SECS * 2))).await
    }

    /// Opens a job's output.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such job, or if it never ran.
    pub async fn logs(&self, job: JobRef, query: LogQuery) -> Result<LogStream, ClientError> {
        let stream = match query.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let mut call = Call::get(&format!("v1/jobs/{job}/logs"))
            .query("stream", stream)
            .query("offset", query.offset)
            .query("follow", query.follow == Follow::UntilEnd);
        if let Some(attempt) = query.attempt {
            call = call.query("attempt", attempt);
        }
        self.http.stream(call).await
    }

    /// Returns what happened to a job.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn events(&self, job: JobRef) -> Result<JobEvents, ClientError> {
        self.fetch(&format!("v1/jobs/{job}/events")).await
    }

    /// Returns why a job waits, or went where it went.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn explain(&self, job: JobRef) -> Result<Explain, ClientError> {
        self.fetch(&format!("v1/jobs/{job}/explain")).await
    }

    /// Lists the machines.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn nodes(&self) -> Result<Nodes, ClientError> {
        self.fetch("v1/nodes").await
    }

    /// Returns one machine.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such machine.
    pub async fn node(&self, name: &str) -> Result<Node, ClientError> {
        self.fetch(&format!("v1/nodes/{}", http::segment(name))).await
    }

    /// Lists the GPUs with their layouts.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn gpus(&self) -> Result<Gpus, ClientError> {
        self.fetch("v1/gpus").await
    }

    /// Returns the figures of all GPUs over time.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] says which part of the query to change.
    pub async fn series(&self, query: &SeriesQuery) -> Result<ClusterSeries, ClientError> {
        self.http.json(Call::get("v1/series").queries(query)).await
    }

    /// Returns one GPU's figures over time.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such GPU.
    pub async fn gpu_series(
        &self,
        gpu: &str,
        query: &SeriesQuery,
    ) -> Result<GpuSeries, ClientError> {
        let path = format!("v1/gpus/{}/series", http::segment(gpu));
        self.http.json(Call::get(&path).queries(query)).await
    }

    /// Returns a job's figures over time.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn job_series(
        &self,
        job: JobRef,
        query: &SeriesQuery,
    ) -> Result<JobSeries, ClientError> {
        self.http.json(Call::get(&format!("v1/jobs/{job}/series")).queries(query)).await
    }

    /// Lists changes of layouts, newest first.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn layouts(
        &self,
        gpu: Option<&str>,
        limit: u32,
    ) -> Result<LayoutChanges, ClientError> {
        let call = Call::get("v1/layouts").query("limit", limit);
        self.http.json(call.maybe("gpu", gpu)).await
    }

    /// Returns one page of recorded rounds of the placement, oldest first: from the beginning of
    /// the chain that was being written at `since`, or behind `cursor`.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn recorded_rounds(
        &self,
        since: &str,
        cursor: Option<&str>,
    ) -> Result<RecordedRounds, ClientError> {
        let call = Call::get("v1/placement-rounds").query("limit", PAGE_ROUNDS);
        let call = match cursor {
            Some(cursor) => call.query("cursor", cursor),
            None => call.query("since", since),
        };
        self.http.json(call.within(LONG_READ)).await
    }

    /// Returns one page of the jobs that were accepted from one moment to another (RFC 3339),
    /// oldest first, with their runs; only one user's, if one is named.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn past_jobs(
        &self,
        (since, until): (&str, &str),
        user: Option<&str>,
        cursor: Option<&str>,
    ) -> Result<PastJobs, ClientError> {
        let call = Call::get("v1/history").query("since", since).query("until", until);
        let call = call.query("limit", PAGE_JOBS).maybe("user", user).maybe("cursor", cursor);
        self.http.json(call.within(LONG_READ)).await
    }

    /// Lists decisions, newest first.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn decisions(&self, job: Option<u64>, limit: u32) -> Result<Decisions, ClientError> {
        let call = Call::get("v1/decisions").query("limit", limit);
        self.http.json(call.maybe("job", job)).await
    }

    /// Returns one decision.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such decision.
    pub async fn decision(&self, id: &str) -> Result<DecisionView, ClientError> {
        self.fetch(&format!("v1/decisions/{}", http::segment(id))).await
    }

    /// Tells what accounts and users have had, hold, and may hold.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; it says whether the same call may be made again.
    pub async fn usage(&self) -> Result<crate::types::usage::UsageReport, ClientError> {
        self.fetch("v1/usage").await
    }

    /// Tells how good predictions of run times are.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn predictions(&self) -> Result<Predictions, ClientError> {
        self.fetch("v1/predictions").await
    }

    /// Lists the tasks whose kernels were measured.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn kernel_tasks(&self) -> Result<KernelTasks, ClientError> {
        self.fetch("v1/kernels").await
    }

    /// Returns what is known of one task's kernels.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if nothing is.
    pub async fn task_kernels(&self, task_key: &str) -> Result<TaskKernels, ClientError> {
        self.http.json(Call::get("v1/kernels/task").query("task_key", task_key)).await
    }

    /// Switches MIG mode of a GPU, which must be empty.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if jobs run there, or the GPU knows no MIG.
    pub async fn set_mig_mode(&self, gpu: &str, on: bool) -> Result<(), ClientError> {
        let path = format!("v1/gpus/{}/mig-mode", http::segment(gpu));
        self.http.done(Call::post(&path).body(&MigModeRequest { on })).await
    }

    /// Returns the cluster at a glance.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn info(&self) -> Result<ClusterInfo, ClientError> {
        self.fetch("v1/info").await
    }

    async fn fetch<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.http.json(Call::get(path)).await
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
