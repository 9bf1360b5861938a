//! What is said of jobs: why they wait, other parts, commands.

use std::collections::{BTreeMap, HashMap};

use sqlx::PgConnection;
use tessera_model::JobId;
use tessera_model::ids::BadId;
use tessera_model::life::JobState;
use tessera_model::share::SmPercent;

use super::{Change, Command, Reshared, WaitRow, json, number, signed};
use crate::ports::Terms;
use crate::store::StoreError;
use crate::store::terms::columns;

/// Records why jobs wait.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_waits(
    connection: &mut PgConnection,
    batch: &[WaitRow],
    policy: &str,
    epoch: u64,
) -> Result<(), StoreError> {
    if batch.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = batch.iter().map(|w| w.decision.as_uuid()).collect();
    let jobs: Vec<_> = batch.iter().map(|w| number(w.job)).collect();
    let reasons: Vec<_> = batch.iter().map(|w| w.reason.to_owned()).collect();
    let whys: Vec<_> = batch.iter().map(|w| json(&w.why)).collect();
    sqlx::query!(
        r#"
        INSERT INTO decisions (decision, job, outcome, reason, policy, epoch, why)
        SELECT u.decision, u.job, 'wait', u.reason, $5, $6, u.why::json
          FROM UNNEST($1::uuid[], $2::bigint[], $3::text[], $4::text[])
            AS u (decision, job, reason, why)
        "#,
        &ids,
        &jobs,
        &reasons,
        &whys,
        policy,
        signed(epoch),
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record waits"))
    .map(drop)
}

/// Notes what share of its slice each job's next attempt gets.
///
/// # Errors
///
/// [`StoreError::Moved`], [`StoreError::Unavailable`].
pub async fn reshare(connection: &mut PgConnection, batch: &[Reshared]) -> Result<(), StoreError> {
    // The last word counts: one statement changes a row only once.
    let last: BTreeMap<JobId, &Reshared> = batch.iter().map(|r| (r.job, r)).collect();
    if last.is_empty() {
        return Ok(());
    }
    let action = "record new shares";
    let jobs: Vec<_> = last.values().map(|r| number(r.job)).collect();
    let attempts: Vec<_> = last.values().map(|r| r.attempt.as_uuid()).collect();
    let sms: Vec<_> = last.values().map(|r| i16::from(r.sm.get())).collect();
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT * FROM UNNEST($1::bigint[], $2::uuid[], $3::smallint[]) AS u (job, attempt, sm)
        ), e AS (
            INSERT INTO job_events (job, state, text)
            SELECT u.job, j.state, 'its share becomes ' || u.sm || ' %: it is started again'
              FROM u JOIN jobs AS j ON j.job = u.job
        )
        UPDATE jobs SET sm_percent = u.sm
          FROM u
         WHERE jobs.job = u.job AND jobs.attempt = u.attempt
           AND jobs.state IN ('placing', 'starting', 'running')
        "#,
        &jobs,
        &attempts,
        &sms,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, last.len(), moved.rows_affected())
}

/// Changes waiting jobs by their users' word, and returns those that it changed with the states
/// that they are in now: a job in another state, or none at all, is left out. A release forgets
/// the ends that were not the job's fault: somebody looked at it.
///
/// # Errors
///
/// [`StoreError::Unavailable`], [`StoreError::Corrupt`].
pub async fn command(
    connection: &mut PgConnection,
    batch: &[Command],
) -> Result<HashMap<JobId, JobState>, StoreError> {
    if batch.is_empty() {
        return Ok(HashMap::new());
    }
    let jobs: Vec<_> = batch.iter().map(|c| number(c.job)).collect();
    let to: Vec<_> = batch.iter().map(|c| c.change.to().map(|to| to.word().to_owned())).collect();
    let sms: Vec<_> = batch.iter().map(|c| c.change.sm().map(|sm| i16::from(sm.get()))).collect();
    let texts: Vec<_> = batch.iter().map(|c| c.change.text()).collect();
    let (priorities, limits) = columns(batch.iter().map(|c| c.change.terms()));
    let moved = sqlx::query!(
        r#"
        WITH u AS (
            SELECT *
              FROM UNNEST($1::bigint[], $2::text[], $3::smallint[], $4::text[],
                          $5::smallint[], $6::bigint[])
                AS u (job, to_state, sm, text, priority, limit_ms)
        ), m AS (
            UPDATE jobs
               SET state = COALESCE(u.to_state, jobs.state),
                   sm_percent = COALESCE(u.sm, jobs.sm_percent),
                   priority = COALESCE(u.priority, jobs.priority),
                   time_limit_ms = COALESCE(u.limit_ms, jobs.time_limit_ms),
                   uncharged = CASE WHEN jobs.state = 'held' AND u.to_state = 'queued' THEN 0
                                    ELSE jobs.uncharged END,
                   ended_at = CASE WHEN u.to_state = 'cancelled' THEN now() END
              FROM u
             WHERE jobs.job = u.job AND jobs.state IN ('queued', 'held')
            RETURNING jobs.job, jobs.state, u.text
        ), e AS (
            INSERT INTO job_events (job, state, text) SELECT m.job, m.state, m.text FROM m
        )
        SELECT m.job, m.state FROM m
        "#,
        &jobs,
        &to as &[Option<String>],
        &sms as &[Option<i16>],
        &texts,
        &priorities as &[Option<i16>],
        &limits as &[Option<i64>],
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("move waiting jobs"))?;
    moved
        .into_iter()
        .map(|row| {
            let bad = |problem: String| StoreError::Corrupt {
                table: "jobs",
                row: row.job.to_string(),
                problem,
            };
            let job = u64::try_from(row.job).map_err(|e| bad(e.to_string()))?;
            let state = row.state.parse().map_err(|e: BadId| bad(e.to_string()))?;
            Ok((JobId::from_number(job), state))
        })
        .collect()
}

impl Change {
    const fn to(self) -> Option<JobState> {
        match self {
            Self::To(to) => Some(to),
            Self::Share(_) | Self::Terms(_) => None,
        }
    }

    const fn sm(self) -> Option<SmPercent> {
        match self {
            Self::To(_) | Self::Terms(_) => None,
            Self::Share(sm) => Some(sm),
        }
    }

    const fn terms(self) -> Terms {
        match self {
            Self::Terms(terms) => terms,
            Self::To(_) | Self::Share(_) => Terms { priority: None, limit: None },
        }
    }

    fn text(self) -> String {
        match self {
            Self::To(JobState::Cancelled) => "cancelled by its user before it ran".to_owned(),
            Self::To(JobState::Held) => "held by its user".to_owned(),
            Self::To(_) => "released by its user".to_owned(),
            Self::Share(sm) => format!("its share becomes {sm}, by its user"),
            Self::Terms(terms) => terms.words(),
        }
    }
}
