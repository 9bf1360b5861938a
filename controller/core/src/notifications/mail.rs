//! Selects the changes about which a job's user gets mail.

use tessera_model::life::JobState;
use tessera_model::mail::{MailRules, MailType};
use tessera_model::{AttemptId, Millis};

use super::text::message;
use super::{
    ChangeCause, ChangedJob, Channel, JobFacts, MailFacts, Notification, NotificationBody,
};

/// The events for parts of a time limit.
const MARKS: [MailType; 3] = [MailType::TimeLimit50, MailType::TimeLimit80, MailType::TimeLimit90];

/// Returns the mails about a change. `mailed` gets the events that are mailed once for a submission.
pub(super) fn mails(
    change: &ChangedJob,
    known: &JobFacts,
    mail: &MailFacts,
    mailed: &mut Vec<MailType>,
) -> Vec<Notification> {
    // Only the first member of a gang is reported, since all start and end together.
    if mail.is_gang && change.job != known.submission {
        return Vec::new();
    }
    let as_whole = known.tasks > 1 && !mail.is_gang && !mail.rules.has(MailType::ArrayTasks);
    let mut events = events(change, &mail.rules);
    if as_whole {
        events = of_array(&events, change.state, mail);
    }
    events.retain(|event| {
        let is_once = *event == MailType::InvalidDepend || (as_whole && !is_of_limit(*event));
        let is_new = !is_once || !(mail.mailed.contains(event) || mailed.contains(event));
        if is_once && is_new {
            mailed.push(*event);
        }
        is_new
    });
    let mail_of = |event: &MailType| Notification {
        channel: Channel::Mail,
        job: change.job,
        attempt: None,
        event: event.word(),
        due: None,
        body: NotificationBody::Mail(message(*event, change, known, mail, as_whole)),
    };
    let now: Vec<_> = events.iter().map(mail_of).collect();
    now.into_iter().chain(marks(change, known, mail)).collect()
}

/// Returns the requested events that a change matches, without those for parts of a time limit.
fn events(change: &ChangedJob, rules: &MailRules) -> Vec<MailType> {
    let all = match (&change.cause, change.state) {
        (ChangeCause::NeverStarts, _) => vec![MailType::InvalidDepend],
        (_, JobState::Running) => vec![MailType::Begin],
        (ChangeCause::Ended { .. }, JobState::Queued | JobState::Held) => vec![MailType::Requeue],
        (_, JobState::TimedOut) => vec![MailType::TimeLimit, end_of(true, rules)],
        (_, JobState::Failed) => vec![end_of(true, rules)],
        (_, JobState::Succeeded | JobState::Cancelled) => vec![MailType::End],
        (
            _,
            JobState::Queued
            | JobState::Held
            | JobState::Placing
            | JobState::Starting
            | JobState::Stopping,
        ) => Vec::new(),
    };
    all.into_iter().filter(|event| rules.has(*event)).collect()
}

/// Returns the event for an end: a failure is reported as a failure, or as an end if only ends are
/// requested.
fn end_of(failed: bool, rules: &MailRules) -> MailType {
    if failed && rules.has(MailType::Fail) { MailType::Fail } else { MailType::End }
}

/// Returns the events of a whole array that follow from a task's events: the array ends with its
/// last task.
fn of_array(events: &[MailType], state: JobState, mail: &MailFacts) -> Vec<MailType> {
    let is_end = |event: &MailType| matches!(event, MailType::End | MailType::Fail);
    let mut whole: Vec<_> = events.iter().copied().filter(|event| !is_end(event)).collect();
    if state.is_final() && mail.is_over {
        let end = end_of(mail.failed > 0, &mail.rules);
        whole.extend(Some(end).filter(|end| mail.rules.has(*end)));
    }
    whole
}

/// Returns whether an event is about a time limit, which each task has separately.
const fn is_of_limit(event: MailType) -> bool {
    matches!(event, MailType::TimeLimit) || event.limit_percent().is_some()
}

/// Returns the mails that are sent later, when parts of the time limit of a started attempt have
/// passed.
fn marks(change: &ChangedJob, known: &JobFacts, mail: &MailFacts) -> Vec<Notification> {
    let (ChangeCause::Started { at }, Some(attempt)) = (&change.cause, change.attempt) else {
        return Vec::new();
    };
    let Some(limit) = mail.limit else { return Vec::new() };
    let requested = MARKS.into_iter().filter(|mark| mail.rules.has(*mark));
    let mark = |mark: MailType| mark_of(mark, (attempt, *at, limit), change, known, mail);
    requested.filter_map(mark).collect()
}

fn mark_of(
    mark: MailType,
    (attempt, at, limit): (AttemptId, Millis, Millis),
    change: &ChangedJob,
    known: &JobFacts,
    mail: &MailFacts,
) -> Option<Notification> {
    Some(Notification {
        channel: Channel::Mail,
        job: change.job,
        attempt: Some(attempt),
        event: mark.word(),
        due: Some(at.plus(part(limit, mark.limit_percent()?))),
        body: NotificationBody::Mail(message(mark, change, known, mail, false)),
    })
}

/// Returns a percentage of a time.
fn part(limit: Millis, percent: u8) -> Millis {
    // Time limits are at most a year, so the product fits.
    Millis::new(limit.get().saturating_mul(u64::from(percent)) / 100)
}

/// The decision about a mail for a part of a time limit, at its planned time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkVerdict {
    /// It is sent.
    Send,
    /// It is sent at this later time in milliseconds since 1970, since the limit was raised.
    Later(Millis),
    /// It is dropped: the attempt has ended, or it has no limit any more.
    Drop,
}

/// Decides about a mail that a percentage of a time limit has passed. `running` has when the attempt started and its
/// present limit; `None` if it does not run any more.
pub fn judge_mark(
    percent: u8,
    running: Option<(Millis, Option<Millis>)>,
    now: Millis,
) -> MarkVerdict {
    let Some((started, Some(limit))) = running else { return MarkVerdict::Drop };
    let due = started.plus(part(limit, percent));
    if due <= now { MarkVerdict::Send } else { MarkVerdict::Later(due) }
}
