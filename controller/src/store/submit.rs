//! Accepting jobs: many submits in one transaction.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sqlx::PgConnection;
use tessera_model::spec::{GpuAsk, JobSpec, Priority};
use tessera_model::{JobId, Member, Millis};
use tessera_placement::Sharer;

use super::StoreError;
use crate::core::foresight::Facts;
use crate::ports::{Accepted, NewSubmission, PortError};

/// A job that was committed just now, as far as the placer needs it.
#[derive(Clone, Debug)]
pub struct FreshJob {
    /// Its number.
    pub job: JobId,
    /// Its place in its gang, if it is in one.
    pub gang: Option<Member>,
    /// What it asks for.
    pub gpu: GpuAsk,
    /// Whose it is.
    pub user: Arc<str>,
    /// Its part of a slice, if it may share one.
    pub share: Option<Sharer>,
    /// Its rank.
    pub priority: Priority,
    /// Attempts so far.
    pub attempts: u32,
    /// What is weighed of it.
    pub facts: Arc<Facts>,
    /// How long ago it was accepted.
    pub waited: Millis,
    /// How much of its work was put aside, in millionths.
    pub done: u32,
}

impl FreshJob {
    /// Takes from a specification what decides about places.
    pub fn new(job: JobId, spec: &JobSpec, gang: Option<Member>, attempts: u32) -> Self {
        Self {
            job,
            gang,
            gpu: spec.gpu.clone(),
            user: spec.user.as_str().into(),
            share: sharer(spec),
            priority: spec.priority,
            attempts,
            facts: Arc::new(Facts::of(spec)),
            waited: Millis::ZERO,
            done: 0,
        }
    }
}

/// Returns a job's part of a slice, if it may share one.
pub fn sharer(spec: &JobSpec) -> Option<Sharer> {
    spec.share.part().map(|share| Sharer::new(spec.user.as_str(), share))
}

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Committed {
    /// One answer a submission, in order.
    pub answers: Vec<Result<Accepted, PortError>>,
    /// The jobs that are queued now.
    pub queued: Vec<FreshJob>,
}

/// Job numbers that were drawn and are not given out yet, shared by concurrent writers.
#[derive(Debug, Default)]
pub struct Numbers {
    spare: tokio::sync::Mutex<VecDeque<i64>>,
}

/// From this many numbers a batch on, a block is drawn ahead for the next batches: under load
/// each saves a round trip. A restart leaves at most such a block as a gap.
const AHEAD_FROM: u32 = 16;
/// How many numbers are drawn ahead.
const AHEAD: u32 = 512;

/// Inserts every submission of the batch in one statement, which is a transaction of its own:
/// when this returns, all that were accepted are on disk.
///
/// A submission whose key was used before is answered with the job of that time, also if both
/// are in this very batch.
///
/// # Errors
///
/// [`StoreError::Unavailable`]: nothing of the batch was accepted, or its commit's outcome is
/// unknown; clients that gave a key may safely repeat.
pub async fn insert(
    connection: &mut PgConnection,
    batch: &[NewSubmission],
    numbers: &Numbers,
) -> Result<Committed, StoreError> {
    let known = known_keys(connection, batch).await?;
    let mut plan = Plan::new(batch, known);
    if plan.numbers_needed > 0 {
        let arrays = batch.iter().any(|submission| submission.tasks > 1);
        let numbers = numbers.take(connection, plan.numbers_needed, arrays).await?;
        plan.number(batch, &numbers)?;
        insert_rows(connection, batch, &plan).await?;
    }
    Ok(plan.committed(batch))
}

type Key<'b> = (&'b str, &'b str);

/// The job that a key stands for, and what was asked for then.
#[derive(Clone, Copy, Debug)]
struct Known {
    job: JobId,
    tasks: u32,
    body_hash: [u8; 32],
}

async fn known_keys<'b>(
    connection: &mut PgConnection,
    batch: &'b [NewSubmission],
) -> Result<HashMap<Key<'b>, Known>, StoreError> {
    let keys: Vec<Key<'b>> = batch.iter().filter_map(key_of).collect();
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let users: Vec<_> = keys.iter().map(|(user, _)| (*user).to_owned()).collect();
    let names: Vec<_> = keys.iter().map(|(_, key)| (*key).to_owned()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT s.user_name, s.idempotency_key AS "key!", s.body_hash AS "body_hash!",
               s.first_job, s.tasks
          FROM submissions AS s
          JOIN UNNEST($1::text[], $2::text[]) AS k (user_name, key)
            ON s.user_name = k.user_name AND s.idempotency_key = k.key
        "#,
        &users,
        &names,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("look up idempotency keys"))?;
    let mut known = HashMap::new();
    for row in rows {
        let found = Known {
            job: job_id(row.first_job)?,
            tasks: u32::try_from(row.tasks).unwrap_or(0),
            body_hash: row.body_hash.as_slice().try_into().unwrap_or([0; 32]),
        };
        if let Some(key) = keys.iter().find(|(u, k)| *u == row.user_name && *k == row.key) {
            known.insert(*key, found);
        }
    }
    Ok(known)
}

