use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tessera_model::life::{Outcome, ProgramExit};
use uuid::Uuid;

use super::*;

const LIMIT: Millis = Millis::from_secs(1_000);

fn attempt() -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(7))
}

fn ended(job: u64, state: JobState, outcome: Outcome) -> ChangedJob {
    let exit = Some(ProgramExit::Code(1));
    let cause = ChangeCause::Ended { outcome, exit, detail: "no such file".to_owned() };
    ChangedJob { job: JobId::from_number(job), attempt: Some(attempt()), state, cause }
}

fn started(job: u64) -> ChangedJob {
    let cause = ChangeCause::Started { at: Millis::from_secs(5_000) };
    let job = JobId::from_number(job);
    ChangedJob { job, attempt: Some(attempt()), state: JobState::Running, cause }
}

fn without_attempt(job: u64, state: JobState, cause: ChangeCause) -> ChangedJob {
    ChangedJob { job: JobId::from_number(job), attempt: None, state, cause }
}

/// The changes that a job can go through.
fn change(job: u64) -> impl Strategy<Value = ChangedJob> {
    prop_oneof![
        Just(without_attempt(job, JobState::Queued, ChangeCause::Submitted)),
        Just(without_attempt(job, JobState::Queued, ChangeCause::NeverStarts)),
        Just(without_attempt(job, JobState::Held, ChangeCause::Commanded)),
        Just(without_attempt(job, JobState::Cancelled, ChangeCause::Commanded)),
        Just(started(job)),
        Just(ended(job, JobState::Queued, Outcome::Lost)),
        Just(ended(job, JobState::Succeeded, Outcome::Succeeded)),
        Just(ended(job, JobState::Failed, Outcome::Failed)),
        Just(ended(job, JobState::TimedOut, Outcome::TimedOut)),
    ]
}

fn types() -> impl Strategy<Value = Vec<MailType>> {
    subsequence(MailType::ALL, 1..=MailType::ALL.len())
}

/// Jobs 40 on, of one submission.
fn facts(tasks: u32, types: &[MailType], is_gang: bool) -> JobFacts {
    JobFacts {
        submission: JobId::from_number(40),
        tasks,
        name: "train".to_owned(),
        user: "ada".to_owned(),
        mail: Some(MailFacts {
            rules: MailRules { types: types.to_vec(), to: vec!["ada".parse().unwrap()] },
            is_gang,
            limit: Some(LIMIT),
            mailed: Vec::new(),
            is_over: false,
            failed: 0,
        }),
    }
}

fn mail_only() -> NotificationRules {
    NotificationRules { mail: true, webhook: BTreeSet::new() }
}

fn of_one(change: ChangedJob, known: &JobFacts) -> Vec<Notification> {
    let facts = HashMap::from([(change.job, known.clone())]);
    notify(&[change], &facts, &mail_only()).rows
}

fn words(rows: &[Notification]) -> Vec<&'static str> {
    rows.iter().map(|row| row.event).collect()
}

fn subject(row: &Notification) -> &str {
    match &row.body {
        NotificationBody::Mail(mail) => &mail.subject,
        NotificationBody::Webhook(_) => panic!("{row:?} is no mail"),
    }
}

#[test]
fn each_event_is_that_of_batch_schedulers() {
    let all = facts(1, MailType::ALL, false);
    let usual = facts(1, &[MailType::Begin, MailType::End], false);
    for (change, of_all, of_usual) in [
        (
            started(40),
            &["begin", "time_limit_50", "time_limit_80", "time_limit_90"][..],
            &["begin"][..],
        ),
        (ended(40, JobState::Queued, Outcome::Lost), &["requeue"], &[]),
        (ended(40, JobState::Held, Outcome::Lost), &["requeue"], &[]),
        (ended(40, JobState::Succeeded, Outcome::Succeeded), &["end"], &["end"]),
        (ended(40, JobState::Failed, Outcome::Failed), &["fail"], &["end"]),
        (ended(40, JobState::TimedOut, Outcome::TimedOut), &["time_limit", "fail"], &["end"]),
        (without_attempt(40, JobState::Cancelled, ChangeCause::Commanded), &["end"], &["end"]),
        (without_attempt(40, JobState::Queued, ChangeCause::NeverStarts), &["invalid_depend"], &[]),
        (without_attempt(40, JobState::Held, ChangeCause::Commanded), &[], &[]),
    ] {
        assert_eq!(words(&of_one(change.clone(), &all)), of_all, "{change:?}");
        assert_eq!(words(&of_one(change.clone(), &usual)), of_usual, "{change:?}");
    }
}

