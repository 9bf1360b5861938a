//! One request, repeated until there is a response or the patience runs out.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::RETRY_AFTER;
use reqwest::{Method, Response, StatusCode, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Access;
use super::error::ClientError;
use super::pairs;
use super::retry::RetryPatience;
use tessera_api_types::ProblemDetails;

/// Longest time for a connection: a controller on the same network answers in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for an answer that the controller doesn't hold back on purpose.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// What requests over a Unix socket are addressed to: no name is looked up.
const SOCKET_URL: &str = "http://localhost";
/// How much of an answer that can't be parsed is shown, in characters.
const EXCERPT_CHARS: usize = 120;

/// Everything that one request needs; can be sent any number of times.
#[derive(Clone, Debug)]
pub(super) struct ApiCall {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(&'static str, String)>,
    body: Option<serde_json::Value>,
    timeout: Duration,
}

impl ApiCall {
    pub(super) fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }

    pub(super) fn post(path: &str) -> Self {
        Self::new(Method::POST, path)
    }

    pub(super) fn delete(path: &str) -> Self {
        Self::new(Method::DELETE, path)
    }

    pub(super) fn patch(path: &str) -> Self {
        Self::new(Method::PATCH, path)
    }

    fn new(method: Method, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            query: Vec::new(),
            headers: Vec::new(),
            body: None,
            timeout: ANSWER_TIMEOUT,
        }
    }

    pub(super) fn query(mut self, name: &str, value: impl Display) -> Self {
        self.query.push((name.to_owned(), value.to_string()));
        self
    }

    pub(super) fn maybe(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    pub(super) fn queries(mut self, query: &impl Serialize) -> Self {
        self.query.extend(pairs(query));
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(super) fn body(mut self, body: &impl Serialize) -> Self {
        self.body = Some(serde_json::to_value(body).expect("bodies have text keys only"));
        self
    }

    pub(super) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// What all calls share.
#[derive(Clone, Debug)]
pub(super) struct HttpConnection {
    inner: reqwest::Client,
    base: Url,
    /// The address for people.
    shown: String,
    token: Option<String>,
    patience: RetryPatience,
}

/// How one try ended that may be repeated.
enum RequestFailure {
    NoAnswer(reqwest::Error),
    Busy { answer: Response, retry_after: Option<Duration> },
}

impl HttpConnection {
    pub(super) fn new(
        address: &str,
        access: &Access<'_>,
        patience: RetryPatience,
    ) -> Result<Self, ClientError> {
        let bad = || ClientError::BadAddress { address: address.to_owned() };
        let socket = address.strip_prefix("unix://");
        let url = socket.map_or(address, |_| SOCKET_URL);
        let base = Url::parse(&format!("{}/", url.trim_end_matches('/'))).map_err(|_| bad())?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(bad());
        }
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            // The controller is in the same network; proxies are for external addresses.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(tls(access.authority)?);
        if let Some(socket) = socket {
            let path = Path::new(socket);
            if !path.is_absolute() {
                return Err(bad());
            }
            builder = builder.unix_socket(path);
        }
        let inner = builder.build().expect("a client with its TLS configured has nothing to load");
        let token = access.token.map(str::to_owned);
        Ok(Self { inner, base, shown: address.trim_end_matches('/').to_owned(), token, patience })
    }

    pub(super) fn with_patience(&self, patience: RetryPatience) -> Self {
        Self { patience, ..self.clone() }
    }

    /// Sends a request and reads the response's JSON.
    pub(super) async fn json<T: DeserializeOwned>(&self, call: ApiCall) -> Result<T, ClientError> {
        let answer = self.send(&call, Some(call.timeout)).await?;
        let body = answer.bytes().await.map_err(|cause| self.unreachable(cause))?;
        serde_json::from_slice(&body)
            .map_err(|bad| self.unexpected(format!("{bad}: {}", excerpt(&body))))
    }

    /// Sends a request and returns the response's text.
    pub(super) async fn text(&self, call: ApiCall) -> Result<String, ClientError> {
        let answer = self.send(&call, Some(call.timeout)).await?;
        answer.text().await.map_err(|cause| self.unreachable(cause))
    }

    /// Sends a request whose response has no content.
    pub(super) async fn done(&self, call: ApiCall) -> Result<(), ClientError> {
        self.send(&call, Some(call.timeout)).await.map(drop)
    }

    /// Sends a request and streams the response, without a timeout.
    pub(super) async fn stream(&self, call: ApiCall) -> Result<LogStream, ClientError> {
        let answer = self.send(&call, None).await?;
        let pieces = answer.bytes_stream().map(|piece| piece.map(|bytes| bytes.to_vec())).boxed();
        Ok(LogStream { pieces, address: self.address() })
    }

    /// Sends a request that turns the connection into another one, without a timeout.
    pub(super) async fn upgrade(&self, call: ApiCall) -> Result<reqwest::Upgraded, ClientError> {
        let answer = self.send(&call, None).await?;
        answer.upgrade().await.map_err(|cause| self.unreachable(cause))
    }

    /// Repeats a request until there is a response that a repetition would not change.
    async fn send(
        &self,
        call: &ApiCall,
        timeout: Option<Duration>,
    ) -> Result<Response, ClientError> {
        let mut paused = Duration::ZERO;
        let mut failures = 0;
        loop {
            let failure = match self.try_once(call, timeout).await {
                Ok(answer) => return self.judge(answer).await,
                Err(failure) => failure,
            };
            failures += 1;
            let named = match &failure {
                RequestFailure::NoAnswer(_) => None,
                RequestFailure::Busy { retry_after, .. } => *retry_after,
            };
            match (self.patience.pause(failures, paused, named), failure) {
                (Some(pause), _) => {
                    tokio::time::sleep(pause).await;
                    paused += pause;
                }
                (None, RequestFailure::NoAnswer(cause)) => return Err(self.unreachable(cause)),
                (None, RequestFailure::Busy { answer, .. }) => return self.judge(answer).await,
            }
        }
    }

    async fn try_once(
        &self,
        call: &ApiCall,
        timeout: Option<Duration>,
    ) -> Result<Response, RequestFailure> {
        let mut url = self.base.join(&call.path).expect("paths are made of escaped segments");
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let mut request = self.inner.request(call.method.clone(), url);
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(RequestFailure::NoAnswer)?;
        match answer.status() {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                let retry_after = retry_after(&answer);
                Err(RequestFailure::Busy { answer, retry_after })
            }
            _ => Ok(answer),
        }
    }

    /// Returns a successful response, and turns any other into an error.
    async fn judge(&self, answer: Response) -> Result<Response, ClientError> {
        let status = answer.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(answer);
        }
        let body = answer.bytes().await.map_err(|cause| self.unreachable(cause))?;
        Err(match serde_json::from_slice::<ProblemDetails>(&body) {
            Ok(problem) => ClientError::Refused(Box::new(problem)),
            Err(_) => self.unexpected(format!("{status}: {}", excerpt(&body))),
        })
    }

    fn unreachable(&self, cause: reqwest::Error) -> ClientError {
        ClientError::Unreachable { address: self.address(), reason: innermost(&cause), cause }
    }

    fn unexpected(&self, detail: String) -> ClientError {
        ClientError::Unexpected { address: self.address(), detail }
    }

    fn address(&self) -> String {
        self.shown.clone()
    }
}

