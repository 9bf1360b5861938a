//! Accepting jobs: many submits in one transaction.

use std::collections::{HashMap, VecDeque};

use sqlx::{Connection as _, PgConnection};
use tessera_control::notifications::{ChangedJob, JobFacts, NotificationRules};
use tessera_model::life::JobState;
use tessera_model::spec::JobSpec;
use tessera_model::{GangMember, JobId};

use super::columns::{RowRef, integer, job_number, json_text};
use super::{StoreError, audit, notifications};
use crate::requests::{AcceptedSubmission, NewSubmission, RequestError};
use tessera_control::predictions::TaskFacts;
use tessera_control::rows::submitted::SubmittedJob;

/// The result of a batch.
#[derive(Debug, Default)]
pub struct Committed {
    /// One answer a submission, in order.
    pub answers: Vec<Result<AcceptedSubmission, RequestError>>,
    /// The jobs that are queued now.
    pub queued: Vec<SubmittedJob>,
    /// Whether there is anything new to deliver out of the cluster.
    pub has_notifications: bool,
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

/// Inserts every submission of the batch in one statement, which is its own transaction:
/// when this returns, all that were accepted are on disk.
///
/// A submission whose key was used before is answered with the job of that time, also if both
/// are in this very batch.
///
/// # Errors
///
/// [`StoreError::Unavailable`]: nothing of the batch was accepted, or its commit's outcome is
/// unknown; clients that gave a key may safely repeat.
pub async fn insert_submissions(
    connection: &mut PgConnection,
    batch: &[NewSubmission],
    numbers: &Numbers,
    leaving: &NotificationRules,
) -> Result<Committed, StoreError> {
    let known = known_keys(connection, batch).await?;
    let mut plan = InsertPlan::new(batch, known);
    let mut has_notifications = false;
    if plan.numbers_needed > 0 {
        let arrays = batch.iter().any(|submission| submission.tasks > 1);
        let numbers = numbers.take(connection, plan.numbers_needed, arrays).await?;
        plan.number(batch, &numbers)?;
        has_notifications = match leaving.webhook.is_empty() {
            // One statement is its own transaction.
            true => insert_rows(connection, batch, &plan).await.map(|()| false)?,
            false => insert_with_notices(connection, batch, &plan, leaving).await?,
        };
    }
    Ok(Committed { has_notifications, ..plan.committed(batch) })
}

type Key<'b> = (&'b str, &'b str);

/// The submission that used a key before.
#[derive(Clone, Copy, Debug)]
struct EarlierSubmission {
    job: JobId,
    tasks: u32,
    body_hash: [u8; 32],
}

async fn known_keys<'b>(
    connection: &mut PgConnection,
    batch: &'b [NewSubmission],
) -> Result<HashMap<Key<'b>, EarlierSubmission>, StoreError> {
    let keys: Vec<Key<'b>> = batch.iter().filter_map(key_of).collect();
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let principals: Vec<_> = keys.iter().map(|(name, _)| (*name).to_owned()).collect();
    let names: Vec<_> = keys.iter().map(|(_, key)| (*key).to_owned()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT COALESCE(s.principal, s.user_name) AS "principal!", s.idempotency_key AS "key!",
               s.body_hash AS "body_hash!", s.first_job, s.tasks
          FROM submissions AS s
          JOIN UNNEST($1::text[], $2::text[]) AS k (principal, key)
            ON COALESCE(s.principal, s.user_name) = k.principal AND s.idempotency_key = k.key
        "#,
        &principals,
        &names,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("look up idempotency keys"))?;
    let mut known = HashMap::new();
    for found in rows {
        let row = RowRef::new(TABLE, found.first_job);
        let earlier = EarlierSubmission {
            job: row.job("first_job", found.first_job)?,
            tasks: row.number("tasks", found.tasks)?,
            body_hash: found
                .body_hash
                .as_slice()
                .try_into()
                .map_err(row.corrupt::<std::array::TryFromSliceError>("body_hash"))?,
        };
        let is_of = |(name, key): &&Key<'b>| *name == found.principal && *key == found.key;
        if let Some(key) = keys.iter().find(is_of) {
            known.insert(*key, earlier);
        }
    }
    Ok(known)
}

