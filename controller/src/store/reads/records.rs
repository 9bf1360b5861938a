//! Many jobs at once, as accounting and Slurm's commands need them.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_api_types::{
    JobRecord, JobRecords, RankUpdateView, RecordFilter, RequestRecord, RunRecord, StepRecord,
};
use tessera_control::answers::WaitReasonRun;
use tessera_model::batch::ArrayRules;
use tessera_model::dependency::Dependency;
use tessera_model::life::{JobState, OnLost};
use tessera_model::number::clamped;
use tessera_model::place::PlaceFilter;
use tessera_model::spec::{BadField, Class, GpuRequest, JobUpdate, QueueRank};
use tessera_model::{GangShape, JobId, JobRef, Millis, NodeName};
use time::OffsetDateTime;

use super::page::parse_name;
use crate::store::StoreError;
use crate::store::columns::{RowRef, bigint, job_number};

/// Maximum number of jobs of one answer: some tens of megabytes.
const RECORDS_MAX: u32 = 200_000;
/// Maximum number of jobs that a filter names.
const NAMED_MAX: usize = 10_000;

/// Which jobs are meant, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordQuery {
    /// Numbers of jobs and of submissions; `None` for those of a period.
    numbers: Option<Vec<i64>>,
    /// Of these submissions, only these tasks.
    tasks: BTreeSet<(i64, u32)>,
    users: Option<Vec<String>>,
    names: Option<Vec<String>>,
    ended_since: Option<OffsetDateTime>,
    submitted_until: Option<OffsetDateTime>,
    reasons: bool,
    fold: bool,
    specs: bool,
    runs: bool,
}

impl RecordQuery {
    /// Reads a filter, at a time.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the first parameter that breaks a rule.
    pub fn parse(filter: RecordFilter, now: OffsetDateTime) -> Result<Self, BadField> {
        let mut numbers = BTreeSet::new();
        let mut tasks = BTreeSet::new();
        let mut whole = BTreeSet::new();
        for word in filter.jobs.as_deref().unwrap_or_default().split(',').filter(|w| !w.is_empty())
        {
            let job: JobRef = word.trim().parse().map_err(|_| not_a_job(word))?;
            match job {
                JobRef::Job(job) => {
                    whole.insert(job_number(job));
                    numbers.insert(job_number(job));
                }
                JobRef::Task { array, index } => {
                    numbers.insert(job_number(array));
                    tasks.insert((job_number(array), index));
                }
            }
        }
        if numbers.len().max(tasks.len()) > NAMED_MAX {
            return Err(BadField::new(
                "jobs",
                "it names too many jobs",
                format!("at most {NAMED_MAX} at once"),
            ));
        }
        // A whole array also includes any of its tasks that are named.
        tasks.retain(|(array, _)| !whole.contains(array));
        let recent = filter.recent_secs.map(|secs| now - time::Duration::seconds(secs.into()));
        Ok(Self {
            numbers: filter.jobs.is_some().then(|| numbers.into_iter().collect()),
            tasks,
            users: names("user", filter.user)?,
            names: names("name", filter.name)?,
            ended_since: filter.since.or(recent),
            submitted_until: filter.until,
            reasons: filter.reasons,
            fold: filter.fold,
            specs: filter.specs,
            runs: filter.runs,
        })
    }

    /// Returns whether a task of an array was named, alone or with its whole array.
    fn includes(&self, submission: i64, index: Option<u32>) -> bool {
        let mut of_array = self.tasks.range((submission, 0)..=(submission, u32::MAX)).peekable();
        of_array.peek().is_none()
            || index.is_some_and(|index| self.tasks.contains(&(submission, index)))
    }
}

fn not_a_job(word: &str) -> BadField {
    BadField::new("jobs", format!("{word:?} is not a job"), "jobs such as 42 or 42_7")
}

fn names(field: &str, list: Option<String>) -> Result<Option<Vec<String>>, BadField> {
    let list = parse_list(list);
    for name in list.iter().flatten() {
        parse_name(field, Some(name.clone()))?;
    }
    Ok(list)
}

