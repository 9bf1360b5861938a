//! A client's connection to a session, by way of the agent. It never blocks.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tessera_frames::codec::FRAME_BYTES_MAX;

use crate::shepherd::socket::{frame_bytes, take_frame};

/// Bytes that wait for the client: more output is added once it has read these.
const OUT_BYTES: usize = 64 * 1024;

/// One connection.
#[derive(Debug)]
pub struct SessionClient {
    stream: UnixStream,
    read: Vec<u8>,
    unsent: Vec<u8>,
    is_open: bool,
}

impl SessionClient {
    /// Takes over a connection.
    ///
    /// # Errors
    ///
    /// It is not a socket.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, read: Vec::new(), unsent: Vec::new(), is_open: true })
    }

    /// Returns what `poll` takes.
    pub fn poll_on(&self) -> (BorrowedFd<'_>, PollFlags) {
        let writes = if self.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        (self.stream.as_fd(), PollFlags::IN | writes)
    }

    /// Returns whether the other end exists, as far as is known.
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns whether more may be queued.
    pub fn has_capacity(&self) -> bool {
        self.unsent.len() < OUT_BYTES
    }

    /// Returns whether everything was sent.
    pub fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Queues a frame.
    pub fn queue<T: Serialize>(&mut self, frame: &T) {
        match frame_bytes(frame) {
            Ok(bytes) => self.unsent.extend_from_slice(&bytes),
            // A bug: the client would wait for it.
            Err(_) => self.is_open = false,
        }
    }

    /// Sends what was queued, as far as the other end accepts it.
    pub fn flush(&mut self) {
        while self.is_open && !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => self.is_open = false,
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.is_open = false,
            }
        }
    }

    /// Takes the next frame that has arrived; `None` if there is none yet, or if there never will
    /// be ([`Self::is_open`]).
    pub fn receive<T: DeserializeOwned>(&mut self) -> Option<T> {
        let mut chunk = [0; 16 * 1024];
        loop {
            match take_frame(&mut self.read) {
                Ok(Some(frame)) => return Some(frame),
                Ok(None) if !self.is_open || self.read.len() > FRAME_BYTES_MAX + 4 => return None,
                Ok(None) => {}
                Err(_) => {
                    self.is_open = false;
                    self.read.clear();
                    return None;
                }
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => self.is_open = false,
                Ok(read) => self.read.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.is_open = false,
            }
        }
    }
}
