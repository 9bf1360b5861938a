//! The outbox of mail and webhooks on a real PostgreSQL: what is written with a change, and how it
//! is delivered.

use std::sync::Arc;

use sqlx::{Connection as _, PgConnection, Row as _};
use tessera_control::Round;
use tessera_control::notifications::{Channel, NotificationRules};
use tessera_control::rows::transitions::{WaitingJobChange, WaitingJobCommand};
use tessera_controller::principal::Role;
use tessera_controller::requests::NewSubmission;
use tessera_controller::store::notifications::{
    FailedDelivery, claim_due, give_up, release_claims, remove_oldest, retry_later, wait_until_due,
    waiting,
};
use tessera_controller::store::submit::{Numbers, insert_submissions};
use tessera_controller::store::{StoreError, commit};
use tessera_model::life::JobState;
use tessera_model::spec::{JobSpec, RawJobSpec};
use tessera_model::{JobId, Millis};

/// Returns settings with mail, or with a webhook about the ends of jobs.
fn mail() -> NotificationRules {
    NotificationRules { mail: true, ..NotificationRules::default() }
}

fn webhook(states: &[JobState]) -> NotificationRules {
    NotificationRules { webhook: states.iter().copied().collect(), ..NotificationRules::default() }
}

async fn connect() -> PgConnection {
    PgConnection::connect_with(&crate::database::fresh().await).await.unwrap()
}

/// Submits an array of two tasks; returns its number.
async fn submit(
    connection: &mut PgConnection,
    types: &[&str],
    rules: &NotificationRules,
) -> (JobId, bool) {
    let spec = JobSpec::parse(RawJobSpec {
        name: Some("train".to_owned()),
        user: Some("ada".to_owned()),
        command: Some(vec!["/bin/true".to_owned()]),
        mail_types: types.iter().map(|word| (*word).to_owned()).collect(),
        ..RawJobSpec::default()
    });
    let submission = NewSubmission {
        spec: Arc::new(spec.unwrap()),
        tasks: 2,
        array_first: Some(0),
        hold: false,
        idempotency: None,
        traceparent: None,
        principal: "ada".into(),
        role: Role::User,
        origin: "test".to_owned(),
    };
    let numbers = Numbers::default();
    let committed = insert_submissions(connection, &[submission], &numbers, rules).await.unwrap();
    (committed.answers[0].as_ref().unwrap().job, committed.has_notifications)
}

/// Cancels both tasks in one round of an epoch.
async fn cancel(
    connection: &mut PgConnection,
    array: JobId,
    rules: &NotificationRules,
    epoch: u64,
) -> Result<bool, StoreError> {
    let mut round = Round::default();
    for number in [array.number(), array.number() + 1] {
        let change = WaitingJobChange::To(JobState::Cancelled);
        round.jobs.commands.push(WaitingJobCommand { job: JobId::from_number(number), change });
    }
    let findings = commit::commit_round(connection, &round, "test", epoch, rules).await?;
    Ok(findings.has_notifications)
}

