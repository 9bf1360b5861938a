//! What users submitted in a period, and its outcome, for simulations.

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_api_types::{PastAttempt, PastGang, PastJob, PastJobs};
use tessera_model::share::SharingMode;
use tessera_model::spec::{Class, GpuRequest, JobUpdate, TimeUpdate};
use tessera_model::{GangMember, GangShape, Millis};
use time::OffsetDateTime;

use super::page::PageSize;
use super::records::time_of;
use crate::principal::JobScope;
use crate::store::StoreError;
use crate::store::columns::RowRef;
use tessera_control::predictions::TaskFacts;

/// How far submissions may deviate from the order of their times: more than are ever accepted while
/// one transaction is open.
const OUT_OF_ORDER_MAX: i64 = 10_000;

/// Which jobs are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastQuery {
    /// Accepted at this time or later.
    pub since: OffsetDateTime,
    /// Accepted at this time or earlier.
    pub until: OffsetDateTime,
    /// Only those of these users.
    pub scope: JobScope,
    /// Only after this job.
    pub after: i64,
    /// The number.
    pub size: PageSize,
}

/// Lists the jobs that were accepted in a period, oldest first.
pub(super) async fn page(at: &mut PgConnection, query: &PastQuery) -> Result<PastJobs, StoreError> {
    let first = first_since(at, query.since).await?.saturating_sub(OUT_OF_ORDER_MAX);
    let last = first_since(at, query.until).await?.saturating_add(OUT_OF_ORDER_MAX);
    let mut rows = sqlx::query_as!(
        JobRow,
        r#"
        SELECT j.job, j.submission, j.state, j.ended_at, s.job_name, s.user_name, s.accepted_at,
               s.spec -> 'gpu' AS "gpu!", s.spec -> 'class' AS "class!",
               s.spec -> 'priority' AS "priority!", s.spec -> 'share' AS "share?",
               s.spec -> 'time_limit' AS "time_limit?", s.spec -> 'deadline' AS "deadline?",
               s.facts AS "facts?", s.spec -> 'gang' AS "gang?: Json<GangShape>",
               j.updates AS "updates: Json<JobUpdate>"
          FROM jobs AS j
          JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job > $1 AND j.job >= $2 AND j.submission < $3
           AND s.accepted_at >= $4 AND s.accepted_at <= $5
           AND ($6::text[] IS NULL OR s.user_name = ANY ($6))
         ORDER BY j.job
         LIMIT $7
        "#,
        query.after,
        first,
        last,
        query.since,
        query.until,
        query.scope.users() as Option<&[String]>,
        query.size.rows(),
    )
    .fetch_all(&mut *at)
    .await
    .map_err(StoreError::while_trying_to("list past jobs"))?;
    let more = query.size.cut(&mut rows);
    let numbers: Vec<i64> = rows.iter().map(|row| row.job).collect();
    let mut attempts = attempts(at, &numbers).await?;
    let items = rows.into_iter().map(|row| {
        let ran = attempts.remove(&row.job).unwrap_or_default();
        row.job(ran)
    });
    let items = items.collect::<Result<Vec<_>, StoreError>>()?;
    let next_cursor = numbers.last().filter(|_| more).map(|last| format!("h{last:x}"));
    Ok(PastJobs { items, next_cursor, oldest_at: oldest(at).await? })
}

async fn oldest(at: &mut PgConnection) -> Result<Option<OffsetDateTime>, StoreError> {
    sqlx::query_scalar!("SELECT accepted_at FROM submissions ORDER BY first_job LIMIT 1")
        .fetch_optional(at)
        .await
        .map_err(StoreError::while_trying_to("find the oldest submission"))
}

