//! Requests that the controller itself makes: only to addresses with TLS, or on this machine.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Makes a client for one address. It trusts the authorities of a file, or those of the system.
///
/// # Errors
///
/// If the address has no TLS and is not on this machine, or if the file has no certificates.
pub fn client(address: &str, ca: Option<&Path>, within: Duration) -> anyhow::Result<Client> {
    // Without their own provider, connections use that of the process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .connect_timeout(within)
        .timeout(within)
        // The operator names the address; nobody else leads to others.
        .redirect(Policy::none());
    if is_local(&checked_url(address)?) {
        builder = builder.no_proxy();
    }
    if let Some(path) = ca {
        builder = builder.tls_backend_preconfigured(trusting(path)?);
    }
    Ok(builder.build()?)
}

/// Returns an address that requests may go to.
///
/// # Errors
///
/// If it is no URL, or if it has no TLS and is not on this machine.
pub fn checked_url(text: &str) -> anyhow::Result<Url> {
    let url = Url::parse(text).with_context(|| format!("{text:?} is not a URL"))?;
    // Without TLS, anybody on the way could change an answer.
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
fn trusting(path: &Path) -> anyhow::Result<rustls::ClientConfig> {
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
    fn requests_go_over_tls_or_to_this_machine() {
        for good in ["https://login.example.org", "http://127.0.0.1:80", "http://[::1]/x"] {
            assert!(checked_url(good).is_ok(), "{good}");
        }
        for bad in ["http://login.example.org", "http://127.0.0.1.example.org", "file:///k", "x"] {
            assert!(checked_url(bad).is_err(), "{bad}");
        }
    }
}
