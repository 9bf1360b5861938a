//! Mail: a message on the standard input of the operator's program.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use mail_builder::MessageBuilder;
use mail_builder::headers::address::Address;
use mail_builder::headers::raw::Raw;
use tessera_control::notifications::MailMessage;
use tessera_model::mail::MailAddress;
use time::OffsetDateTime;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use uuid::Uuid;

use super::MailSettings;
use super::delivery::Sender;
use crate::store::notifications::ClaimedNotification;

/// Number of mails at a time: mail programs only queue, and one that hangs holds this many
/// processes.
const AT_A_TIME: i64 = 4;
/// How much of a program's errors is kept.
const ERRORS_MAX: usize = 300;

/// The operator's program.
#[derive(Debug)]
pub(super) struct MailProgram {
    command: Vec<String>,
    from: Option<MailAddress>,
    within: Duration,
}

impl MailProgram {
    pub(super) fn new(settings: &MailSettings) -> Self {
        Self {
            command: settings.command.clone(),
            from: settings.from.clone(),
            within: settings.within(),
        }
    }

    /// Runs the program with a message on its standard input.
    async fn run(&self, message: &[u8]) -> anyhow::Result<()> {
        let (program, arguments) =
            self.command.split_first().context("mail.command names no program")?;
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("can't start {program}"))?;
        let input = child.stdin.take();
        let write = async {
            if let Some(mut input) = input {
                // A program that reads no further shows by its status whether that matters.
                let _ = input.write_all(message).await;
            }
        };
        let (ended, ()) = tokio::join!(child.wait_with_output(), write);
        let ended = ended.with_context(|| format!("can't wait for {program}"))?;
        if !ended.status.success() {
            let errors = String::from_utf8_lossy(&ended.stderr);
            let errors: String = errors.trim().chars().take(ERRORS_MAX).collect();
            bail!("{program} ended with {}: {errors}", ended.status);
        }
        Ok(())
    }
}

impl Sender for MailProgram {
    const AT_A_TIME: i64 = AT_A_TIME;

    async fn send(&self, one: &ClaimedNotification) -> anyhow::Result<()> {
        let message: MailMessage = serde_json::from_value(one.body.clone())
            .context("the row holds no mail that this version can read")?;
        let message = compose(one.id, one.created_at, self.from.as_ref(), &message)?;
        tokio::time::timeout(self.within, self.run(&message))
            .await
            .with_context(|| format!("the mail program took more than {:?}", self.within))?
    }
}

/// Returns a mail with its headers. The id in it stays the same when it is sent again, so that mailboxes can drop the
/// second one.
fn compose(
    id: Uuid,
    created_at: OffsetDateTime,
    from: Option<&MailAddress>,
    message: &MailMessage,
) -> anyhow::Result<Vec<u8>> {
    let nameless = |address: &MailAddress| Address::new_address(None::<&str>, address.to_string());
    let mut mail = MessageBuilder::new()
        .to(Address::new_list(message.to.iter().map(nameless).collect()))
        .subject(message.subject.as_str())
        .date(created_at.unix_timestamp())
        .message_id(format!("{id}@tessera.invalid"))
        // RFC 3834: no program answers it automatically.
        .header("Auto-Submitted", Raw::new("auto-generated"))
        .text_body(message.text.as_str());
    if let Some(from) = from {
        mail = mail.from(nameless(from));
    }
    Ok(mail.write_to_vec()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn composed(subject: &str, text: &str) -> String {
        let message = MailMessage {
            to: vec!["ada@example.org".parse().unwrap(), "bob".parse().unwrap()],
            subject: subject.to_owned(),
            text: text.to_owned(),
        };
        let from = "tessera@example.org".parse().unwrap();
        let mail = compose(Uuid::nil(), OffsetDateTime::UNIX_EPOCH, Some(&from), &message);
        String::from_utf8(mail.unwrap()).unwrap()
    }

    /// The names of the headers: lines that begin with white space continue the one before.
    fn headers(mail: &str) -> Vec<&str> {
        let head = mail.split("\r\n\r\n").next().unwrap();
        let lines = head.split("\r\n").filter(|line| !line.starts_with([' ', '\t']));
        let mut names: Vec<_> =
            lines.map(|line| line.split_once(':').map_or(line, |(name, _)| name)).collect();
        names.sort_unstable();
        names
    }

    const HEADERS: [&str; 9] = [
        "Auto-Submitted",
        "Content-Transfer-Encoding",
        "Content-Type",
        "Date",
        "From",
        "MIME-Version",
        "Message-ID",
        "Subject",
        "To",
    ];

    #[test]
    fn a_mail_names_its_recipients_its_subject_and_its_time() {
        let mail = composed("Tessera job 7 (train) began", "It began.\n");

        assert_eq!(headers(&mail), HEADERS);
        for line in [
            "To: <ada@example.org>, <bob>",
            "From: <tessera@example.org>",
            "Subject: Tessera job 7 (train) began",
            "Date: Thu, 1 Jan 1970 00:00:00 +0000",
            "Message-ID: <00000000-0000-0000-0000-000000000000@tessera.invalid>",
            "Auto-Submitted: auto-generated",
            "It began.",
        ] {
            assert!(mail.lines().any(|found| found == line), "{line} in {mail}");
        }
    }

    proptest! {
        #[test]
        fn no_subject_and_no_text_adds_a_header(
            subject in "(\\PC|\\r|\\n|Bcc: x){0,60}", text in "(\\PC|\\r|\\n|Bcc: x){0,60}",
        ) {
            let mail = composed(&subject, &text);

            prop_assert_eq!(headers(&mail), HEADERS.to_vec(), "{}", mail);
        }
    }
}
