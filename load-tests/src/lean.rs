//! A keep-alive HTTP/1.1 client that costs next to nothing: it shares its cores with the server
//! that it measures.

use std::io;
use std::net::SocketAddr;

use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// One connection.
#[derive(Debug)]
pub struct Lean<S = TcpStream> {
    socket: S,
    buffer: Vec<u8>,
}

impl Lean<UnixStream> {
    /// Connects to a Unix socket.
    ///
    /// # Errors
    ///
    /// If nobody listens.
    pub async fn connect_unix(path: &Path) -> io::Result<Self> {
        Ok(Self { socket: UnixStream::connect(path).await?, buffer: Vec::with_capacity(4096) })
    }
}

impl Lean {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If nobody listens.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: Vec::with_capacity(4096) })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Lean<S> {
    /// Sends a whole request and returns the status of its answer, whose body is left in
    /// [`Self::body`].
    ///
    /// # Errors
    ///
    /// If the connection breaks, or the answer has no length.
    pub async fn send(&mut self, request: &[u8]) -> io::Result<u16> {
        self.socket.write_all(request).await?;
        self.buffer.clear();
        loop {
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some(head) = head_length(&self.buffer) else { continue };
            let missing = body_length(&self.buffer[..head])? + head - self.buffer.len();
            if missing > 0 {
                let from = self.buffer.len();
                self.buffer.resize(from + missing, 0);
                self.socket.read_exact(&mut self.buffer[from..]).await?;
            }
            return status(&self.buffer);
        }
    }

    /// Returns the body of the last answer.
    pub fn body(&self) -> &[u8] {
        &self.buffer[head_length(&self.buffer).unwrap_or(0)..]
    }
}

/// Writes a request with a JSON body, and with a token if one is needed.
pub fn post(path: &str, token: Option<&str>, body: &[u8]) -> Vec<u8> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{}\
         content-length: {}\r\n\r\n",
        token.unwrap_or_default(),
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// Writes a request without a body, and with a token if one is needed.
pub fn get(path: &str, token: Option<&str>) -> Vec<u8> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let token = token.unwrap_or_default();
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{token}\r\n").into_bytes()
}

fn head_length(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

fn body_length(head: &[u8]) -> io::Result<usize> {
    let text = std::str::from_utf8(head).map_err(io::Error::other)?;
    text.lines()
        .find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        })
        .ok_or_else(|| io::Error::other("an answer without a length"))
}

fn status(answer: &[u8]) -> io::Result<u16> {
    answer
        .get(9..12)
        .and_then(|code| std::str::from_utf8(code).ok()?.parse().ok())
        .ok_or_else(|| io::Error::other("no status line"))
}
