//! Jobs: which are on a page, and what is known about each.

use std::fmt::Display;

use serde_json::Value;
use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_api_types::{GangView, JobDetail, JobPage, JobView};
use tessera_model::batch::ArrayRules;
use tessera_model::ids::BadId;
use tessera_model::life::JobState;
use tessera_model::share::SmPercent;
use tessera_model::spec::{Class, GpuRequest, JobProgram, JobSpec, JobUpdate};
use tessera_model::{GangShape, JobRef};
use time::OffsetDateTime;

use super::page::{JobQuery, job_cursor};
use super::{attempts, numbers, targets};
use crate::principal::JobScope;
use crate::store::StoreError;
use crate::store::columns::{RowRef, bigint};

/// Lists jobs, newest first.
pub(super) async fn page(at: &mut PgConnection, query: &JobQuery) -> Result<JobPage, StoreError> {
    let mut numbers = numbers::of_page(at, query).await?;
    let more = query.size.cut(&mut numbers);
    let items = rows(at, &numbers).await?;
    let next_cursor = items.last().filter(|_| more).map(|job| job_cursor(job.id));
    Ok(JobPage { items, next_cursor })
}

/// Returns one job.
pub(super) async fn one(
    at: &mut PgConnection,
    job: JobRef,
    scope: &JobScope,
) -> Result<Option<JobView>, StoreError> {
    let Some(number) = targets::number_of(at, job, scope).await? else { return Ok(None) };
    Ok(rows(at, &[number]).await?.pop())
}

/// Returns everything that is known about one job.
pub(super) async fn detail(
    at: &mut PgConnection,
    job: JobRef,
    scope: &JobScope,
) -> Result<Option<JobDetail>, StoreError> {
    let Some(job) = one(at, job, scope).await? else { return Ok(None) };
    let rest = rest(at, job.id).await?;
    let mut spec: JobSpec =
        serde_json::from_value(rest.spec).map_err(bad_json("submissions", job.id, "spec"))?;
    rest.updates.map(|update| update.0).unwrap_or_default().apply_to(&mut spec);
    let row = RowRef::new("jobs", job.id);
    let charged: u32 = row.number("charged", rest.charged)?;
    let oom_policy = spec.oom_policy();
    let mut attempt_list = attempts::of_job(at, job.id).await?;
    // An attempt's row has only the memory of kernel-level sharing.
    if let Some(terms) = spec.share.kernel() {
        for attempt in &mut attempt_list {
            attempt.share = Some(spec.share.word().to_owned());
            attempt.sm_percent = terms.sm.map(SmPercent::get);
        }
    }
    Ok(Some(JobDetail {
        program: program_line(&spec.run.program),
        work_dir: spec.run.work_dir,
        env_names: spec.run.env.into_keys().collect(),
        interactive: spec.run.batch.interaction.is_some(),
        queue_rank: spec.queue_rank.into(),
        deadline: spec.deadline.and_then(|at| {
            OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.get()) * 1_000_000).ok()
        }),
        dependency: spec.dependency.as_ref().map(ToString::to_string),
        time_limit_secs: spec.run.time_limit.map(|limit| limit.get() / 1000),
        idle_timeout_secs: spec.idle.map(|idle| idle.timeout.get() / 1_000),
        idle_action: spec.idle.map(|idle| idle.action.word().to_owned()),
        container: spec.run.container.map(|container| container.image),
        retries_left: spec.retry.max_retries.saturating_sub(charged),
        oom_policy: oom_policy.word().to_owned(),
        memory_prediction: spec.memory_prediction.map(|mode| mode.word().to_owned()),
        oom_count: row.number("out_of_memory", rest.out_of_memory)?,
        memory_estimate_bytes: row.optional_number("memory_estimate", rest.memory_estimate)?,
        memory_before_launch_bytes: row
            .optional_number("held_before_launch", rest.held_before_launch)?,
        launch_multiprocessors: row
            .optional_number("launch_multiprocessors", rest.launch_multiprocessors)?,
        traceparent: rest.traceparent,
        submitted_by: rest.principal.unwrap_or_else(|| job.user.clone()),
        submitted_from: rest.origin,
        attempt_list,
        job,
    }))
}