fn key_of(submission: &NewSubmission) -> Option<Key<'_>> {
    submission.idempotency.as_ref().map(|i| (&*submission.principal, i.key.as_str()))
}

impl Numbers {
    /// Takes `count` numbers, consecutive ones if `consecutive`.
    async fn take(
        &self,
        connection: &mut PgConnection,
        count: u32,
        consecutive: bool,
    ) -> Result<Vec<i64>, StoreError> {
        // Held while drawing, so that no other draw is between two of these.
        let mut spare = self.spare.lock().await;
        if consecutive || count < AHEAD_FROM {
            return draw_numbers(connection, count).await;
        }
        let needed = usize_of(count);
        if spare.len() < needed {
            spare.extend(draw_numbers(connection, count.saturating_add(AHEAD)).await?);
        }
        Ok(spare.drain(..needed).collect())
    }
}

async fn draw_numbers(connection: &mut PgConnection, count: u32) -> Result<Vec<i64>, StoreError> {
    sqlx::query_scalar!(
        r#"SELECT nextval('job_number') AS "number!" FROM generate_series(1, $1)"#,
        integer(count),
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("draw job numbers"))
}

const TABLE: &str = "submissions";

/// How one submission of a batch is handled.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is inserted; its first number once numbers are drawn.
    Insert { first: Option<JobId> },
    /// It repeats an earlier one.
    Replay(EarlierSubmission),
    /// It repeats the submission at this place of the batch.
    SameAs(usize),
    /// Its key was used for something else.
    KeyReused,
}

#[derive(Debug)]
struct InsertPlan {
    fates: Vec<Fate>,
    numbers_needed: u32,
}

