//! The subjects and texts of mails.

use tessera_model::mail::MailType;

use super::{ChangeCause, ChangedJob, JobFacts, MailFacts, MailMessage};

/// Writes a mail about an event of a job, or of a whole array.
pub(super) fn message(
    event: MailType,
    change: &ChangedJob,
    known: &JobFacts,
    mail: &MailFacts,
    as_whole: bool,
) -> MailMessage {
    let of_array = as_whole && event != MailType::TimeLimit;
    let (kind, number) = if of_array { ("array", known.submission) } else { ("job", change.job) };
    let name = one_line(&known.name);
    let what = what_happened(event, change, known, mail, of_array);
    let mut text = format!("The {kind} {number} ({name}) of {} {what}.\n\n", one_line(&known.user));
    if !of_array {
        text.push_str(&format!("State: {}\n", change.state));
        if let ChangeCause::Ended { outcome, exit, detail } = &change.cause {
            text.push_str(&format!("Outcome: {outcome}\n"));
            if let Some(exit) = exit {
                text.push_str(&format!("Exit code: {exit}\n"));
            }
            if !detail.is_empty() {
                text.push_str(&format!("Detail: {}\n", one_line(detail)));
            }
        }
    }
    text.push_str(&format!("More: tessera show {number}\n"));
    MailMessage {
        to: mail.rules.to.clone(),
        subject: format!("Tessera {kind} {number} ({name}) {what}"),
        text,
    }
}

fn what_happened(
    event: MailType,
    change: &ChangedJob,
    known: &JobFacts,
    mail: &MailFacts,
    of_array: bool,
) -> String {
    let of_limit = |percent: u8| format!("has run for {percent} % of its time limit");
    match event {
        MailType::Begin => "began".to_owned(),
        MailType::Requeue if of_array => "has a task that was requeued".to_owned(),
        MailType::Requeue => "was requeued".to_owned(),
        MailType::InvalidDepend => "can never start, since its dependency can't be met".to_owned(),
        MailType::TimeLimit => "reached its time limit".to_owned(),
        MailType::End | MailType::Fail if of_array => {
            format!("ended, {} of {} tasks failed", mail.failed, known.tasks)
        }
        MailType::End | MailType::Fail => format!("ended as {}", change.state),
        MailType::TimeLimit90 => of_limit(90),
        MailType::TimeLimit80 => of_limit(80),
        MailType::TimeLimit50 => of_limit(50),
        // It is not an event, but the way in which others are counted.
        MailType::ArrayTasks => String::new(),
    }
}

/// Returns a text as a part of one line, without characters that end a header or move a terminal's
/// cursor.
fn one_line(text: &str) -> String {
    let plain = |c: char| if c.is_control() || is_break(c) { ' ' } else { c };
    text.chars().map(plain).collect()
}

/// Returns whether a character other than a control character separates lines or changes the
/// direction of text.
const fn is_break(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
