//! Webhooks: signed requests to the operator's receiver.

use std::time::Duration;

use anyhow::{Context as _, bail};
use reqwest::Client;
use reqwest::header::{CONTENT_TYPE, USER_AGENT};
use ring::hmac;
use serde_json::Value;
use time::format_description::well_known::Rfc3339;

use super::WebhookSettings;
use super::delivery::Sender;
use crate::store::notifications::ClaimedNotification;
use crate::{clock, outgoing};

/// Number of requests at a time: a receiver that hangs holds this many connections.
const AT_A_TIME: i64 = 32;
/// How long a receiver may take: one that has more to do answers first.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// The header with the time of sending and the signature.
const SIGNATURE: &str = "tessera-signature";
/// The header with the id of the notification.
const EVENT_ID: &str = "tessera-event-id";

/// The operator's receiver.
pub(super) struct Receiver {
    client: Client,
    url: String,
    key: hmac::Key,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Receiver {
    pub(super) fn open(settings: &WebhookSettings) -> anyhow::Result<Self> {
        let client = outgoing::client(&settings.url, settings.ca.as_deref(), REQUEST_WITHIN)
            .context("no client for the webhook")?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &settings.read_secret()?);
        Ok(Self { client, url: settings.url.clone(), key })
    }
}

impl Sender for Receiver {
    const AT_A_TIME: i64 = AT_A_TIME;

    async fn send(&self, one: &ClaimedNotification) -> anyhow::Result<()> {
        let body = body_of(one)?;
        let answer = self
            .client
            .post(&self.url)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("tessera/", env!("CARGO_PKG_VERSION")))
            .header(EVENT_ID, one.id.to_string())
            .header(SIGNATURE, signature(&self.key, clock::unix_secs(), &body))
            .body(body)
            .send()
            .await
            // The address may contain a secret.
            .map_err(|error| error.without_url())
            .context("the receiver did not answer")?;
        if !answer.status().is_success() {
            bail!("the receiver answered with status {}", answer.status().as_u16());
        }
        Ok(())
    }
}

/// Returns the body of a request: the notice with its id, its place in the order and its time.
fn body_of(one: &ClaimedNotification) -> anyhow::Result<String> {
    let Value::Object(mut body) = one.body.clone() else { bail!("the row holds no notice") };
    body.insert("id".to_owned(), one.id.to_string().into());
    body.insert("sequence".to_owned(), one.sequence.into());
    body.insert("at".to_owned(), one.created_at.format(&Rfc3339)?.into());
    Ok(Value::Object(body).to_string())
}

/// Returns the signature of a body that is sent at a time, in seconds since 1970.
fn signature(key: &hmac::Key, at: i64, body: &str) -> String {
    use std::fmt::Write as _;

    let tag = hmac::sign(key, format!("{at}.{body}").as_bytes());
    tag.as_ref().iter().fold(format!("t={at},v1="), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_the_one_that_other_programs_compute() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef");

        let signed = signature(&key, 1_700_000_000, "{\"job\":7}");

        // printf '1700000000.{"job":7}' | openssl dgst -sha256 -hmac 0123456789abcdef
        let expected = "ca6b24ebc468b394cf0ccc3d78ae0f742191e971b5ed6606d8aa7adef18b1efc";
        assert_eq!(signed, format!("t=1700000000,v1={expected}"));
    }
}
