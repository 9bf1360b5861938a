//! A plain blocking HTTP/1.1 client: the tests must see what is on the wire, not what a client
//! library makes of it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// How long an answer may take before the request counts as failed.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body, whole.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns a header; names are compared without regard to case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Reads the body.
    ///
    /// # Panics
    ///
    /// If it is something else: an answer that breaks the contract fails the test.
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
    /// If it is another.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }
}

/// An answer whose body is still arriving.
#[derive(Debug)]
pub struct Streaming {
    /// The status.
    pub status: u16,
    body: Body,
}

impl Read for Streaming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.body.read(buffer)
    }
}

/// Sends one request on a connection of its own.
///
/// # Errors
///
/// Whatever the connection says, also when no answer came in time.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> io::Result<Response> {
    let (status, headers, mut rest) = open(address, method, path, headers, body)?;
    let mut body = Vec::new();
    rest.read_to_end(&mut body)?;
    Ok(Response { status, headers, body })
}

/// Sends a request whose answer is read while it arrives.
///
/// # Errors
///
/// As [`request`].
pub fn stream(address: SocketAddr, path: &str) -> io::Result<Streaming> {
    let (status, _, body) = open(address, "GET", path, &[], None)?;
    Ok(Streaming { status, body })
}

type Opened = (u16, Vec<(String, String)>, Body);

fn open(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> io::Result<Opened> {
    let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = body {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let mut message = head.into_bytes();
    message.extend_from_slice(body.unwrap_or_default());
    socket.write_all(&message)?;

    let mut socket = BufReader::new(socket);
    let status_line = line(&mut socket)?;
    let status = status_line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| bad(&format!("no status line: {status_line:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = line(&mut socket)?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    let left = left_of(&headers);
    Ok((status, headers, Body { socket, left }))
}

fn left_of(headers: &[(String, String)]) -> Left {
    let value = |wanted: &str| {
        headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, v)| v.as_str())
    };
    if value("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
        Left::Chunked { in_chunk: 0, first: true }
    } else {
        match value("content-length").and_then(|v| v.parse().ok()) {
            Some(bytes) => Left::Bytes(bytes),
            None => Left::UntilClosed,
        }
    }
}

#[derive(Debug)]
struct Body {
    socket: BufReader<TcpStream>,
    left: Left,
}

#[derive(Debug)]
enum Left {
    Bytes(u64),
    Chunked { in_chunk: u64, first: bool },
    UntilClosed,
    Nothing,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Left::Chunked { in_chunk: 0, first } = self.left {
            if !first {
                line(&mut self.socket)?;
            }
            let size = line(&mut self.socket)?;
            let size = size.split(';').next().unwrap_or_default();
            let in_chunk = u64::from_str_radix(size, 16).map_err(|_| bad("no chunk size"))?;
            self.left = match in_chunk {
                0 => Left::Nothing,
                _ => Left::Chunked { in_chunk, first: false },
            };
        }
        let most = match self.left {
            Left::Bytes(0) | Left::Nothing => return Ok(0),
            Left::Bytes(left) | Left::Chunked { in_chunk: left, .. } => left,
            Left::UntilClosed => u64::MAX,
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(buffer.len());
        let got = self.socket.read(&mut buffer[..most])?;
        match &mut self.left {
            Left::Bytes(left) | Left::Chunked { in_chunk: left, .. } => {
                if got == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                *left -= got as u64;
            }
            Left::UntilClosed | Left::Nothing => {}
        }
        Ok(got)
    }
}

fn line(socket: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if socket.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}
