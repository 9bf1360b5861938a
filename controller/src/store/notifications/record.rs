//! Writes notifications in the transaction of the changes that they are about.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use sqlx::PgConnection;
use sqlx::types::Json;
use tessera_control::Round;
use tessera_control::notifications::{
    ChangedJob, JobFacts, MailFacts, Notification, NotificationBody, NotificationRules,
    RoundNotifications, notify,
};
use tessera_model::JobId;
use tessera_model::ids::BadId;
use tessera_model::life::JobState;
use tessera_model::mail::MailType;
use tessera_model::spec::{JobSpec, JobUpdate};
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::columns::{RowRef, bigint, integer, job_number, json_text, row_count};

/// Writes the notifications that a round causes, at its end. Returns whether there is anything to
/// deliver.
///
/// # Errors
///
/// [`StoreError::Unavailable`], [`StoreError::Corrupt`].
pub(in crate::store) async fn record_round(
    connection: &mut PgConnection,
    round: &Round,
    moved: &[Option<JobState>],
    rules: &NotificationRules,
) -> Result<bool, StoreError> {
    if rules.is_silent() {
        return Ok(false);
    }
    let mut has_news = false;
    if rules.mail && !round.jobs.updated.is_empty() {
        let jobs: Vec<_> = round.jobs.updated.iter().map(|update| job_number(update.job)).collect();
        has_news = look_at_marks_again(connection, &jobs).await?;
    }
    let changes = round.changed_jobs(moved);
    if changes.is_empty() {
        return Ok(has_news);
    }
    let facts = read_facts(connection, &changes, rules).await?;
    let found = notify(&changes, &facts, rules);
    insert(connection, &found).await?;
    Ok(has_news || !found.rows.is_empty())
}

/// Writes the notifications that submits cause, which request no mail. Returns whether there is
/// anything to deliver.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub(in crate::store) async fn record_submits(
    connection: &mut PgConnection,
    changes: &[ChangedJob],
    facts: &HashMap<JobId, JobFacts>,
    rules: &NotificationRules,
) -> Result<bool, StoreError> {
    let found = notify(changes, facts, rules);
    insert(connection, &found).await?;
    Ok(!found.rows.is_empty())
}

/// Schedules the mails about parts of time limits to be checked again, since the limits may have
/// changed.
async fn look_at_marks_again(
    connection: &mut PgConnection,
    jobs: &[i64],
) -> Result<bool, StoreError> {
    let changed = sqlx::query!(
        "UPDATE notifications SET due_at = now() WHERE job = ANY ($1) AND attempt IS NOT NULL",
        jobs,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("check mails about time limits again"))?;
    Ok(changed.rows_affected() > 0)
}

/// Reads what is known about jobs that changed. Jobs without possible notifications are left out.
async fn read_facts(
    connection: &mut PgConnection,
    changes: &[ChangedJob],
    rules: &NotificationRules,
) -> Result<HashMap<JobId, JobFacts>, StoreError> {
    let mut jobs: Vec<_> = changes.iter().map(|change| job_number(change.job)).collect();
    jobs.sort_unstable();
    jobs.dedup();
    let rows = sqlx::query!(
        r#"
        SELECT j.job, s.first_job, s.tasks, s.job_name, s.user_name, s.mailed,
               CASE WHEN s.mails THEN s.spec END AS "spec: Json<JobSpec>",
               CASE WHEN s.mails THEN j.updates END AS "updates: Json<JobUpdate>"
          FROM UNNEST($1::bigint[]) AS u (job)
          JOIN jobs AS j ON j.job = u.job
          JOIN submissions AS s ON s.first_job = j.submission
         WHERE $2 OR s.mails
        "#,
        &jobs,
        !rules.webhook.is_empty(),
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to("read the jobs that changed their states"))?;
    let mut facts = HashMap::with_capacity(rows.len());
    for found in rows {
        let row = RowRef::new("submissions", found.first_job);
        let submission = row.job("first_job", found.first_job)?;
        let mailed = found.mailed.unwrap_or_default();
        let mailed = mailed.iter().map(|word| word.parse().map_err(row.corrupt::<BadId>("mailed")));
        let mailed = mailed.collect::<Result<Vec<MailType>, _>>()?;
        let update = found.updates.map(|update| update.0).unwrap_or_default();
        let known = JobFacts {
            submission,
            tasks: row.number("tasks", found.tasks)?,
            name: found.job_name,
            user: found.user_name,
            mail: found.spec.and_then(|spec| mail_facts(spec.0, &update, mailed)),
        };
        facts.insert(row.job("job", found.job)?, known);
    }
    tally_arrays(connection, changes, &mut facts).await?;
    Ok(facts)
}

