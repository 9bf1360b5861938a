//! Requests to a controller, each on its own connection and without retries: a test sees every
//! refused or broken connection.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::{HeaderMap, Request};

/// How long an answer may take before the request counts as failed.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);
/// How long a connection may take; the controller is on the same machine.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a streamed answer may last: longer than any test.
const STREAM_WITHIN: Duration = Duration::from_secs(3_600);

/// A complete answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status code.
    pub status: u16,
    headers: HeaderMap,
    /// The whole body, as it was sent.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns a header; names are compared without regard to case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Parses the body.
    ///
    /// # Panics
    ///
    /// If the body has another form: an answer that breaks the contract fails the test.
    #[track_caller]
    pub fn json<T: DeserializeOwned>(&self) -> T {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("status {}: {error}: {}", self.status, self.text()),
        }
    }

    /// Checks the status.
    ///
    /// # Panics
    ///
    /// If it is another one.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }
}

/// Sends one request and reads the whole answer. Blocks, so that it must not be called in a future.
///
/// # Errors
///
/// If the connection fails, or no answer comes in time.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> io::Result<Response> {
    let mut request = Request::builder().method(method).uri(format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = match body {
        Some(body) => agent().run(request.body(body).map_err(io::Error::other)?),
        None => agent().run(request.body(()).map_err(io::Error::other)?),
    };
    let answer = answer.map_err(ureq::Error::into_io)?;
    let (parts, body) = answer.into_parts();
    let mut whole = Vec::new();
    body.into_reader().read_to_end(&mut whole)?;
    Ok(Response { status: parts.status.as_u16(), headers: parts.headers, body: whole })
}

/// Sends a GET request whose answer is read while it arrives.
///
/// # Errors
///
/// If the connection fails, or no answer begins in time.
pub fn stream(address: SocketAddr, path: &str, token: &str) -> io::Result<impl Read + use<>> {
    let request = agent().get(format!("http://{address}{path}"));
    let request = request.header("authorization", format!("Bearer {token}"));
    let request = request.config().timeout_global(Some(STREAM_WITHIN)).build();
    let answer = request.call().map_err(ureq::Error::into_io)?;
    Ok(answer.into_body().into_reader())
}

/// One agent for the whole process. It keeps no connection, and has no thread or runtime that a measured
/// request would have to wait for.
fn agent() -> &'static Agent {
    static AGENT: OnceLock<Agent> = OnceLock::new();
    AGENT.get_or_init(|| {
        let config = Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(ANSWER_WITHIN))
            .timeout_connect(Some(CONNECT_WITHIN))
            .max_idle_connections(0)
            .max_redirects(0);
        config.build().into()
    })
}
