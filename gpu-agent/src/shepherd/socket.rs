//! Frames over a unix socket that never blocks: a shepherd waits for its attempt, not for an
//! agent that stopped reading.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tessera_frames::codec::{self, FRAME_BYTES_MAX};

/// One connection to an agent.
#[derive(Debug)]
pub struct AgentSocket {
    stream: UnixStream,
    buffer: Vec<u8>,
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum SocketInput<T> {
    /// Whole frames; more may come.
    Frames(Vec<T>),
    /// Whole frames, and then the agent's end.
    Last(Vec<T>),
}

impl AgentSocket {
    /// Takes over a connection.
    ///
    /// # Errors
    ///
    /// The descriptor can't be made non-blocking: it is not a socket.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Returns what `poll` takes.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Sends one frame.
    ///
    /// # Errors
    ///
    /// The agent is gone, or hasn't read for so long that the kernel's buffer is full: drop the
    /// connection; an agent that still lives will connect again.
    pub fn send<T: Serialize>(&mut self, frame: &T) -> io::Result<()> {
        self.stream.write_all(&frame_bytes(frame)?)
    }

    /// Takes everything that has arrived.
    pub fn receive<T: DeserializeOwned>(&mut self) -> SocketInput<T> {
        let open = self.fill();
        let mut frames = Vec::new();
        let mut sound = true;
        while let Some(frame) = take_frame(&mut self.buffer).transpose() {
            match frame {
                Ok(frame) => frames.push(frame),
                Err(_) => {
                    sound = false;
                    break;
                }
            }
        }
        if open && sound { SocketInput::Frames(frames) } else { SocketInput::Last(frames) }
    }

    /// Returns whether the other end is still there.
    fn fill(&mut self) -> bool {
        let mut chunk = [0; 16 * 1024];
        // An agent sends at most two frames without an answer.
        while self.buffer.len() <= 2 * (FRAME_BYTES_MAX + 4) {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(bytes) => self.buffer.extend_from_slice(&chunk[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Returns a frame with its length before it.
///
/// # Errors
///
/// The frame is too large: a bug of the caller.
pub fn frame_bytes<T: Serialize>(frame: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    codec::encode(frame, &mut bytes).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    Ok(bytes)
}

/// Takes one frame from the front of `buffer`, if a whole one is there.
///
/// # Errors
///
/// The bytes are not our frames: give up the connection.
pub fn take_frame<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some((prefix, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*prefix) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let frame = codec::decode(body).map_err(io::Error::other)?;
    buffer.drain(..4 + length);
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_came_before_the_end_are_not_lost() {
        let (mut there, here) = UnixStream::pair().unwrap();
        let mut here = AgentSocket::new(here).unwrap();
        there.write_all(&frame_bytes(&7_u32).unwrap()).unwrap();
        there.write_all(&frame_bytes(&8_u32).unwrap()[..3]).unwrap();
        assert_eq!(here.receive::<u32>(), SocketInput::Frames(vec![7]));

        there.write_all(&frame_bytes(&8_u32).unwrap()[3..]).unwrap();
        drop(there);

        assert_eq!(here.receive::<u32>(), SocketInput::Last(vec![8]));
    }

    #[test]
    fn a_length_bomb_ends_the_connection() {
        let (mut there, here) = UnixStream::pair().unwrap();
        let mut here = AgentSocket::new(here).unwrap();
        there.write_all(&u32::MAX.to_be_bytes()).unwrap();

        assert_eq!(here.receive::<u32>(), SocketInput::Last(vec![]));
    }
}