#[test]
fn mails_about_a_time_limit_are_sent_when_their_part_of_it_has_passed() {
    let marks =
        of_one(started(40), &facts(1, &[MailType::TimeLimit90, MailType::TimeLimit50], false));

    assert_eq!(
        marks.iter().map(|mark| mark.due).collect::<Vec<_>>(),
        [Some(Millis::from_secs(5_500)), Some(Millis::from_secs(5_900)),]
    );
    assert!(marks.iter().all(|mark| mark.attempt == Some(attempt())));
    assert_eq!(subject(&marks[1]), "Tessera job 40 (train) has run for 90 % of its time limit");
}

#[test]
fn an_array_ends_with_its_last_task_and_its_mail_counts_the_failures() {
    let mut known = facts(3, &[MailType::Begin, MailType::End, MailType::Fail], false);
    let fail = |job| ended(job, JobState::Failed, Outcome::Failed);
    assert_eq!(of_one(fail(41), &known), []);
    let mail = known.mail.as_mut().unwrap();
    (mail.is_over, mail.failed) = (true, 2);

    let rows = of_one(fail(42), &known);

    assert_eq!(words(&rows), ["fail"]);
    assert_eq!(subject(&rows[0]), "Tessera array 40 (train) ended, 2 of 3 tasks failed");
}

#[test]
fn only_the_first_member_of_a_gang_is_reported() {
    let known = facts(4, &[MailType::End], true);
    let end = |job| of_one(ended(job, JobState::Succeeded, Outcome::Succeeded), &known);

    assert_eq!(words(&end(40)), ["end"]);
    assert_eq!(end(41), []);
}

#[test]
fn a_notice_for_programs_has_the_end_of_the_attempt() {
    let change = ended(41, JobState::Failed, Outcome::Failed);
    let facts = HashMap::from([(change.job, facts(3, &[MailType::End], false))]);
    let rules = NotificationRules { mail: false, webhook: [JobState::Failed].into() };

    let rows = notify(&[change, started(41)], &facts, &rules).rows;

    assert_eq!(words(&rows), ["failed"]);
    let body = serde_json::to_value(&rows[0].body).unwrap();
    let expected = serde_json::json!({
        "type": "job.state_changed", "job": 41, "array": 40, "name": "train", "user": "ada",
        "state": "failed", "attempt": attempt(), "outcome": "failed", "exit_code": "1:0",
        "detail": "no such file",
    });
    assert_eq!(body, expected);
}

