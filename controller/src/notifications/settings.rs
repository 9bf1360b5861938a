//! The operator's settings for mail and webhooks: tables of the configuration file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tessera_model::life::JobState;
use tessera_model::mail::MailAddress;

use crate::outgoing::checked_url;

/// Default time that the mail program may take, in seconds: it usually only queues the mail.
const MAIL_TIMEOUT_SECS: u64 = 30;
/// Least and most seconds that the mail program may take.
const TIMEOUT_SECS: std::ops::RangeInclusive<u64> = 1..=600;
/// Shortest secret, in bytes: as many as a key of 128 bits has.
const SECRET_BYTES_MIN: usize = 16;
/// Largest file with a secret.
const SECRET_BYTES_MAX: usize = 4_096;

/// How mail leaves: table `mail`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MailSettings {
    /// The program that takes a mail on standard input, and its arguments. No shell reads them.
    pub command: Vec<String>,
    /// The sender; by default the mail program names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<MailAddress>,
    /// How many seconds the program may take for a mail.
    #[serde(default = "mail_timeout")]
    pub timeout: u64,
}

const fn mail_timeout() -> u64 {
    MAIL_TIMEOUT_SECS
}

impl MailSettings {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// Names the setting that is wrong and what was expected.
    pub fn check(&self) -> anyhow::Result<()> {
        let is_path = self.command.first().is_some_and(|program| program.starts_with('/'));
        if !is_path {
            bail!(
                "mail.command is {:?}: write a program's absolute path and its arguments, such as \
                 [\"/usr/sbin/sendmail\", \"-t\", \"-i\"]",
                self.command
            );
        }
        if !TIMEOUT_SECS.contains(&self.timeout) {
            bail!("mail.timeout is {}: write 1 to 600 seconds", self.timeout);
        }
        Ok(())
    }

    /// Returns how long the program may take for a mail.
    pub(super) const fn within(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// Where state changes of jobs are posted: table `webhook`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct WebhookSettings {
    /// The receiver's address.
    pub url: String,
    /// A file with the secret that signs the requests.
    pub secret_file: PathBuf,
    /// The states whose beginning is posted; by default every state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<JobState>,
    /// The authorities that sign the receiver's certificate (PEM); by default those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl WebhookSettings {
    /// Checks the settings, without reading a file.
    ///
    /// # Errors
    ///
    /// Names the setting that is wrong and what was expected.
    pub fn check(&self) -> anyhow::Result<()> {
        checked_url(&self.url).context("webhook.url")?;
        if !self.secret_file.is_absolute() {
            bail!(
                "webhook.secret-file is {:?}: write the absolute path of a file with the secret",
                self.secret_file
            );
        }
        Ok(())
    }

    /// Returns the states whose beginning is posted.
    pub(super) fn states(&self) -> BTreeSet<JobState> {
        let states = if self.states.is_empty() { JobState::ALL } else { &self.states[..] };
        states.iter().copied().collect()
    }

    /// Reads the secret, without white space around it.
    pub(super) fn read_secret(&self) -> anyhow::Result<Vec<u8>> {
        read_secret(&self.secret_file)
    }
}

fn read_secret(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(path)
        .with_context(|| format!("can't read webhook.secret-file {}", path.display()))?;
    let secret = bytes.trim_ascii();
    if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
        bail!(
            "webhook.secret-file {} holds {} bytes: write {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}, such as the \
             output of: openssl rand -hex 32",
            path.display(),
            secret.len()
        );
    }
    Ok(secret.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail(text: &str) -> anyhow::Result<MailSettings> {
        let settings: MailSettings = toml::from_str(text)?;
        settings.check().map(|()| settings)
    }

    fn webhook(text: &str) -> anyhow::Result<WebhookSettings> {
        let settings: WebhookSettings = toml::from_str(text)?;
        settings.check().map(|()| settings)
    }

    #[test]
    fn mail_needs_a_program_and_its_other_settings_have_defaults() {
        let settings = mail("command = [\"/usr/sbin/sendmail\", \"-t\"]").unwrap();

        assert_eq!((settings.timeout, settings.from), (30, None));
    }

    #[test]
    fn each_wrong_setting_names_what_was_expected() {
        let command = "command = [\"/bin/cat\"]\n";
        let url = "url = \"https://hook.example.org\"\nsecret-file = \"/s\"\n";
        for (text, hint) in [
            ("command = []", "absolute path"),
            ("command = [\"sendmail -t\"]", "absolute path"),
            (&format!("{command}timeout = 0"), "1 to 600"),
            (&format!("{command}from = \"a\\nBcc: b\""), "ada@example.org"),
            (&format!("{command}to = \"a\""), "unknown field"),
        ] {
            let error = format!("{:#}", mail(text).unwrap_err());
            assert!(error.contains(hint), "{text}: {error}");
        }
        for (text, hint) in [
            ("url = \"http://hook.example.org\"\nsecret-file = \"/s\"", "https://"),
            ("url = \"https://hook.example.org\"\nsecret-file = \"s\"", "absolute path"),
            (&format!("{url}states = [\"begun\"]"), "running"),
            ("url = \"https://hook.example.org\"", "secret-file"),
        ] {
            let error = format!("{:#}", webhook(text).unwrap_err());
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn a_secret_is_read_without_its_line_break_and_is_not_short() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert_eq!(read_secret(&path).unwrap(), b"0123456789abcdef");

        std::fs::write(&path, "0123456789abcde\n\n").unwrap();
        assert!(read_secret(&path).unwrap_err().to_string().contains("openssl rand"));
    }
}