fn key_of(submission: &NewSubmission) -> Option<Key<'_>> {
    submission.idempotency.as_ref().map(|i| (submission.spec.user.as_str(), i.key.as_str()))
}

impl Numbers {
    /// Takes `count` numbers, consecutive ones if `consecutive`.
    async fn take(
        &self,
        connection: &mut PgConnection,
        count: u32,
        consecutive: bool,
    ) -> Result<Vec<i64>, StoreError> {
        // Held while drawing: so that nobody else's draw comes between two of ours.
        let mut spare = self.spare.lock().await;
        if consecutive || count < AHEAD_FROM {
            return draw_numbers(connection, count).await;
        }
        let wanted = usize::try_from(count).unwrap_or(usize::MAX);
        if spare.len() < wanted {
            spare.extend(draw_numbers(connection, count.saturating_add(AHEAD)).await?);
        }
        Ok(spare.drain(..wanted).collect())
    }
}

async fn draw_numbers(connection: &mut PgConnection, count: u32) -> Result<Vec<i64>, StoreError> {
    sqlx::query_scalar!(
        r#"SELECT nextval('job_number') AS "number!" FROM generate_series(1, $1)"#,
        i32::try_from(count).unwrap_or(i32::MAX),
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("draw job numbers"))
}

fn job_id(number: i64) -> Result<JobId, StoreError> {
    u64::try_from(number).map(JobId::from_number).map_err(|_| StoreError::Corrupt {
        table: "submissions",
        row: number.to_string(),
        problem: "a job's number is positive".to_owned(),
    })
}

/// What is to become of one submission of a batch.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is inserted; its first number once numbers are drawn.
    Insert { first: Option<i64> },
    /// It repeats an earlier one.
    Replay(Known),
    /// It repeats the submission at this place of the batch.
    SameAs(usize),
    /// Its key stands for something else.
    KeyReused,
}

#[derive(Debug)]
struct Plan {
    fates: Vec<Fate>,
    numbers_needed: u32,
}

impl Plan {
    fn new(batch: &[NewSubmission], known: HashMap<Key<'_>, Known>) -> Self {
        let mut first_use: HashMap<Key<'_>, usize> = HashMap::new();
        let mut numbers_needed = 0_u32;
        let mut fates = Vec::with_capacity(batch.len());
        for (place, submission) in batch.iter().enumerate() {
            let hash = submission.idempotency.as_ref().map(|i| i.body_hash);
            let fate = match key_of(submission) {
                Some(key) if known.contains_key(&key) => {
                    let found = known[&key];
                    if Some(found.body_hash) == hash {
                        Fate::Replay(found)
                    } else {
                        Fate::KeyReused
                    }
                }
                Some(key) => match first_use.get(&key) {
                    Some(first) => {
                        let earlier = batch[*first].idempotency.as_ref().map(|i| i.body_hash);
                        if earlier == hash { Fate::SameAs(*first) } else { Fate::KeyReused }
                    }
                    None => {
                        first_use.insert(key, place);
                        Fate::Insert { first: None }
                    }
                },
                None => Fate::Insert { first: None },
            };
            if matches!(fate, Fate::Insert { .. }) {
                numbers_needed = numbers_needed.saturating_add(submission.tasks);
            }
            fates.push(fate);
        }
        Self { fates, numbers_needed }
    }

    fn number(&mut self, batch: &[NewSubmission], numbers: &[i64]) -> Result<(), StoreError> {
        let mut left = numbers;
        for (submission, fate) in batch.iter().zip(&mut self.fates) {
            if let Fate::Insert { first } = fate {
                let tasks = usize::try_from(submission.tasks).unwrap_or(usize::MAX);
                let (mine, rest) = left.split_at_checked(tasks).unwrap_or((left, &[]));
                // Another controller's draws may lie between ours: an array needs one block.
                if mine.windows(2).any(|pair| pair[1] != pair[0] + 1) {
                    return Err(StoreError::Moved {
                        action: "draw consecutive job numbers",
                        expected: tasks,
                        moved: 0,
                    });
                }
                *first = mine.first().copied();
                left = rest;
            }
        }
        Ok(())
    }

    fn committed(self, batch: &[NewSubmission]) -> Committed {
        let mut committed = Committed::default();
        for (place, submission) in batch.iter().enumerate() {
            let answer = match self.resolve(place) {
                Fate::Insert { first } => Ok(accepted(first, submission.tasks, false)),
                Fate::Replay(known) => {
                    Ok(Accepted { job: known.job, tasks: known.tasks, replayed: true })
                }
                Fate::SameAs(_) | Fate::KeyReused => Err(PortError::KeyReused),
            };
            if let (Fate::Insert { .. }, Ok(accepted)) = (self.fates[place], &answer)
                && !submission.hold
            {
                committed.queued.extend(fresh_jobs(accepted, &submission.spec));
            }
            let repeats = matches!(self.fates[place], Fate::SameAs(_));
            committed
                .answers
                .push(answer.map(|a| Accepted { replayed: a.replayed || repeats, ..a }));
        }
        committed
    }