proptest! {
    #[test]
    fn no_notification_is_sent_without_settings_or_a_request(change in change(40), types in types()) {
        let asks = HashMap::from([(change.job, facts(1, &types, false))]);
        let asks_nothing = HashMap::from([(change.job, JobFacts { mail: None, ..facts(1, &[], false) })]);

        for (facts, rules) in [(&asks, NotificationRules::default()), (&asks_nothing, mail_only())] {
            prop_assert_eq!(notify(std::slice::from_ref(&change), facts, &rules), RoundNotifications::default());
        }
    }

    #[test]
    fn only_requested_events_are_mailed(change in change(40), types in types()) {
        let rows = of_one(change, &facts(1, &types, false));

        let named = |row: &Notification| types.iter().any(|kind| kind.word() == row.event);
        prop_assert!(rows.iter().all(named), "{rows:?}");
    }

    #[test]
    fn every_transition_to_a_state_of_the_webhook_is_noticed_once(
        changes in prop::collection::vec(change(40), 0..20),
        states in subsequence(JobState::ALL, 0..=JobState::ALL.len()),
    ) {
        let rules = NotificationRules { mail: false, webhook: states.iter().copied().collect() };
        let facts = HashMap::from([(JobId::from_number(40), facts(1, &[MailType::End], false))]);

        let rows = notify(&changes, &facts, &rules).rows;

        let wanted = changes.iter().filter(|c| c.is_transition() && states.contains(&c.state));
        let wanted: Vec<_> = wanted.map(|change| change.state.word()).collect();
        prop_assert_eq!(words(&rows), wanted);
    }

    #[test]
    fn an_array_begins_and_ends_once_whatever_rounds_its_tasks_are_in(
        rounds in prop::collection::vec(prop::collection::vec((40_u64..45, any::<bool>()), 0..6), 0..12),
        types in types(),
    ) {
        let types: Vec<_> = types.into_iter().filter(|kind| *kind != MailType::ArrayTasks).collect();
        let mut known = facts(5, &types, false);
        let mut states: BTreeMap<u64, bool> = BTreeMap::new();
        let mut sent = Vec::new();
        for round in &rounds {
            let mut changes = Vec::new();
            for (job, fails) in round {
                if states.contains_key(job) {
                    continue;
                }
                changes.push(started(*job));
                let (state, outcome) = match fails {
                    true => (JobState::Failed, Outcome::Failed),
                    false => (JobState::Succeeded, Outcome::Succeeded),
                };
                changes.push(ended(*job, state, outcome));
                states.insert(*job, *fails);
            }
            let mail = known.mail.as_mut().unwrap();
            mail.is_over = states.len() == 5;
            mail.failed = states.values().filter(|fails| **fails).count() as u64;
            let facts = (40..45).map(|job| (JobId::from_number(job), known.clone())).collect();
            let found = notify(&changes, &facts, &mail_only());
            sent.extend(words(&found.rows).into_iter().filter(|word| !word.starts_with("time_limit")));
            for types in found.mailed.into_values() {
                known.mail.as_mut().unwrap().mailed.extend(types);
            }
        }
        let has = |kind| types.contains(&kind);
        let failed = states.values().any(|fails| *fails);
        let is_over = states.len() == 5;
        let mut expected = Vec::new();
        if !states.is_empty() && has(MailType::Begin) {
            expected.push("begin");
        }
        if is_over && failed && has(MailType::Fail) {
            expected.push("fail");
        } else if is_over && has(MailType::End) {
            expected.push("end");
        }
        prop_assert_eq!(sent, expected);
    }

    #[test]
    fn a_subject_is_one_line_whatever_the_job_is_called(
        name in "(\\PC|\\p{Cc}|\\p{Zl}|\\p{Zp}|\\u{202e}){0,40}", change in change(40),
    ) {
        let known = JobFacts { name, ..facts(1, MailType::ALL, false) };

        for row in of_one(change, &known) {
            let NotificationBody::Mail(mail) = row.body else { panic!("no mail") };
            prop_assert_eq!(mail.subject.lines().count(), 1);
            prop_assert!(!mail.subject.contains(char::is_control), "{:?}", mail.subject);
            let has_break = mail.subject.contains(['\u{2028}', '\u{2029}', '\u{202e}']);
            prop_assert!(!has_break, "{:?}", mail.subject);
        }
    }

    #[test]
    fn mail_about_a_limit_is_sent_only_while_its_attempt_runs_and_after_that_part(
        percent in select(vec![50_u8, 80, 90]), started in 0_u64..1_000_000, limit in 1_u64..1_000_000,
        now in 0_u64..3_000_000,
    ) {
        let (started, now) = (Millis::new(started), Millis::new(now));
        let verdict = judge_mark(percent, Some((started, Some(Millis::new(limit)))), now);

        let due = started.plus(Millis::new(limit * u64::from(percent) / 100));
        let expected = if due <= now { MarkVerdict::Send } else { MarkVerdict::Later(due) };
        prop_assert_eq!(verdict, expected);
        prop_assert_eq!(judge_mark(percent, None, now), MarkVerdict::Drop);
        prop_assert_eq!(judge_mark(percent, Some((started, None)), now), MarkVerdict::Drop);
    }
}
