//! Requests to a controller, each on a connection of its own and without retries: a test sees every
//! refused or broken connection.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::blocking::Client;
use reqwest::header::HeaderMap;
use serde::de::DeserializeOwned;

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
    /// If it has another form: an answer that breaks the contract fails the test.
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
    let method = method.parse().map_err(io::Error::other)?;
    let mut request = client().request(method, format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(body) = body {
        request = request.body(body.to_vec());
    }
    let mut answer = request.send().map_err(io::Error::other)?;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let mut body = Vec::new();
    answer.read_to_end(&mut body)?;
    Ok(Response { status, headers, body })
}

/// Sends a GET request whose answer is read while it arrives.
///
/// # Errors
///
/// If the connection fails, or no answer begins in time.
pub fn stream(address: SocketAddr, path: &str) -> io::Result<impl Read> {
    let request = client().get(format!("http://{address}{path}")).timeout(STREAM_WITHIN);
    request.send().map_err(io::Error::other)
}

/// One client for the whole process: each one has a thread of its own.
fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let builder = Client::builder()
            .no_proxy()
            .timeout(ANSWER_WITHIN)
            .connect_timeout(CONNECT_WITHIN)
            .pool_max_idle_per_host(0)
            .redirect(reqwest::redirect::Policy::none());
        builder.build().expect("a client without TLS needs nothing")
    })
}