    /// Follows a repetition to the submission that it repeats, which is never one itself.
    fn resolve(&self, place: usize) -> Fate {
        match self.fates[place] {
            Fate::SameAs(first) => self.fates[first],
            fate => fate,
        }
    }
}

fn accepted(first: Option<i64>, tasks: u32, replayed: bool) -> Accepted {
    let number = first.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    Accepted { job: JobId::from_number(number), tasks, replayed }
}

fn fresh_jobs(accepted: &Accepted, spec: &JobSpec) -> Vec<FreshJob> {
    let first = accepted.job.number();
    let one = FreshJob::new(accepted.job, spec, None, 0);
    let task = |job: JobId| {
        let gang = spec.gang.and_then(|shape| Member::of(job, accepted.job, shape));
        FreshJob { job, gang, ..one.clone() }
    };
    (first..first + u64::from(accepted.tasks)).map(JobId::from_number).map(task).collect()
}

async fn insert_rows(
    connection: &mut PgConnection,
    batch: &[NewSubmission],
    plan: &Plan,
) -> Result<(), StoreError> {
    let mut rows = Columns::default();
    for (submission, fate) in batch.iter().zip(&plan.fates) {
        if let Fate::Insert { first: Some(first) } = fate {
            rows.push(submission, *first)?;
        }
    }
    let inserted = sqlx::query!(
        r#"
        WITH s AS (
            INSERT INTO submissions (first_job, tasks, array_first, job_name, user_name, spec,
                                     traceparent, idempotency_key, body_hash, facts)
            SELECT u.first_job, u.tasks, u.array_first, u.job_name, u.user_name, u.spec::json,
                   u.traceparent, u.idempotency_key, u.body_hash, u.facts::jsonb
              FROM UNNEST($1::bigint[], $2::integer[], $3::integer[], $4::text[], $5::text[],
                          $6::text[], $7::text[], $8::text[], $9::bytea[], $11::text[])
                AS u (first_job, tasks, array_first, job_name, user_name, spec, traceparent,
                      idempotency_key, body_hash, facts)
            RETURNING first_job
        )
        INSERT INTO jobs (job, submission, state)
        SELECT u.first_job + t.i, u.first_job, u.state
          FROM UNNEST($1::bigint[], $2::integer[], $10::text[]) AS u (first_job, tasks, state)
         CROSS JOIN LATERAL generate_series(0, u.tasks - 1) AS t (i)
        "#,
        &rows.first_job,
        &rows.tasks,
        &rows.array_first as &[Option<i32>],
        &rows.job_name,
        &rows.user_name,
        &rows.spec,
        &rows.traceparent as &[Option<String>],
        &rows.idempotency_key as &[Option<String>],
        &rows.body_hash as &[Option<Vec<u8>>],
        &rows.state,
        &rows.facts,
    )
    .execute(connection)
    .await
    .map_err(|cause| match &cause {
        // Two controllers, or two writers of one, met with one key: the loser looks again.
        sqlx::Error::Database(database) if database.is_unique_violation() => StoreError::Moved {
            action: "accept jobs under new keys",
            expected: rows.first_job.len(),
            moved: 0,
        },
        _ => StoreError::Unavailable { action: "insert jobs", cause },
    })?;
    let jobs = usize::try_from(plan.numbers_needed).unwrap_or(usize::MAX);
    StoreError::check_moved("insert jobs", jobs, inserted.rows_affected())
}

/// The columns of a batch, one vector each, as `UNNEST` takes them.
#[derive(Debug, Default)]
struct Columns {
    first_job: Vec<i64>,
    tasks: Vec<i32>,
    array_first: Vec<Option<i32>>,
    job_name: Vec<String>,
    user_name: Vec<String>,
    spec: Vec<String>,
    traceparent: Vec<Option<String>>,
    idempotency_key: Vec<Option<String>>,
    body_hash: Vec<Option<Vec<u8>>>,
    state: Vec<String>,
    facts: Vec<String>,
}

impl Columns {
    fn push(&mut self, submission: &NewSubmission, first: i64) -> Result<(), StoreError> {
        let unwritable = |e: serde_json::Error| StoreError::Corrupt {
            table: "submissions",
            row: first.to_string(),
            problem: e.to_string(),
        };
        let spec = serde_json::to_string(&*submission.spec).map_err(unwritable)?;
        let facts = serde_json::to_string(&Facts::of(&submission.spec)).map_err(unwritable)?;
        self.facts.push(facts);
        self.first_job.push(first);
        self.tasks.push(i32::try_from(submission.tasks).unwrap_or(i32::MAX));
        self.array_first.push(submission.array_first.and_then(|i| i32::try_from(i).ok()));
        self.job_name.push(submission.spec.name.clone());
        self.user_name.push(submission.spec.user.clone());
        self.spec.push(spec);
        self.traceparent.push(submission.traceparent.clone());
        self.idempotency_key.push(submission.idempotency.as_ref().map(|i| i.key.clone()));
        self.body_hash.push(submission.idempotency.as_ref().map(|i| i.body_hash.to_vec()));
        self.state.push(if submission.hold { "held" } else { "queued" }.to_owned());
        Ok(())
    }
}
