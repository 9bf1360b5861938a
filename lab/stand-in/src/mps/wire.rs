//! Lines over unix sockets: between the parts of the stand-in.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Longest line that is read: a longer one is not one of ours.
const LINE_MAX: u64 = 16 * 1024;

/// A connection that carries lines.
#[derive(Debug)]
pub struct LineStream {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl LineStream {
    /// Connects to a socket.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Self::over(UnixStream::connect(path)?)
    }

    /// Speaks over a connection.
    pub fn over(stream: UnixStream) -> io::Result<Self> {
        Ok(Self { writer: stream.try_clone()?, reader: BufReader::new(stream) })
    }

    /// Sends one line.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        self.writer.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes())
    }

    /// Receives one line; `None` at the end.
    pub fn receive(&mut self) -> io::Result<Option<String>> {
        use std::io::Read as _;
        let mut line = String::new();
        match self.reader.by_ref().take(LINE_MAX).read_line(&mut line)? {
            0 => Ok(None),
            _ => Ok(Some(line.trim_end().to_owned())),
        }
    }

    /// Sends a line and receives the answer.
    pub fn request(&mut self, line: &str) -> io::Result<String> {
        self.send(line)?;
        self.receive()?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Sends a whole answer: its lines, then a dot.
    pub fn send_all(&mut self, lines: &[String]) -> io::Result<()> {
        for line in lines {
            self.send(line)?;
        }
        self.send(".")
    }

    /// Sends a line and receives lines up to the dot.
    pub fn request_all(&mut self, line: &str) -> io::Result<Vec<String>> {
        self.send(line)?;
        let mut lines = Vec::new();
        loop {
            match self.receive()? {
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(line) if line == "." => return Ok(lines),
                Some(line) => lines.push(line),
            }
        }
    }
}