/// Returns the number of the first submission of a time or later: numbers rise with time, so
/// that halving finds it by a look-up each.
async fn first_since(at: &mut PgConnection, time: OffsetDateTime) -> Result<i64, StoreError> {
    let newest = sqlx::query_scalar!("SELECT max(first_job) FROM submissions")
        .fetch_one(&mut *at)
        .await
        .map_err(StoreError::while_trying_to("find the newest submission"))?;
    let (mut low, mut high) = (0, newest.unwrap_or(0) + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let row = sqlx::query!(
            r#"
            SELECT first_job, accepted_at FROM submissions
             WHERE first_job >= $1 ORDER BY first_job LIMIT 1
            "#,
            middle,
        )
        .fetch_optional(&mut *at)
        .await
        .map_err(StoreError::while_trying_to("find a submission by its time"))?;
        match row {
            Some(row) if row.accepted_at < time => low = row.first_job + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

async fn attempts(
    at: &mut PgConnection,
    jobs: &[i64],
) -> Result<BTreeMap<i64, Vec<PastAttempt>>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT a.job, a.gpu, a.gpu_index, n.name AS node, a.profile, a.start, a.state,
               a.placed_at, a.started_at, a.ended_at, a.energy_mj, a.peak_gpu_memory,
               a.sm_percent IS NOT NULL OR a.share_bytes IS NOT NULL AS "shared!",
               g.report ->> 'model' AS "model?"
          FROM attempts AS a
          JOIN nodes AS n ON n.node = a.node
          LEFT JOIN gpus AS g ON g.gpu = a.gpu
         WHERE a.job = ANY ($1)
         ORDER BY a.job, a.number
        "#,
        jobs,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list past attempts"))?;
    let mut found: BTreeMap<i64, Vec<PastAttempt>> = BTreeMap::new();
    for row in rows {
        let at = RowRef::new("attempts", row.job);
        let energy: Option<u64> = at.optional_number("energy_mj", row.energy_mj)?;
        found.entry(row.job).or_default().push(PastAttempt {
            node: row.node,
            gpu_index: at.number("gpu_index", row.gpu_index)?,
            gpu: row.gpu,
            gpu_model: row.model,
            profile: row.profile,
            start_slice: at.optional_number("start", row.start)?,
            shared: row.shared,
            state: row.state,
            placed_at: row.placed_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
            gpu_energy_millijoules: energy,
            gpu_memory_peak_bytes: at.optional_number("peak_gpu_memory", row.peak_gpu_memory)?,
        });
    }
    Ok(found)
}

struct JobRow {
    job: i64,
    submission: i64,
    state: String,
    ended_at: Option<OffsetDateTime>,
    job_name: String,
    user_name: String,
    accepted_at: OffsetDateTime,
    gpu: Value,
    class: Value,
    priority: Value,
    share: Option<Value>,
    time_limit: Option<Value>,
    deadline: Option<Value>,
    facts: Option<Value>,
    gang: Option<Json<GangShape>>,
    updates: Option<Json<JobUpdate>>,
}

impl JobRow {
    fn gang(&self, shape: GangShape) -> Result<PastGang, StoreError> {
        let row = RowRef::new("jobs", self.job);
        let first = row.job("submission", self.submission)?;
        let member = GangMember::of(row.job("job", self.job)?, first, shape);
        let error = || row.error("submission", format!("{first} is newer than the job"));
        Ok(PastGang {
            id: member.ok_or_else(error)?.gang.number(),
            nodes: shape.nodes(),
            gpus_per_node: shape.per_node(),
        })
    }

    fn job(self, attempts: Vec<PastAttempt>) -> Result<PastJob, StoreError> {
        let gang = self.gang.as_ref().map(|Json(shape)| self.gang(*shape)).transpose()?;
        let row = RowRef::new("submissions", self.submission);
        let bad = row.corrupt::<serde_json::Error>("spec");
        let request: GpuRequest = serde_json::from_value(self.gpu).map_err(&bad)?;
        let class: Class = serde_json::from_value(self.class).map_err(&bad)?;
        let share: SharingMode =
            self.share.map(serde_json::from_value).transpose().map_err(&bad)?.unwrap_or_default();
        let limit: Option<Option<Millis>> =
            self.time_limit.map(serde_json::from_value).transpose().map_err(&bad)?;
        let deadline: Option<Option<Millis>> =
            self.deadline.map(serde_json::from_value).transpose().map_err(&bad)?;
        // What a user updated after the submit holds, as it does for the controller.
        let updates = self.updates.map(|Json(updates)| updates).unwrap_or_default();
        let limit = updates.limit.map_or(limit.flatten(), TimeUpdate::time);
        let deadline = updates.deadline.map_or(deadline.flatten(), TimeUpdate::time);
        let facts: TaskFacts =
            self.facts.map(serde_json::from_value).transpose().map_err(&bad)?.unwrap_or_default();
        Ok(PastJob {
            id: row.number("job", self.job)?,
            name: self.job_name,
            user: self.user_name,
            class: match class {
                Class::Online => "online".to_owned(),
                Class::Offline => "offline".to_owned(),
            },
            priority: serde_json::from_value(self.priority).map_err(&bad)?,
            gpu_memory_bytes: match &request {
                GpuRequest::Memory(bytes) => Some(bytes.get()),
                _ => None,
            },
            gpu_profile: match &request {
                GpuRequest::Profile(name) => Some(name.to_string()),
                GpuRequest::Compute(name) => Some(name.to_string()),
                _ => None,
            },
            gpu_whole: matches!(request, GpuRequest::Whole | GpuRequest::Unpartitioned),
            share: share.word().to_owned(),
            task: Some(facts.task).filter(|task| !task.is_empty()),
            movable: facts.movable,
            time_limit_secs: limit.map(|limit| limit.get() / 1_000),
            deadline: deadline.and_then(time_of),
            state: self.state,
            submitted_at: self.accepted_at,
            ended_at: self.ended_at,
            gang,
            attempts,
        })
    }
}
