//! Where the keys of an issuer come from: its own description over HTTP, or a file.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::OidcSettings;
use super::keys::{KeySet, PublishedKeys};

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
        // Without a provider of their own, connections use that of the process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .connect_timeout(REQUEST_WITHIN)
            .timeout(REQUEST_WITHIN)
            // The issuer names its own addresses; nobody else leads to others.
            .redirect(Policy::none());
        if is_local(&checked_url(&settings.issuer)?) {
            builder = builder.no_proxy();
        }
        if let Some(path) = &settings.ca {
            builder = builder.tls_backend_preconfigured(trusting(path)?);
        }
        let client = builder.build().context("no client for the issuer")?;
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

/// Returns an address that keys may be fetched from.
pub(super) fn checked_url(text: &str) -> anyhow::Result<Url> {
    let url = Url::parse(text).with_context(|| format!("{text:?} is not a URL"))?;
    // Who can change keys on their way can be anybody.
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_local(&url) => Ok(url),
        _ => bail!("{text:?} has no TLS: write an address that begins with https://"),
    }
}

fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns settings of TLS that trust the authorities of a file, and no others.
fn trusting(path: &std::path::Path) -> anyhow::Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    let bad = || format!("{} holds no certificates (PEM)", path.display());
    for certificate in CertificateDer::pem_file_iter(path).with_context(bad)? {
        roots.add(certificate.with_context(bad)?).with_context(bad)?;
    }
    if roots.is_empty() {
        bail!(bad());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("no versions of TLS")?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_over_tls_or_from_this_machine() {
        for good in ["https://login.example.org", "http://127.0.0.1:80", "http://[::1]/x"] {
            assert!(checked_url(good).is_ok(), "{good}");
        }
        for bad in ["http://login.example.org", "http://127.0.0.1.example.org", "file:///k", "x"] {
            assert!(checked_url(bad).is_err(), "{bad}");
        }
    }
}