/// Trusts the certificates of these authorities (PEM) and no others; without any, no certificate.
fn tls(authority: Option<&[u8]>) -> Result<rustls::ClientConfig, ClientError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.unwrap_or_default()) {
        let added = certificate.ok().and_then(|certificate| roots.add(certificate).ok());
        added.ok_or(ClientError::BadAuthority)?;
    }
    if authority.is_some() && roots.is_empty() {
        return Err(ClientError::BadAuthority);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider supports TLS 1.3");
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// A job's output, piece by piece.
pub struct LogStream {
    pieces: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    address: String,
}

impl LogStream {
    /// Returns the next bytes, or `None` at the end.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unreachable`] if the connection broke: open it again at the offset
    /// that was reached.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        match self.pieces.next().await {
            None => Ok(None),
            Some(Ok(piece)) => Ok(Some(piece)),
            Some(Err(cause)) => Err(ClientError::Unreachable {
                address: self.address.clone(),
                reason: innermost(&cause),
                cause,
            }),
        }
    }
}

fn retry_after(answer: &Response) -> Option<Duration> {
    let text = answer.headers().get(RETRY_AFTER)?.to_str().ok()?;
    // The other form, a date, is never sent by a controller.
    text.trim().parse().ok().map(Duration::from_secs)
}

/// Escapes one segment of a path.
pub(super) fn segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Returns the innermost cause; the outer ones only repeat the URL.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let short: String = text.chars().take(EXCERPT_CHARS).collect();
    if short.is_empty() { "an empty body".to_owned() } else { format!("{short:?}") }
}