/// Returns the channel, the job and the event of each row.
async fn rows(connection: &mut PgConnection) -> Vec<(String, i64, String)> {
    let rows = sqlx::query("SELECT channel, job, event FROM notifications ORDER BY sequence");
    let rows = rows.fetch_all(connection).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

#[tokio::test]
async fn nothing_is_written_that_is_not_configured_or_that_no_job_requests() {
    let mut connection = connect().await;

    for (types, rules) in [
        (&["all"][..], NotificationRules::default()),
        (&[], mail()),
        (&["begin"], mail()),
        (&[], webhook(&[JobState::Failed])),
    ] {
        let (array, submitted) = submit(&mut connection, types, &rules).await;
        let cancelled = cancel(&mut connection, array, &rules, 0).await.unwrap();

        assert!(!submitted && !cancelled, "{types:?} {rules:?}");
    }
    assert_eq!(rows(&mut connection).await, []);
}

#[tokio::test]
async fn an_array_has_one_mail_at_its_end_or_one_for_each_task() {
    let mut connection = connect().await;

    for (types, mailed) in [(&["end"][..], 1), (&["end", "array_tasks"], 2)] {
        let (array, _) = submit(&mut connection, types, &mail()).await;
        assert!(cancel(&mut connection, array, &mail(), 0).await.unwrap());
        // The jobs are over: nothing changes any more.
        assert!(!cancel(&mut connection, array, &mail(), 0).await.unwrap());

        let first = i64::try_from(array.number()).unwrap();
        let of_array = rows(&mut connection).await.into_iter().filter(|(_, job, _)| *job >= first);
        assert_eq!(of_array.count(), mailed, "{types:?}");
    }
}

#[tokio::test]
async fn each_state_change_is_written_with_it_and_only_if_it_is_committed() {
    let mut connection = connect().await;
    let rules = webhook(&[JobState::Queued, JobState::Cancelled]);
    let (array, submitted) = submit(&mut connection, &[], &rules).await;
    assert!(submitted);
    let first = i64::try_from(array.number()).unwrap();
    let of = |state: &str| {
        [first, first + 1].map(|job| ("webhook".to_owned(), job, state.to_owned())).to_vec()
    };
    assert_eq!(rows(&mut connection).await, of("queued"));

    // Another controller leads.
    let deposed = cancel(&mut connection, array, &rules, 7).await;
    assert!(matches!(deposed, Err(StoreError::Deposed { .. })), "{deposed:?}");
    assert_eq!(rows(&mut connection).await, of("queued"));
    cancel(&mut connection, array, &rules, 0).await.unwrap();

    assert_eq!(rows(&mut connection).await, [of("queued"), of("cancelled")].concat());
}

#[tokio::test]
async fn a_new_leader_takes_back_what_was_claimed_and_a_failed_one_comes_again_later() {
    let mut connection = connect().await;
    let rules = webhook(&[JobState::Queued]);
    submit(&mut connection, &[], &rules).await;
    let claimed = claim_due(&mut connection, Channel::Webhook, 1).await.unwrap();
    assert_eq!((claimed.len(), claimed[0].tries), (1, 1));
    let other = claim_due(&mut connection, Channel::Webhook, 9).await.unwrap();
    assert_eq!(other.len(), 1);
    assert_ne!(other[0].id, claimed[0].id);

    release_claims(&mut connection, Channel::Webhook).await.unwrap();

    let again = claim_due(&mut connection, Channel::Webhook, 9).await.unwrap();
    assert_eq!(again.iter().map(|one| one.tries).collect::<Vec<_>>(), [2, 2]);
    let retry_in = Millis::from_secs(3_600);
    let failed = again.iter().map(|one| FailedDelivery {
        id: one.id,
        retry_in,
        problem: Some("it is off".to_owned()),
    });
    retry_later(&mut connection, &failed.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(claim_due(&mut connection, Channel::Webhook, 9).await.unwrap().len(), 0);
    let due = wait_until_due(&mut connection, Channel::Webhook).await.unwrap().unwrap();
    assert!(due > Millis::from_secs(3_000) && due <= retry_in, "{due:?}");
    assert_eq!(wait_until_due(&mut connection, Channel::Mail).await.unwrap(), None);
}

#[tokio::test]
async fn a_mail_that_is_given_up_is_an_event_of_its_job_and_the_oldest_go_first() {
    let mut connection = connect().await;
    let (first, _) = submit(&mut connection, &["end"], &mail()).await;
    cancel(&mut connection, first, &mail(), 0).await.unwrap();
    let (second, _) = submit(&mut connection, &["end"], &mail()).await;
    cancel(&mut connection, second, &mail(), 0).await.unwrap();
    assert_eq!(waiting(&mut connection, Channel::Mail).await.unwrap(), 2);

    assert_eq!(remove_oldest(&mut connection, Channel::Mail, 1).await.unwrap(), 1);
    let left = claim_due(&mut connection, Channel::Mail, 9).await.unwrap();
    assert_eq!(left.len(), 1);
    assert!(left[0].job >= second, "{left:?}");
    give_up(&mut connection, &[left[0].id]).await.unwrap();

    assert_eq!(waiting(&mut connection, Channel::Mail).await.unwrap(), 0);
    let events =
        sqlx::query("SELECT job FROM job_events WHERE text LIKE '%mail about end could not%'");
    let events = events.fetch_all(&mut connection).await.unwrap();
    assert_eq!(events.len(), 1);
    assert!(events[0].get::<i64, _>(0) >= i64::try_from(second.number()).unwrap());
}

#[tokio::test]
async fn what_failed_ages_and_what_was_only_postponed_does_not() {
    let mut connection = connect().await;
    submit(&mut connection, &[], &webhook(&[JobState::Queued])).await;
    sqlx::query("UPDATE notifications SET created_at = now() - interval '10 days'")
        .execute(&mut connection)
        .await
        .unwrap();
    let claimed = claim_due(&mut connection, Channel::Webhook, 2).await.unwrap();
    assert!(claimed.iter().all(|one| one.age > Millis::from_secs(9 * 86_400)));
    let problems = [None, Some("it is off".to_owned())];
    let later = claimed.iter().zip(problems).map(|(one, problem)| FailedDelivery {
        id: one.id,
        retry_in: Millis::ZERO,
        problem,
    });

    retry_later(&mut connection, &later.collect::<Vec<_>>()).await.unwrap();

    let again = claim_due(&mut connection, Channel::Webhook, 2).await.unwrap();
    let age_of = |id| again.iter().find(|one| one.id == id).unwrap().age;
    assert!(age_of(claimed[0].id) < Millis::from_secs(3_600));
    assert!(age_of(claimed[1].id) > Millis::from_secs(9 * 86_400));
}
