//! Where the keys of an issuer come from: its own description over HTTP, or a file.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use reqwest::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::OidcSettings;
use super::keys::{KeySet, PublishedKeys};
use crate::outgoing::{self, checked_url};

/// How long one request to the issuer may take.
const REQUEST_WITHIN: Duration = Duration::from_secs(4);
/// Largest answer of an issuer: above any set of keys.
const ANSWER_MAX: usize = 256 << 10;

/// Where keys come from.
#[derive(Debug)]
pub(super) enum KeySource {
    /// A file, read at each fetch.
    File(PathBuf),
    /// The issuer's description.
    Issuer { client: Client, issuer: String },
}

/// What is used of an issuer's description (OpenID Connect Discovery 1.0).
#[derive(Debug, Deserialize)]
struct Description {
    issuer: String,
    jwks_uri: String,
}

impl KeySource {
    pub(super) fn open(settings: &OidcSettings) -> anyhow::Result<Self> {
        if let Some(keys) = &settings.keys {
            return Ok(Self::File(keys.clone()));
        }
        let client = outgoing::client(&settings.issuer, settings.ca.as_deref(), REQUEST_WITHIN)
            .context("no client for the issuer")?;
        Ok(Self::Issuer { client, issuer: settings.issuer.clone() })
    }

    /// Fetches the keys.
    pub(super) async fn fetch(&self) -> anyhow::Result<KeySet> {
        let published: PublishedKeys = match self {
            Self::File(path) => {
                let text = tokio::fs::read(path)
                    .await
                    .with_context(|| format!("can't read {}", path.display()))?;
                serde_json::from_slice(&text)
                    .with_context(|| format!("{} holds no set of keys", path.display()))?
            }
            Self::Issuer { client, issuer } => {
                let place =
                    format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
                let description: Description = read(client, &place).await?;
                ensure!(
                    description.issuer == *issuer,
                    "{place} describes {:?}, another issuer",
                    description.issuer
                );
                checked_url(&description.jwks_uri)?;
                read(client, &description.jwks_uri).await?
            }
        };
        let keys = KeySet::from(published);
        ensure!(!keys.is_empty(), "it has no key that checks signatures");
        Ok(keys)
    }
}

/// Reads a small document.
async fn read<T: DeserializeOwned>(client: &Client, url: &str) -> anyhow::Result<T> {
    let unread = || format!("can't read {url}");
    let mut answer = client.get(url).send().await.with_context(unread)?;
    ensure!(answer.status().is_success(), "{url} answers with status {}", answer.status());
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.with_context(unread)? {
        ensure!(body.len() + piece.len() <= ANSWER_MAX, "{url} has more than {ANSWER_MAX} bytes");
        body.extend_from_slice(&piece);
    }
    serde_json::from_slice(&body).with_context(|| format!("{url} is not what it should be"))
}
