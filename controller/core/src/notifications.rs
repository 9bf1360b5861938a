//! Notifications of jobs' state changes: mail that users request, and webhooks of the operator.
//!
//! A round's changes lead to rows of an outbox, which are committed with the changes. [`schedule`]
//! decides when a failed delivery is tried again.

mod changes;
mod mail;
pub mod schedule;
mod text;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use tessera_model::life::JobState;
use tessera_model::mail::{MailAddress, MailRules, MailType};
use tessera_model::{AttemptId, JobId, Millis};

pub use self::changes::{ChangeCause, ChangedJob};
pub use self::mail::{MarkVerdict, judge_mark};

/// The operator's settings for notifications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotificationRules {
    /// Whether mail is configured.
    pub mail: bool,
    /// The states whose beginning is sent to the webhook's receiver; empty without a webhook.
    pub webhook: BTreeSet<JobState>,
}

impl NotificationRules {
    /// Returns whether no notifications are configured.
    pub fn is_silent(&self) -> bool {
        !self.mail && self.webhook.is_empty()
    }
}

/// The channel of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// As mail to a job's user.
    Mail,
    /// As a request to the operator's receiver.
    Webhook,
}

impl Channel {
    /// Every channel.
    pub const ALL: [Self; 2] = [Self::Mail, Self::Webhook];

    /// Returns the value that the database and metrics use.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mail => "mail",
            Self::Webhook => "webhook",
        }
    }
}

/// The facts about a changed job after the round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// The first job of its submission, which names its array or gang.
    pub submission: JobId,
    /// How many jobs the submission has.
    pub tasks: u32,
    /// The job's name.
    pub name: String,
    /// The user who submitted the job.
    pub user: String,
    /// The facts for mail, if its user requests any.
    pub mail: Option<MailFacts>,
}

/// The facts on which mail about a job depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailFacts {
    /// The events that its user requests.
    pub rules: MailRules,
    /// Whether it is a member of a gang, for which only the first member is reported.
    pub is_gang: bool,
    /// Its time limit, with all updates.
    pub limit: Option<Millis>,
    /// The events for which mail is sent once for a submission and was sent already.
    pub mailed: Vec<MailType>,
    /// Whether all jobs of its submission have ended.
    pub is_over: bool,
    /// How many of them failed or reached their time limits, if all have ended.
    pub failed: u64,
}

/// A row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// By which way it leaves the cluster.
    pub channel: Channel,
    /// The job that it is about.
    pub job: JobId,
    /// The attempt that must be running when it is sent, if it is about a part of a time limit.
    pub attempt: Option<AttemptId>,
    /// The event, by the word of the mail's type or of the state.
    pub event: &'static str,
    /// When it is sent, in milliseconds since 1970; at once by default.
    pub due: Option<Millis>,
    /// Its content.
    pub body: NotificationBody,
}

/// The content of a notification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum NotificationBody {
    /// As mail to the job's user.
    Mail(MailMessage),
    /// A state change, for programs.
    Webhook(StateNotice),
}

/// A mail without the headers that its delivery adds. Its subject is one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailMessage {
    /// Its recipient.
    pub to: Vec<MailAddress>,
    /// The line that mail programs list.
    pub subject: String,
    /// Its text, in lines.
    pub text: String,
}

/// A state change of a job in the form that webhooks send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StateNotice {
    /// The kind of the notice.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The job's number.
    pub job: u64,
    /// The number of its array or gang, if it is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<u64>,
    /// The name that its user gave the job.
    pub name: String,
    /// The user who submitted the job.
    pub user: String,
    /// Its new state.
    pub state: JobState,
    /// The attempt, if one is concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// The outcome of the attempt, if one ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// The exit code and the signal of its program, such as `1:0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<String>,
    /// The reason as text, if more is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The kind of each notice of a state change.
const STATE_CHANGED: &str = "job.state_changed";

/// The notifications from a round's changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundNotifications {
    /// Rows of the outbox.
    pub rows: Vec<Notification>,
    /// Events that are mailed once for a submission and are part of these rows.
    pub mailed: BTreeMap<JobId, Vec<MailType>>,
}

/// Decides which notifications these changes cause. Jobs without facts are skipped.
pub fn notify(
    changes: &[ChangedJob],
    facts: &HashMap<JobId, JobFacts>,
    rules: &NotificationRules,
) -> RoundNotifications {
    let mut found = RoundNotifications::default();
    for change in changes {
        let Some(known) = facts.get(&change.job) else { continue };
        if change.is_transition() && rules.webhook.contains(&change.state) {
            found.rows.push(state_notice(change, known));
        }
        if let Some(mail) = known.mail.as_ref().filter(|_| rules.mail) {
            let mailed = found.mailed.entry(known.submission).or_default();
            found.rows.extend(mail::mails(change, known, mail, mailed));
        }
    }
    found.mailed.retain(|_, types| !types.is_empty());
    found
}

fn state_notice(change: &ChangedJob, known: &JobFacts) -> Notification {
    let (outcome, exit_code, detail) = match &change.cause {
        ChangeCause::Ended { outcome, exit, detail } => {
            let detail = Some(detail.clone()).filter(|detail| !detail.is_empty());
            (Some(outcome.word()), exit.map(|exit| exit.to_string()), detail)
        }
        ChangeCause::Submitted
        | ChangeCause::Placed
        | ChangeCause::Started { .. }
        | ChangeCause::Commanded
        | ChangeCause::NeverStarts => (None, None, None),
    };
    let notice = StateNotice {
        kind: STATE_CHANGED,
        job: change.job.number(),
        array: (known.tasks > 1).then(|| known.submission.number()),
        name: known.name.clone(),
        user: known.user.clone(),
        state: change.state,
        attempt: change.attempt,
        outcome,
        exit_code,
        detail,
    };
    Notification {
        channel: Channel::Webhook,
        job: change.job,
        attempt: None,
        event: change.state.word(),
        due: None,
        body: NotificationBody::Webhook(notice),
    }
}

#[cfg(test)]
mod tests;
