//! Reads of measurements and records: time series, rounds, past jobs, decisions.

use std::time::Duration;

use tessera_api_types::{
    ClusterSeries, DecisionPage, DecisionView, EfficiencyQuery, EfficiencyReport, GpuSeries,
    JobMemory, JobSeries, PastJobs, RecordedRounds, SeriesQuery,
};
use tessera_model::JobRef;

use super::http::{self, ApiCall};
use super::{ApiClient, ClientError, PAGE_JOBS};

/// Recorded rounds on one page.
const PAGE_ROUNDS: u32 = 500;
/// Timeout of a page of history, which has megabytes.
const LONG_READ: Duration = Duration::from_secs(60);

impl ApiClient {
    /// Returns the time series of all GPUs.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] states which part of the query is invalid.
    pub async fn series(&self, query: &SeriesQuery) -> Result<ClusterSeries, ClientError> {
        self.http.json(ApiCall::get("v1/series").queries(query)).await
    }

    /// Returns one GPU's time series.
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
        self.http.json(ApiCall::get(&path).queries(query)).await
    }

    /// Returns a job's time series.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn job_series(
        &self,
        job: JobRef,
        query: &SeriesQuery,
    ) -> Result<JobSeries, ClientError> {
        self.http.json(ApiCall::get(&format!("v1/jobs/{job}/series")).queries(query)).await
    }

    /// Returns the GPU memory of a job's attempts over time, with its prediction.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such job.
    pub async fn job_memory(&self, job: JobRef) -> Result<JobMemory, ClientError> {
        self.http.json(ApiCall::get(&format!("v1/jobs/{job}/memory"))).await
    }

    /// Compares what tasks requested with what they used.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn efficiency(
        &self,
        query: &EfficiencyQuery,
    ) -> Result<EfficiencyReport, ClientError> {
        self.http.json(ApiCall::get("v1/efficiency").queries(query)).await
    }

    /// Returns one page of recorded scheduling rounds, oldest first. It begins with the chain that
    /// was being written at `since`, or after `cursor`.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn recorded_rounds(
        &self,
        since: &str,
        cursor: Option<&str>,
    ) -> Result<RecordedRounds, ClientError> {
        let call = ApiCall::get("v1/placement-rounds").query("limit", PAGE_ROUNDS);
        let call = match cursor {
            Some(cursor) => call.query("cursor", cursor),
            None => call.query("since", since),
        };
        self.http.json(call.within(LONG_READ)).await
    }

    /// Returns one page of the jobs that were accepted from one time to another (RFC 3339), oldest
    /// first, with their attempts; only jobs of `user`, if given.
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
        let call = ApiCall::get("v1/history").query("since", since).query("until", until);
        let call = call.query("limit", PAGE_JOBS).maybe("user", user).maybe("cursor", cursor);
        self.http.json(call.within(LONG_READ)).await
    }

    /// Lists decisions, newest first.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn decisions(
        &self,
        job: Option<u64>,
        limit: u32,
    ) -> Result<DecisionPage, ClientError> {
        let call = ApiCall::get("v1/decisions").query("limit", limit);
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
}