/// Splits a list at its commas.
pub(super) fn parse_list(list: Option<String>) -> Option<Vec<String>> {
    let list = list?;
    Some(list.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

/// Returns the jobs of a query.
pub(super) async fn list(
    at: &mut PgConnection,
    query: &RecordQuery,
    reasons: Option<&[WaitReasonRun]>,
) -> Result<JobRecords, StoreError> {
    // In this order: a job that starts between the two statements is in both, and would otherwise be in neither. Clients
    // take a job that is not listed for one that has ended.
    // Named jobs are few, and so is what the database has to look up for them.
    let mut groups = match query.numbers {
        None if !query.reasons || reasons.is_some() => waiting_ranges(at, query).await?,
        _ => waiting(at, query, query.reasons && reasons.is_none()).await?,
    };
    if let Some(reasons) = reasons.filter(|_| query.reasons) {
        groups = groups.into_iter().flat_map(|group| group.by_reason(reasons)).collect();
    }
    let rows = jobs(at, query).await?;
    leave_out_listed(&mut groups, &rows);
    let several = rows.iter().filter(|row| row.array_first.is_some()).map(|row| row.submission);
    let of_groups = groups.iter().filter(|group| group.array_first.is_some());
    let names = task_names(at, several.chain(of_groups.map(|group| group.submission))).await?;
    let mut listed: Vec<JobRun> = rows.into_iter().map(|row| JobRun { row, more: 0 }).collect();
    for group in groups {
        let is_folded = query.fold
            && query.tasks.is_empty()
            && names.get(&group.submission).is_none_or(TaskNames::are_consecutive);
        group.add_runs(is_folded, &mut listed);
    }
    listed.sort_unstable_by_key(|run| run.row.job);
    let mut left = RECORDS_MAX;
    let mut records: Vec<JobRecord> = Vec::new();
    for JobRun { row, more } in listed {
        if left == 0 {
            break;
        }
        let more = more.min(left - 1);
        left -= more + 1;
        let names = names.get(&row.submission);
        let record = JobRecord { more, ..row.record(names)? };
        if query.includes(bigint(record.submission), record.array_index) {
            match records.last_mut().filter(|last| query.fold && is_next(last, &record)) {
                Some(last) => last.more += record.more + 1,
                None => records.push(record),
            }
        }
    }
    let truncated = left == 0;
    if query.runs {
        let numbers: Vec<i64> = records.iter().map(|job| bigint(job.id)).collect();
        let mut runs = runs(at, &numbers).await?;
        add_steps(at, &numbers, &mut runs).await?;
        for job in &mut records {
            job.runs = runs.remove(&bigint(job.id)).unwrap_or_default();
        }
    }
    let specs = if query.specs {
        let submissions: BTreeSet<i64> = records.iter().map(|job| bigint(job.submission)).collect();
        specs(at, &submissions.into_iter().collect::<Vec<_>>()).await?
    } else {
        Vec::new()
    };
    Ok(JobRecords { jobs: records, specs, truncated })
}

/// Returns whether a task that waits follows those that a record stands for, and differs in nothing
/// else.
fn is_next(last: &JobRecord, task: &JobRecord) -> bool {
    let waits = |record: &JobRecord| {
        record.attempts == 0 && ["queued", "held"].contains(&record.state.as_str())
    };
    last.submission == task.submission
        && waits(last)
        && waits(task)
        && task.id == last.id + u64::from(last.more) + 1
        // Members of a gang have the same index, or none.
        && task.array_index.is_some()
        && last.array_index.and_then(|index| index.checked_add(last.more + 1)) == task.array_index
        && (&last.state, &last.reason, last.queue_rank, last.time_limit_secs, &last.dependency)
            == (&task.state, &task.reason, task.queue_rank, task.time_limit_secs, &task.dependency)
        && (&last.name, &last.comment, last.requeue, last.array_limit, last.begin)
            == (&task.name, &task.comment, task.requeue, task.array_limit, task.begin)
}

/// Returns whose jobs these are.
pub(super) async fn users_of(
    at: &mut PgConnection,
    jobs: &[JobId],
) -> Result<Vec<(JobId, String)>, StoreError> {
    let numbers: Vec<i64> = jobs.iter().map(|job| job_number(*job)).collect();
    let rows = sqlx::query!(
        r#"
        SELECT j.job, s.user_name
          FROM jobs AS j
          JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job = ANY ($1)
        "#,
        &numbers,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("find the users of jobs"))?;
    let of = rows.into_iter().map(|row| {
        let job = RowRef::new("jobs", row.job).job("job", row.job)?;
        Ok((job, row.user_name))
    });
    of.collect()
}

/// Jobs of a submission that never ran, in one state and for one reason.
#[derive(Clone, Debug, PartialEq)]
struct WaitingGroup {
    submission: i64,
    state: String,
    reason: Option<String>,
    jobs: Vec<i64>,
    array_first: Option<i32>,
    job_name: String,
    user_name: String,
    accepted_at: OffsetDateTime,
    partition: Option<String>,
}

impl WaitingGroup {
    /// Divides the group by the reasons for which its jobs wait.
    fn by_reason(mut self, reasons: &[WaitReasonRun]) -> Vec<Self> {
        if self.state != JobState::Queued.word() {
            return vec![self];
        }
        let mut jobs_of: BTreeMap<Option<&'static str>, Vec<i64>> = BTreeMap::new();
        for job in std::mem::take(&mut self.jobs) {
            let after = reasons.partition_point(|run| job_number(run.first) <= job);
            let run = after.checked_sub(1).and_then(|place| reasons.get(place));
            let reason = run.filter(|run| job <= job_number(run.last)).map(|run| run.reason);
            jobs_of.entry(reason).or_default().push(job);
        }
        let of = jobs_of.into_iter().map(|(reason, jobs)| Self {
            jobs,
            reason: reason.map(str::to_owned),
            ..self.clone()
        });
        of.collect()
    }

    /// Adds a run for each job; if they are folded, for all with consecutive numbers.
    fn add_runs(mut self, is_folded: bool, runs: &mut Vec<JobRun>) {
        self.jobs.sort_unstable();
        let of = self.jobs.chunk_by(|one, next| is_folded && one.checked_add(1) == Some(*next));
        runs.extend(of.filter_map(|run| {
            let row = RecordRow {
                job: *run.first()?,
                submission: self.submission,
                state: self.state.clone(),
                attempts: 0,
                ended_at: None,
                updates: None,
                array_first: self.array_first,
                job_name: self.job_name.clone(),
                user_name: self.user_name.clone(),
                accepted_at: self.accepted_at,
                partition: self.partition.clone(),
                outcome: None,
                placed_at: None,
                started_at: None,
                exit_code: None,
                gpu_index: None,
                node: None,
                reason: self.reason.clone(),
            };
            Some(JobRun { row, more: clamped(run.len() - 1) })
        }));
    }
}

/// Removes the jobs from the groups that are listed alone, since they no longer wait.
fn leave_out_listed(groups: &mut Vec<WaitingGroup>, rows: &[RecordRow]) {
    let listed: BTreeSet<i64> = rows.iter().map(|row| row.job).collect();
    for group in groups.iter_mut() {
        group.jobs.retain(|job| !listed.contains(job));
    }
    groups.retain(|group| !group.jobs.is_empty());
}

/// A job, and the jobs with the numbers behind it that differ from it in nothing else.
struct JobRun {
    row: RecordRow,
    /// How many those are.
    more: u32,
}

/// Lists the jobs that never ran and were not updated. Most of a long queue are tasks of few arrays: grouped by the
/// database, they are neither joined nor sent one by one.
async fn waiting(
    at: &mut PgConnection,
    query: &RecordQuery,
    has_reasons: bool,
) -> Result<Vec<WaitingGroup>, StoreError> {
    sqlx::query_as!(
        WaitingGroup,
        r#"
        SELECT g.submission AS "submission!", g.state AS "state!", g.reason, g.jobs AS "jobs!",
               s.array_first, s.job_name, s.user_name, s.accepted_at, s.partition
          FROM (SELECT j.submission, j.state, d.reason, array_agg(j.job) AS jobs
                  FROM (SELECT job, submission, state FROM jobs
                         WHERE $1 AND ended_at IS NULL AND last_attempt IS NULL AND updates IS NULL
                         UNION ALL
                        SELECT job, submission, state FROM jobs
                         WHERE job = ANY ($2)
                           AND ended_at IS NULL AND last_attempt IS NULL AND updates IS NULL
                         UNION ALL
                        SELECT job, submission, state FROM jobs
                         WHERE submission = ANY ($2) AND submission <> job AND job <> ALL ($2)
                           AND ended_at IS NULL AND last_attempt IS NULL AND updates IS NULL) AS j
                  LEFT JOIN LATERAL (
                           SELECT d.reason
                             FROM decisions AS d
                            WHERE $3 AND d.job = j.job AND j.state = 'queued' AND d.outcome = 'wait'
                            ORDER BY d.at DESC
                            LIMIT 1) AS d ON true
                 GROUP BY j.submission, j.state, d.reason) AS g
          JOIN submissions AS s ON s.first_job = g.submission
         WHERE ($4::text[] IS NULL OR s.user_name = ANY ($4))
           AND ($5::text[] IS NULL OR s.job_name = ANY ($5))
           AND ($6::timestamptz IS NULL OR s.accepted_at <= $6)
        "#,
        query.numbers.is_none(),
        query.numbers.as_deref().unwrap_or_default(),
        has_reasons,
        query.users.as_deref() as Option<&[String]>,
        query.names.as_deref() as Option<&[String]>,
        query.submitted_until,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the waiting jobs"))
}

/// Lists the jobs that never ran and were not updated, without the reasons of their wait. Most tasks of an array have
/// consecutive numbers: the database counts them, and lists only those of the other arrays.
async fn waiting_ranges(
    at: &mut PgConnection,
    query: &RecordQuery,
) -> Result<Vec<WaitingGroup>, StoreError> {
    let action = "count the waiting jobs";
    let rows = sqlx::query!(
        r#"
        SELECT g.submission AS "submission!", g.state AS "state!", g.first AS "first!", g.last AS "last!",
               g.number AS "number!", s.array_first, s.job_name, s.user_name, s.accepted_at, s.partition
          FROM (SELECT submission, state, min(job) AS first, max(job) AS last, count(*) AS number
                  FROM jobs
                 WHERE ended_at IS NULL AND last_attempt IS NULL AND updates IS NULL
                 GROUP BY submission, state) AS g
          JOIN submissions AS s ON s.first_job = g.submission
         WHERE ($1::text[] IS NULL OR s.user_name = ANY ($1))
           AND ($2::text[] IS NULL OR s.job_name = ANY ($2))
           AND ($3::timestamptz IS NULL OR s.accepted_at <= $3)
        "#,
        query.users.as_deref() as Option<&[String]>,
        query.names.as_deref() as Option<&[String]>,
        query.submitted_until,
    )
    .fetch_all(&mut *at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    let has_gaps = |first: i64, last: i64, number: i64| last - first + 1 != number;
    let scattered: Vec<i64> = rows
        .iter()
        .filter(|row| has_gaps(row.first, row.last, row.number))
        .map(|row| row.submission)
        .collect();
    let mut listed: BTreeMap<(i64, String), Vec<i64>> = BTreeMap::new();
    if !scattered.is_empty() {
        let found = sqlx::query!(
            r#"
            SELECT submission, state, array_agg(job) AS "jobs!"
              FROM jobs
             WHERE (submission = ANY ($1) AND submission <> job OR job = ANY ($1))
               AND ended_at IS NULL AND last_attempt IS NULL AND updates IS NULL
             GROUP BY submission, state
            "#,
            &scattered,
        )
        .fetch_all(at)
        .await
        .map_err(StoreError::while_trying_to(action))?;
        listed.extend(found.into_iter().map(|row| ((row.submission, row.state), row.jobs)));
    }
    let groups = rows.into_iter().map(|row| {
        let jobs = match has_gaps(row.first, row.last, row.number) {
            // A job that moved on between the two statements is among the others.
            true => listed.remove(&(row.submission, row.state.clone())).unwrap_or_default(),
            false => (row.first..=row.last).collect(),
        };
        WaitingGroup {
            submission: row.submission,
            state: row.state,
            reason: None,
            jobs,
            array_first: row.array_first,
            job_name: row.job_name,
            user_name: row.user_name,
            accepted_at: row.accepted_at,
            partition: row.partition,
        }
    });
    Ok(groups.filter(|group| !group.jobs.is_empty()).collect())
}

/// Lists the other jobs. The parts of the union are disjoint: a job is named, or it has not ended, or it ended recently.
async fn jobs(at: &mut PgConnection, query: &RecordQuery) -> Result<Vec<RecordRow>, StoreError> {
    let period = query.numbers.is_none();
    let since = query.ended_since.filter(|_| period);
    sqlx::query_as!(
        RecordRow,
        r#"
        SELECT j.job AS "job!", j.submission AS "submission!", j.state AS "state!",
               j.attempts AS "attempts!", j.ended_at, j.updates AS "updates: Json<JobUpdate>",
               s.array_first, s.job_name, s.user_name, s.accepted_at,
               s.partition,
               a.state AS "outcome?", a.placed_at AS "placed_at?", a.started_at AS "started_at?",
               a.exit_code AS "exit_code?", a.gpu_index AS "gpu_index?", n.name AS "node?",
               d.reason AS "reason?"
          FROM (SELECT * FROM jobs WHERE $1 AND ended_at IS NULL
                 UNION ALL
                SELECT * FROM jobs WHERE $2::timestamptz IS NOT NULL AND ended_at >= $2
                 UNION ALL
                SELECT * FROM jobs WHERE job = ANY ($3)
                 UNION ALL
                SELECT * FROM jobs WHERE submission = ANY ($3) AND submission <> job
                                     AND job <> ALL ($3)) AS j
          JOIN submissions AS s ON s.first_job = j.submission
          LEFT JOIN attempts AS a ON a.attempt = j.last_attempt
          LEFT JOIN nodes AS n ON n.node = a.node
          LEFT JOIN LATERAL (
                   SELECT d.reason
                     FROM decisions AS d
                    WHERE $4 AND d.job = j.job AND j.state = 'queued' AND d.outcome = 'wait'
                      AND d.at >= COALESCE(a.placed_at, s.accepted_at)
                    ORDER BY d.at DESC
                    LIMIT 1) AS d ON true
         WHERE (j.ended_at IS NOT NULL OR j.last_attempt IS NOT NULL OR j.updates IS NOT NULL)
           AND ($5::text[] IS NULL OR s.user_name = ANY ($5))
           AND ($6::text[] IS NULL OR COALESCE(j.updates ->> 'name', s.job_name) = ANY ($6))
           AND ($7::timestamptz IS NULL OR s.accepted_at <= $7)
         ORDER BY j.job
         LIMIT $8
        "#,
        period,
        since,
        query.numbers.as_deref().unwrap_or_default(),
        query.reasons,
        query.users.as_deref() as Option<&[String]>,
        query.names.as_deref() as Option<&[String]>,
        query.submitted_until,
        i64::from(RECORDS_MAX),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the records of jobs"))
}

/// The tasks of a submission that has several.
struct TaskNames {
    /// How many members each gang has; 1 without gangs.
    members: u32,
    /// Their indexes.
    rules: ArrayRules,
}

impl TaskNames {
    /// Returns whether each job is a task, and the indexes follow each other as the numbers of the jobs do.
    const fn are_consecutive(&self) -> bool {
        self.members == 1 && self.rules.indexes.is_empty()
    }
}

/// Reads once for each submission what names its tasks: its specification is much larger.
async fn task_names(
    at: &mut PgConnection,
    submissions: impl Iterator<Item = i64>,
) -> Result<BTreeMap<i64, TaskNames>, StoreError> {
    let several: BTreeSet<i64> = submissions.collect();
    if several.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = sqlx::query!(
        r#"
        SELECT s.first_job, s.spec -> 'gang' AS "gang: Json<GangShape>",
               s.spec -> 'array' AS "rules: Json<ArrayRules>"
          FROM submissions AS s
         WHERE s.first_job = ANY ($1)
        "#,
        &several.into_iter().collect::<Vec<_>>(),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read the indexes of arrays"))?;
    let names = found.into_iter().map(|row| {
        let rules = row.rules.map(|rules| rules.0).unwrap_or_default();
        let members = row.gang.map_or(1, |Json(shape)| shape.members());
        (row.first_job, TaskNames { members, rules })
    });
    Ok(names.collect())
}

struct RecordRow {
    job: i64,
    submission: i64,
    state: String,
    attempts: i32,
    ended_at: Option<OffsetDateTime>,
    updates: Option<Json<JobUpdate>>,
    array_first: Option<i32>,
    job_name: String,
    user_name: String,
    accepted_at: OffsetDateTime,
    partition: Option<String>,
    outcome: Option<String>,
    placed_at: Option<OffsetDateTime>,
    started_at: Option<OffsetDateTime>,
    exit_code: Option<String>,
    gpu_index: Option<i32>,
    node: Option<String>,
    reason: Option<String>,
}

impl RecordRow {
    fn record(self, names: Option<&TaskNames>) -> Result<JobRecord, StoreError> {
        let at = RowRef::new("jobs", self.job);
        let place: u32 = at.number("submission", self.job - self.submission)?;
        let first: Option<u32> = at.optional_number("array_first", self.array_first)?;
        let position = match names {
            Some(names) => names.rules.position(place, first, names.members),
            None => ArrayRules::default().position(place, first, 1),
        };
        let updates = self.updates.map(|Json(updates)| updates).unwrap_or_default();
        let queue_rank = RankUpdateView::from(&updates);
        let array_limit = updates.array_limit_over(names.and_then(|names| names.rules.limit));
        Ok(JobRecord {
            id: at.number("job", self.job)?,
            submission: at.number("submission", self.submission)?,
            array_index: position.index,
            rank: position.rank,
            // The caller adds the accounts, which are in the settings.
            account: String::new(),
            state: self.state,
            outcome: self.outcome,
            reason: self.reason,
            attempts: at.number("attempts", self.attempts)?,
            submitted_at: self.accepted_at,
            placed_at: self.placed_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
            exit_code: self.exit_code,
            node: self.node,
            gpu_index: at.optional_number("gpu_index", self.gpu_index)?,
            queue_rank,
            comment: updates.comment,
            requeue: updates.on_lost.map(|on_lost| on_lost == OnLost::Requeue),
            array_limit: array_limit.map(|limit| limit.at_once),
            begin: updates.begin.and_then(time_of),
            time_limit_secs: updates
                .limit
                .map(|limit| limit.time().map_or(0, |limit| limit.get() / 1_000)),
            dependency: updates
                .dependency
                .as_ref()
                .map(|update| update.dependency().map_or_else(String::new, ToString::to_string)),
            partition: self.partition,
            more: 0,
            runs: Vec::new(),
            name: updates.name.unwrap_or(self.job_name),
            user: self.user_name,
        })
    }
}

/// Returns a time as people read it.
pub(super) fn time_of(unix: Millis) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix.get()) * 1_000_000).ok()
}

fn names_of(nodes: &BTreeSet<NodeName>) -> Vec<String> {
    nodes.iter().map(ToString::to_string).collect()
}

async fn specs(
    at: &mut PgConnection,
    submissions: &[i64],
) -> Result<Vec<RequestRecord>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT s.first_job, s.tasks, s.spec -> 'gpu' AS "gpu!", s.spec -> 'class' AS "class!",
               queue_rank(s.spec) AS "queue_rank!: Json<QueueRank>", s.spec -> 'gang' AS "gang: Json<GangShape>",
               s.spec ->> 'cpus' AS cpus, s.spec ->> 'host_memory' AS memory,
               s.spec -> 'batch' ->> 'launch' AS launch, s.spec -> 'env' ->> 'SLURM_NTASKS' AS ntasks,
               s.spec -> 'env' ->> 'SLURM_CPUS_PER_TASK' AS cpus_per_task,
               s.spec ->> 'time_limit' AS time_limit, s.spec -> 'retry' ->> 'on_lost' AS on_lost,
               s.spec ->> 'work_dir' AS work_dir, s.spec -> 'output' ->> 'stdout' AS stdout,
               s.spec -> 'output' ->> 'stderr' AS stderr, s.spec ->> 'comment' AS comment,
               s.spec ->> 'partition' AS partition, s.spec ->> 'qos' AS qos, s.spec ->> 'begin' AS begin,
               s.spec -> 'place' AS "place: Json<PlaceFilter>", s.spec ->> 'deadline' AS deadline,
               s.spec -> 'dependency' AS "dependency: Json<Dependency>"
          FROM submissions AS s
         WHERE s.first_job = ANY ($1)
         ORDER BY s.first_job
        "#,
        submissions,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read what jobs requested"))?;
    let records = rows.into_iter().map(|row| {
        let at = RowRef::new("submissions", row.first_job);
        let bad = at.corrupt::<serde_json::Error>("spec");
        let gpu: GpuRequest = serde_json::from_value(row.gpu).map_err(&bad)?;
        let class: Class = serde_json::from_value(row.class).map_err(&bad)?;
        let gang = row.gang.map(|Json(shape)| shape);
        let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
        Ok(RequestRecord {
            submission: at.number("first_job", row.first_job)?,
            tasks: at.number("tasks", row.tasks)?,
            gpu: gpu.to_string(),
            gpus: gang.map_or(1, |shape| shape.members()),
            nodes: gang.map_or(1, |shape| shape.nodes()),
            processes: Some(match row.launch.as_deref() {
                Some("once") => gang.map_or(1, |shape| shape.nodes()),
                Some(_) | None => gang.map_or(1, |shape| shape.members()),
            }),
            ntasks: row.ntasks.and_then(|tasks| tasks.parse().ok()),
            cpus_per_task: row.cpus_per_task.and_then(|cpus| cpus.parse().ok()),
            class: class.word().to_owned(),
            queue_rank: row.queue_rank.0.into(),
            cpus: row.cpus.and_then(|cpus| cpus.parse().ok()),
            host_memory_bytes: number(row.memory),
            time_limit_secs: number(row.time_limit).map(|ms| Millis::new(ms).get() / 1_000),
            requeue: row.on_lost.as_deref() == Some("requeue"),
            comment: row.comment,
            qos: row.qos,
            begin: number(row.begin).and_then(|ms| time_of(Millis::new(ms))),
            deadline: number(row.deadline).and_then(|ms| time_of(Millis::new(ms))),
            gpu_model: row.place.as_ref().and_then(|Json(place)| place.model.clone()),
            nodelist: row
                .place
                .as_ref()
                .map(|Json(place)| names_of(&place.nodes))
                .unwrap_or_default(),
            exclude: row.place.map(|Json(place)| names_of(&place.exclude)).unwrap_or_default(),
            partition: row.partition,
            dependency: row.dependency.map(|Json(dependency)| dependency.to_string()),
            work_dir: row.work_dir,
            stdout: row.stdout,
            stderr: row.stderr,
        })
    });
    records.collect()
}

async fn runs(
    at: &mut PgConnection,
    jobs: &[i64],
) -> Result<BTreeMap<i64, Vec<RunRecord>>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT a.job, a.number, a.state, n.name AS node, a.gpu_index, a.profile, a.placed_at,
               a.started_at, a.ended_at, a.exit_code, a.user_ms, a.system_ms, a.max_rss,
               a.energy_mj, a.peak_gpu_memory
          FROM attempts AS a
          JOIN nodes AS n ON n.node = a.node
         WHERE a.job = ANY ($1)
         ORDER BY a.job, a.number
        "#,
        jobs,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the runs of jobs"))?;
    let mut found: BTreeMap<i64, Vec<RunRecord>> = BTreeMap::new();
    for row in rows {
        let at = RowRef::new("attempts", row.job);
        found.entry(row.job).or_default().push(RunRecord {
            number: at.number("number", row.number)?,
            state: row.state,
            node: row.node,
            gpu_index: at.number("gpu_index", row.gpu_index)?,
            profile: row.profile,
            placed_at: row.placed_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
            exit_code: row.exit_code,
            user_ms: at.optional_number("user_ms", row.user_ms)?,
            system_ms: at.optional_number("system_ms", row.system_ms)?,
            max_rss_bytes: at.optional_number("max_rss", row.max_rss)?,
            gpu_energy_millijoules: at.optional_number("energy_mj", row.energy_mj)?,
            gpu_memory_peak_bytes: at.optional_number("peak_gpu_memory", row.peak_gpu_memory)?,
            steps: Vec::new(),
        });
    }
    Ok(found)
}

/// Adds the steps of runs. One that was running when its run ended has ended with it.
async fn add_steps(
    at: &mut PgConnection,
    jobs: &[i64],
    runs: &mut BTreeMap<i64, Vec<RunRecord>>,
) -> Result<(), StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT a.job, a.number, s.step, s.name, s.tasks, s.nodes, s.started_at,
               COALESCE(s.ended_at, a.ended_at) AS ended_at, s.exit_code, s.user_ms, s.system_ms, s.max_rss
          FROM attempts AS a
          JOIN steps AS s ON s.attempt = a.attempt
         WHERE a.job = ANY ($1)
         ORDER BY a.job, a.number, s.step
        "#,
        jobs,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the steps of jobs"))?;
    for row in rows {
        let at = RowRef::new("steps", row.job);
        let number: u32 = at.number("number", row.number)?;
        let of_job = runs.get_mut(&row.job).map(Vec::as_mut_slice).unwrap_or_default();
        let Some(run) = of_job.iter_mut().find(|run| run.number == number) else { continue };
        run.steps.push(StepRecord {
            step: at.number("step", row.step)?,
            name: row.name,
            tasks: at.number("tasks", row.tasks)?,
            nodes: row.nodes,
            started_at: row.started_at,
            ended_at: row.ended_at,
            exit_code: row.exit_code,
            user_ms: at.optional_number("user_ms", row.user_ms)?,
            system_ms: at.optional_number("system_ms", row.system_ms)?,
            max_rss_bytes: at.optional_number("max_rss", row.max_rss)?,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(jobs: &str) -> RecordQuery {
        let filter = RecordFilter { jobs: Some(jobs.to_owned()), ..RecordFilter::default() };
        RecordQuery::parse(filter, OffsetDateTime::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn a_named_task_leaves_the_others_of_its_array_out() {
        let query = query("7,50_3,50_6");

        assert!(query.includes(7, None));
        assert!(query.includes(50, Some(3)));
        assert!(!query.includes(50, Some(4)));
        assert!(!query.includes(50, None));
    }

    #[test]
    fn a_named_array_includes_all_of_its_tasks() {
        let query = query("50_3,50");

        assert!(query.includes(50, Some(4)));
    }

    #[test]
    fn tasks_are_one_record_as_long_as_they_differ_in_their_numbers_only() {
        let task = |id: u64, index: u32, state: &str| -> JobRecord {
            serde_json::from_value(serde_json::json!({
                "id": id, "submission": 50, "array_index": index, "name": "a", "user": "ada",
                "account": "lab", "state": state, "attempts": 0,
                "submitted_at": "2026-01-01T00:00:00Z",
            }))
            .unwrap()
        };
        let first = task(50, 0, "queued");
        let folded = JobRecord { more: 3, ..first.clone() };

        assert!(is_next(&first, &task(51, 1, "queued")));
        assert!(is_next(&folded, &task(54, 4, "queued")));
        assert!(!is_next(&first, &task(51, 2, "queued")), "the indexes have a gap");
        assert!(!is_next(&first, &task(51, 1, "held")));
        assert!(!is_next(&first, &JobRecord { attempts: 1, ..task(51, 1, "queued") }));
        let member = |id: u64| JobRecord { array_index: None, ..task(id, 0, "queued") };
        assert!(!is_next(&member(50), &member(51)), "members of a gang are one job");
        let running = task(50, 0, "running");
        assert!(!is_next(&running, &task(51, 1, "running")), "each has its own place");
    }

    fn group(jobs: &[i64]) -> WaitingGroup {
        WaitingGroup {
            submission: 50,
            state: "queued".to_owned(),
            reason: Some("resources".to_owned()),
            jobs: jobs.to_vec(),
            array_first: Some(0),
            job_name: "a".to_owned(),
            user_name: "ada".to_owned(),
            accepted_at: OffsetDateTime::UNIX_EPOCH,
            partition: None,
        }
    }

    #[test]
    fn a_group_is_divided_by_the_reasons_that_are_known_and_held_jobs_have_none() {
        let run = |first: u64, last: u64, reason: &'static str| WaitReasonRun {
            first: JobId::from_number(first),
            last: JobId::from_number(last),
            reason,
        };
        let reasons = [run(40, 50, "priority"), run(51, 52, "resources"), run(60, 60, "priority")];
        let unknown = WaitingGroup { reason: None, ..group(&[60, 50, 51, 52, 53]) };
        let held = WaitingGroup { state: "held".to_owned(), ..unknown.clone() };

        let divided: Vec<_> = unknown.by_reason(&reasons);

        let shown: Vec<_> =
            divided.iter().map(|one| (one.reason.as_deref(), one.jobs.clone())).collect();
        let expected =
            [(None, vec![53]), (Some("priority"), vec![60, 50]), (Some("resources"), vec![51, 52])];
        assert_eq!(shown, expected);
        assert_eq!(held.clone().by_reason(&reasons), [held]);
    }

    #[test]
    fn a_job_that_starts_between_the_two_statements_is_listed_once_and_runs() {
        let mut runs = Vec::new();
        group(&[51]).add_runs(false, &mut runs);
        let started: Vec<RecordRow> = runs.into_iter().map(|run| run.row).collect();
        let mut groups = vec![group(&[50, 51, 52]), group(&[51])];

        leave_out_listed(&mut groups, &started);

        let left: Vec<_> = groups.iter().map(|group| group.jobs.clone()).collect();
        assert_eq!(left, [[50, 52]]);
    }

    #[test]
    fn waiting_jobs_with_consecutive_numbers_are_one_run_where_records_are_folded() {
        let runs = |is_folded| {
            let mut runs = Vec::new();
            // As the database groups them, in any order.
            group(&[54, 51, 50, 52, 60]).add_runs(is_folded, &mut runs);
            runs.iter().map(|run| (run.row.job, run.more)).collect::<Vec<_>>()
        };

        assert_eq!(runs(true), [(50, 2), (54, 0), (60, 0)]);
        assert_eq!(runs(false), [(50, 0), (51, 0), (52, 0), (54, 0), (60, 0)]);
    }

    #[test]
    fn what_is_no_job_is_named() {
        let filter = RecordFilter { jobs: Some("1,x".to_owned()), ..RecordFilter::default() };
        let refused = RecordQuery::parse(filter, OffsetDateTime::UNIX_EPOCH).unwrap_err();

        assert_eq!(refused.field, "jobs");
        assert!(refused.to_string().contains("\"x\" is not a job"), "{refused}");
    }
}