impl InsertPlan {
    fn new(batch: &[NewSubmission], known: HashMap<Key<'_>, EarlierSubmission>) -> Self {
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
                let tasks = usize_of(submission.tasks);
                let (mine, rest) = left.split_at_checked(tasks).unwrap_or((left, &[]));
                // Another controller's draws may lie between ours: an array needs one block.
                if mine.windows(2).any(|pair| pair[1] != pair[0] + 1) {
                    return Err(StoreError::Conflict {
                        action: "draw consecutive job numbers",
                        expected: tasks,
                        changed: 0,
                    });
                }
                *first = mine
                    .first()
                    .map(|number| RowRef::new(TABLE, number).job("first_job", *number))
                    .transpose()?;
                left = rest;
            }
        }
        Ok(())
    }

    fn committed(self, batch: &[NewSubmission]) -> Committed {
        let mut committed = Committed::default();
        for (place, submission) in batch.iter().enumerate() {
            let answer = match self.resolve(place) {
                Fate::Insert { first: Some(job) } => {
                    Ok(AcceptedSubmission { job, tasks: submission.tasks, replayed: false })
                }
                Fate::Insert { first: None } => Err(RequestError::Unavailable {
                    reason: "no job number was drawn for the submission".to_owned(),
                }),
                Fate::Replay(known) => {
                    Ok(AcceptedSubmission { job: known.job, tasks: known.tasks, replayed: true })
                }
                Fate::SameAs(_) | Fate::KeyReused => Err(RequestError::KeyReused),
            };
            if let (Fate::Insert { .. }, Ok(accepted)) = (self.fates[place], &answer)
                && !submission.hold
            {
                committed.queued.extend(submitted_jobs(accepted, &submission.spec));
            }
            let repeats = matches!(self.fates[place], Fate::SameAs(_));
            committed
                .answers
                .push(answer.map(|a| AcceptedSubmission { replayed: a.replayed || repeats, ..a }));
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

fn submitted_jobs(accepted: &AcceptedSubmission, spec: &JobSpec) -> Vec<SubmittedJob> {
    let first = accepted.job.number();
    let one = SubmittedJob::new(accepted.job, spec, None, 0);
    let task = |job: JobId| {
        let gang = spec.gang.and_then(|shape| GangMember::of(job, accepted.job, shape));
        SubmittedJob { job, gang, array: Some(accepted.job), ..one.clone() }
    };
    (first..first + u64::from(accepted.tasks)).map(JobId::from_number).map(task).collect()
}

/// Inserts submissions and the notices of their jobs' first states in one transaction.
async fn insert_with_notices(
    connection: &mut PgConnection,
    batch: &[NewSubmission],
    plan: &InsertPlan,
    leaving: &NotificationRules,
) -> Result<bool, StoreError> {
    let action = "accept jobs with their notices";
    let mut transaction = connection.begin().await.map_err(StoreError::while_trying_to(action))?;
    insert_rows(&mut transaction, batch, plan).await?;
    let (mut changes, mut facts) = (Vec::new(), HashMap::new());
    for (submission, fate) in batch.iter().zip(&plan.fates) {
        let Fate::Insert { first: Some(first) } = fate else { continue };
        let state = first_state(submission);
        let known = JobFacts {
            submission: *first,
            tasks: submission.tasks,
            name: submission.spec.name.clone(),
            user: submission.spec.user.clone(),
            mail: None,
        };
        let last = first.number() + u64::from(submission.tasks);
        for job in (first.number()..last).map(JobId::from_number) {
            changes.push(ChangedJob::submitted(job, state));
            facts.insert(job, known.clone());
        }
    }
    let has_any =
        notifications::record_submits(&mut transaction, &changes, &facts, leaving).await?;
    transaction.commit().await.map_err(StoreError::while_trying_to(action))?;
    Ok(has_any)
}

/// Returns the state that the jobs of a submission begin in.
const fn first_state(submission: &NewSubmission) -> JobState {
    if submission.hold { JobState::Held } else { JobState::Queued }
}

async fn insert_rows(
    connection: &mut PgConnection,
    batch: &[NewSubmission],
    plan: &InsertPlan,
) -> Result<(), StoreError> {
    let inserted = batch.iter().zip(&plan.fates).filter_map(|(submission, fate)| match fate {
        Fate::Insert { first } => Some((submission, (*first)?)),
        Fate::Replay(_) | Fate::SameAs(_) | Fate::KeyReused => None,
    });
    let entries = audit::submit_entries(inserted.clone());
    let columns = SubmissionColumns::of(inserted);
    // By column: as JSON, PostgreSQL would read each specification three times.
    let inserted = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM UNNEST($1::bigint[], $2::integer[], $3::integer[], $4::text[], $5::text[], $6::text[],
                          $7::text[], $8::text[], $9::bytea[], $10::text[], $11::text[], $12::text[],
                          $13::text[], $14::text[], $15::text[], $16::boolean[])
                AS u (first_job, tasks, array_first, job_name, user_name, spec,
                      traceparent, idempotency_key, body_hash, state, facts, principal,
                      origin, depends_on, partition, mails)
        ), a AS (
            INSERT INTO audit_log (principal, role, origin, action, object, status)
            SELECT e.principal, e.role, e.origin, 'POST /v1/jobs', e.object, 201
              FROM json_to_recordset($17::text::json)
                AS e (principal text, role text, origin text, object text)
        ), s AS (
            INSERT INTO submissions (first_job, tasks, array_first, job_name, user_name, spec,
                                     traceparent, idempotency_key, body_hash, facts,
                                     principal, origin, depends_on, partition, mails)
            SELECT u.first_job, u.tasks, u.array_first, u.job_name, u.user_name, u.spec::json,
                   u.traceparent, u.idempotency_key, u.body_hash, u.facts::jsonb, u.principal,
                   u.origin, u.depends_on::bigint[], u.partition, u.mails
              FROM u
        )
        INSERT INTO jobs (job, submission, state)
        SELECT u.first_job + t.i, u.first_job, u.state
          FROM u
         CROSS JOIN LATERAL generate_series(0, u.tasks - 1) AS t (i)
        "#,
        &columns.first_job,
        &columns.tasks,
        &columns.array_first as &[Option<i32>],
        &columns.job_name as &[&str],
        &columns.user_name as &[&str],
        &columns.spec,
        &columns.traceparent as &[Option<&str>],
        &columns.idempotency_key as &[Option<&str>],
        &columns.body_hash as &[Option<&[u8]>],
        &columns.state as &[&str],
        &columns.facts,
        &columns.principal as &[Option<&str>],
        &columns.origin as &[&str],
        &columns.depends_on as &[Option<String>],
        &columns.partition as &[Option<&str>],
        &columns.mails as &[Option<bool>],
        json_text(&entries),
    )
    .execute(connection)
    .await
    .map_err(|cause| match &cause {
        // Two controllers, or two writers of one, met with one key: the loser looks again.
        sqlx::Error::Database(database) if database.is_unique_violation() => StoreError::Conflict {
            action: "accept jobs under new keys",
            expected: columns.first_job.len(),
            changed: 0,
        },
        _ => StoreError::Unavailable { action: "insert jobs", cause },
    })?;
    StoreError::check_changed(
        "insert jobs",
        usize_of(plan.numbers_needed),
        inserted.rows_affected(),
    )
}