/// Reads jobs by number, newest first.
pub(super) async fn rows(
    at: &mut PgConnection,
    numbers: &[i64],
) -> Result<Vec<JobView>, StoreError> {
    let rows = sqlx::query_as!(
        JobRow,
        r#"
        SELECT j.job, j.submission, j.state, j.attempts, j.restart_reason, j.ended_at,
               s.array_first, COALESCE(j.updates ->> 'name', s.job_name) AS "job_name!", s.user_name, s.accepted_at,
               s.spec -> 'gang' AS "gang: Json<GangShape>", s.spec -> 'gpu' AS "gpu_request!", s.spec -> 'class' AS "class!",
               COALESCE(j.updates -> 'priority', (s.spec -> 'priority')::jsonb) AS "priority!",
               a.state AS "attempt_state?", a.started_at AS "started_at?",
               a.exit_code, a.detail, a.gpu AS "gpu?", a.gpu_index AS "gpu_index?",
               a.slice, a.profile AS "profile?", n.name AS "node?",
               d.reason AS "wait_reason?", d.summary AS "wait_text?",
               s.spec -> 'array' AS "array: Json<ArrayRules>"
          FROM jobs AS j
          JOIN submissions AS s ON s.first_job = j.submission
          LEFT JOIN attempts AS a ON a.attempt = j.last_attempt
          LEFT JOIN nodes AS n ON n.node = a.node
          LEFT JOIN LATERAL (
                   SELECT d.reason, d.explanation ->> 'summary' AS summary
                     FROM decisions AS d
                    WHERE d.job = j.job AND j.state = 'queued' AND d.outcome = 'wait'
                      AND d.at >= COALESCE(a.placed_at, s.accepted_at)
                    ORDER BY d.at DESC
                    LIMIT 1) AS d ON true
         WHERE j.job = ANY ($1)
         ORDER BY j.job DESC
        "#,
        numbers,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read jobs"))?;
    rows.into_iter().map(JobView::try_from).collect()
}

struct JobRow {
    job: i64,
    submission: i64,
    state: String,
    attempts: i32,
    restart_reason: Option<String>,
    ended_at: Option<OffsetDateTime>,
    array_first: Option<i32>,
    job_name: String,
    user_name: String,
    accepted_at: OffsetDateTime,
    gang: Option<Json<GangShape>>,
    gpu_request: Value,
    class: Value,
    priority: Value,
    attempt_state: Option<String>,
    started_at: Option<OffsetDateTime>,
    exit_code: Option<String>,
    detail: Option<String>,
    gpu: Option<String>,
    gpu_index: Option<i32>,
    slice: Option<String>,
    profile: Option<String>,
    node: Option<String>,
    wait_reason: Option<String>,
    wait_text: Option<String>,
    array: Option<Json<ArrayRules>>,
}

static NO_RULES: ArrayRules = ArrayRules { indexes: Vec::new(), limit: None };

impl TryFrom<JobRow> for JobView {
    type Error = StoreError;

    fn try_from(row: JobRow) -> Result<Self, StoreError> {
        let number = row.job;
        let at = RowRef::new("jobs", number);
        let state: JobState = row.state.parse().map_err(at.corrupt::<BadId>("state"))?;
        let (reason, reason_text) = row.reason(state).unzip();
        let bad = |column| bad_json("submissions", row.submission, column);
        let request: GpuRequest =
            serde_json::from_value(row.gpu_request).map_err(bad("spec.gpu"))?;
        let class: Class = serde_json::from_value(row.class).map_err(bad("spec.class"))?;
        let place: u32 = at.number("submission", number - row.submission)?;
        let first: Option<u32> = at.optional_number("array_first", row.array_first)?;
        let shape = row.gang.as_ref().map(|shape| shape.0);
        let rules = row.array.as_ref().map_or(&NO_RULES, |rules| &rules.0);
        let position = rules.position(place, first, shape.map_or(1, GangShape::members));
        let named_by = position.named_by();
        let array_id = named_by.map(|_| at.number("submission", row.submission)).transpose()?;
        Ok(Self {
            id: at.number("job", number)?,
            name_id: named_by
                .filter(|_| position.has_name())
                .map_or_else(|| number.to_string(), |index| format!("{}_{index}", row.submission)),
            array_id,
            array_index: named_by,
            gang: shape.zip(position.rank).map(|(shape, rank)| GangView {
                rank,
                size: shape.members(),
                nodes: shape.nodes(),
                in_array: position.index.is_some(),
            }),
            name: row.job_name,
            user: row.user_name,
            state: state.word().to_owned(),
            state_short: state.short().to_owned(),
            reason,
            reason_text,
            gpu_request: request.to_string(),
            class: class.word().to_owned(),
            priority: serde_json::from_value(row.priority).map_err(bad("spec.priority"))?,
            submitted_at: row.accepted_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
            exit_code: row.exit_code,
            attempts: at.number("attempts", row.attempts)?,
            node: row.node,
            gpu: row.gpu,
            gpu_index: at.optional_number("gpu_index", row.gpu_index)?,
            slice: row.slice,
            profile: row.profile,
        })
    }
}

impl JobRow {
    /// Returns why the job is in its state: a stable word, and a sentence.
    fn reason(&self, state: JobState) -> Option<(String, String)> {
        let plain = |word: &str, text: &str| Some((word.to_owned(), text.to_owned()));
        match state {
            JobState::Queued => match (&self.wait_reason, &self.restart_reason) {
                (Some(reason), _) => {
                    Some((reason.clone(), self.wait_text.clone().unwrap_or_default()))
                }
                (None, Some(ended)) => Some((
                    ended.clone(),
                    format!("is waiting to run again; its last run ended {ended}"),
                )),
                (None, None) => None,
            },
            JobState::Held => match &self.restart_reason {
                Some(ended) => plain(
                    "held",
                    &format!("held; its last run ended {ended}, and it runs again once released"),
                ),
                None => plain("held", "held by its user; it continues once released"),
            },
            JobState::Placing => {
                plain("awaiting_repartition", "its slice is being created on the GPU")
            }
            JobState::Starting => plain("starting", "its node is starting it"),
            JobState::Running => None,
            JobState::Stopping => plain(
                "stopping",
                "its end was requested, and it has not ended \
                                                     yet",
            ),
            JobState::Succeeded => None,
            JobState::Failed => Some(self.end_of_attempt("failed")),
            JobState::Cancelled => plain("cancelled", "cancelled by its user"),
            JobState::TimedOut => plain("time_limit", "it ran longer than its time limit"),
        }
    }

    fn end_of_attempt(&self, otherwise: &str) -> (String, String) {
        let word = self.attempt_state.as_deref().unwrap_or(otherwise);
        let text = match (self.detail.as_deref().filter(|text| !text.is_empty()), &self.exit_code) {
            (Some(detail), _) => detail.to_owned(),
            (None, Some(exit)) => format!("its program ended with {exit} (exit code:signal)"),
            (None, None) => format!("its last run ended {word}"),
        };
        (word.to_owned(), text)
    }
}

/// Returns what makes an error of JSON that can't be read, for use with `map_err`.
fn bad_json(
    table: &'static str,
    key: impl Display,
    column: &'static str,
) -> impl FnOnce(serde_json::Error) -> StoreError {
    move |problem| RowRef::new(table, key).error(column, problem)
}

struct Rest {
    spec: Value,
    traceparent: Option<String>,
    principal: Option<String>,
    origin: Option<String>,
    charged: i32,
    out_of_memory: i32,
    memory_estimate: Option<i64>,
    held_before_launch: Option<i64>,
    launch_multiprocessors: Option<i32>,
    updates: Option<Json<JobUpdate>>,
}

async fn rest(at: &mut PgConnection, job: u64) -> Result<Rest, StoreError> {
    sqlx::query_as!(
        Rest,
        r#"
        SELECT s.spec, s.traceparent, s.principal, s.origin, j.charged, j.out_of_memory,
               j.memory_estimate, j.held_before_launch, j.launch_multiprocessors,
               j.updates AS "updates: Json<JobUpdate>"
          FROM jobs AS j
          JOIN submissions AS s ON s.first_job = j.submission
         WHERE j.job = $1
        "#,
        bigint(job),
    )
    .fetch_one(at)
    .await
    .map_err(StoreError::while_trying_to("read a job's specification"))
}

/// Shows a program in one line, as a shell would take it.
fn program_line(program: &JobProgram) -> String {
    match program {
        JobProgram::Script(text) => format!("script ({} bytes)", text.len()),
        JobProgram::Command(argv) => {
            argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
        }
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_accepts_it() {
        let argv = ["python3", "-c", "print('hi there')", ""].map(str::to_owned);

        let line = program_line(&JobProgram::Command(argv.to_vec()));

        assert_eq!(line, r"python3 -c 'print('\''hi there'\'')' ''");
    }
}