fn mail_facts(mut spec: JobSpec, update: &JobUpdate, mailed: Vec<MailType>) -> Option<MailFacts> {
    update.apply_to(&mut spec);
    Some(MailFacts {
        rules: spec.mail?,
        is_gang: spec.gang.is_some(),
        limit: spec.run.time_limit,
        mailed,
        is_over: false,
        failed: 0,
    })
}

/// Adds how the arrays ended whose last tasks may have ended.
async fn tally_arrays(
    connection: &mut PgConnection,
    changes: &[ChangedJob],
    facts: &mut HashMap<JobId, JobFacts>,
) -> Result<(), StoreError> {
    let ended = changes.iter().filter(|change| change.state.is_final());
    let arrays: BTreeMap<JobId, u32> = ended
        .filter_map(|change| facts.get(&change.job))
        .filter(|known| known.tasks > 1)
        .filter(|known| known.mail.as_ref().is_some_and(|mail| !mail.is_gang))
        .map(|known| (known.submission, known.tasks))
        .collect();
    if arrays.is_empty() {
        return Ok(());
    }
    let first: Vec<_> = arrays.keys().copied().map(job_number).collect();
    let tasks: Vec<_> = arrays.values().copied().map(integer).collect();
    let rows = sqlx::query!(
        r#"
        SELECT u.first_job AS "first_job!", f.failed
          FROM UNNEST($1::bigint[], $2::integer[]) AS u (first_job, tasks)
         CROSS JOIN LATERAL (
             SELECT CASE WHEN NOT EXISTS (
                        SELECT FROM jobs AS o
                         WHERE o.job BETWEEN u.first_job AND u.first_job + u.tasks - 1
                           AND o.ended_at IS NULL)
                    THEN (SELECT COUNT(*)
                            FROM jobs AS t
                           WHERE t.job BETWEEN u.first_job AND u.first_job + u.tasks - 1
                             AND t.state IN ('failed', 'timed_out'))
                    END AS failed) AS f
        "#,
        &first,
        &tasks,
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("count how the tasks of arrays ended"))?;
    for found in rows {
        let Some(failed) = found.failed else { continue };
        let submission = RowRef::new("jobs", found.first_job).job("job", found.first_job)?;
        let of_it = facts.values_mut().filter(|known| known.submission == submission);
        for mail in of_it.filter_map(|known| known.mail.as_mut()) {
            (mail.is_over, mail.failed) = (true, row_count(failed));
        }
    }
    Ok(())
}

async fn insert(
    connection: &mut PgConnection,
    found: &RoundNotifications,
) -> Result<(), StoreError> {
    if found.rows.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = found.rows.iter().map(OutboxRecord::of).collect();
    sqlx::query!(
        r#"
        INSERT INTO notifications (channel, job, attempt, event, body, created_at, due_at)
        SELECT u.channel, u.job, u.attempt, u.event, u.body, d.at, d.at
          FROM json_to_recordset($1::text::json)
            AS u (channel text, job bigint, attempt uuid, event text, body jsonb, due_ms bigint)
         CROSS JOIN LATERAL (
             SELECT COALESCE(timestamptz 'epoch' + u.due_ms * interval '1 millisecond', now())) AS d (at)
        "#,
        json_text(&rows),
    )
    .execute(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to("write notifications"))?;
    let once = found.mailed.iter();
    let once = once.flat_map(|(job, types)| types.iter().map(|kind| (job_number(*job), kind)));
    let (jobs, types): (Vec<_>, Vec<_>) =
        once.map(|(job, kind)| (job, kind.word().to_owned())).unzip();
    if jobs.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        UPDATE submissions SET mailed = COALESCE(submissions.mailed, '{}') || u.types
          FROM (SELECT n.first_job, array_agg(n.type) AS types
                  FROM UNNEST($1::bigint[], $2::text[]) AS n (first_job, type)
                 GROUP BY n.first_job) AS u
         WHERE submissions.first_job = u.first_job
        "#,
        &jobs,
        &types,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("remember what is mailed once"))
    .map(drop)
}

/// A notification, as the statement reads it.
#[derive(Debug, Serialize)]
struct OutboxRecord<'a> {
    channel: &'static str,
    job: i64,
    attempt: Option<Uuid>,
    event: &'static str,
    body: &'a NotificationBody,
    due_ms: Option<i64>,
}

impl<'a> OutboxRecord<'a> {
    fn of(row: &'a Notification) -> Self {
        Self {
            channel: row.channel.word(),
            job: job_number(row.job),
            attempt: row.attempt.map(|attempt| attempt.as_uuid()),
            event: row.event,
            body: &row.body,
            due_ms: row.due.map(|due| bigint(due.get())),
        }
    }
}