/// Submissions, as the statement that inserts them and their jobs reads them.
#[derive(Debug, Default)]
struct SubmissionColumns<'a> {
    first_job: Vec<i64>,
    tasks: Vec<i32>,
    array_first: Vec<Option<i32>>,
    job_name: Vec<&'a str>,
    user_name: Vec<&'a str>,
    /// As JSON.
    spec: Vec<String>,
    traceparent: Vec<Option<&'a str>>,
    idempotency_key: Vec<Option<&'a str>>,
    body_hash: Vec<Option<&'a [u8]>>,
    state: Vec<&'static str>,
    /// As JSON.
    facts: Vec<String>,
    /// Absent where it is the user.
    principal: Vec<Option<&'a str>>,
    origin: Vec<&'a str>,
    /// As PostgreSQL writes arrays: the elements of an array of arrays must have one length.
    depends_on: Vec<Option<String>>,
    partition: Vec<Option<&'a str>>,
    /// Absent where no mail is requested.
    mails: Vec<Option<bool>>,
}

impl<'a> SubmissionColumns<'a> {
    fn of(submissions: impl Iterator<Item = (&'a NewSubmission, JobId)>) -> Self {
        let mut columns = Self::default();
        for (submission, first) in submissions {
            columns.add(submission, first);
        }
        columns
    }

    fn add(&mut self, submission: &'a NewSubmission, first: JobId) {
        let spec = &*submission.spec;
        let idempotency = submission.idempotency.as_ref();
        let principal = Some(&*submission.principal).filter(|name| *name != spec.user);
        let depends_on = spec.dependency.as_ref().map(|on| {
            let jobs: Vec<String> = on.jobs().map(|job| job_number(job).to_string()).collect();
            format!("{{{}}}", jobs.join(","))
        });
        self.first_job.push(job_number(first));
        self.tasks.push(integer(submission.tasks));
        self.array_first.push(submission.array_first.map(integer));
        self.job_name.push(&spec.name);
        self.user_name.push(&spec.user);
        self.spec.push(json_text(spec));
        self.traceparent.push(submission.traceparent.as_deref());
        self.idempotency_key.push(idempotency.map(|known| known.key.as_str()));
        self.body_hash.push(idempotency.map(|known| &known.body_hash[..]));
        self.state.push(first_state(submission).word());
        self.facts.push(json_text(&TaskFacts::of(spec)));
        self.principal.push(principal);
        self.origin.push(&submission.origin);
        self.depends_on.push(depends_on);
        self.partition.push(spec.partition.as_deref());
        self.mails.push(spec.mail.as_ref().map(|_| true));
    }
}

/// Returns a count as an index; targets with less than 32 bits are not supported.
fn usize_of(count: u32) -> usize {
    usize::try_from(count).expect("a count of 32 bits fits the address space")
}
