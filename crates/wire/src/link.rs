//! Length-prefixed frames over one QUIC stream.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tessera_frames::codec::{self, DecodeError, EncodeError, FRAME_BYTES_MAX, FrameKinds};

/// Why a frame could not be sent or received. Either way the stream is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection or stream is gone: reconnect.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    /// The peer speaks something else: don't trust the connection.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A frame of ours can't be sent: a bug.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// The sending half of a stream of frames.
#[derive(Debug)]
pub struct FrameWriter {
    stream: quinn::SendStream,
    buffer: Vec<u8>,
}

impl FrameWriter {
    /// Takes a stream over.
    pub fn new(stream: quinn::SendStream) -> Self {
        Self { stream, buffer: Vec::with_capacity(4096) }
    }

    /// Sends one frame.
    ///
    /// # Errors
    ///
    /// [`LinkError`]: give the connection up.
    pub async fn send<T: Serialize>(&mut self, frame: &T) -> Result<(), LinkError> {
        self.queue(frame)?;
        self.flush().await
    }

    /// Adds a frame to those that the next [`Self::flush`] sends in one write.
    ///
    /// # Errors
    ///
    /// [`LinkError::Encode`]; nothing was added.
    pub fn queue<T: Serialize>(&mut self, frame: &T) -> Result<(), LinkError> {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 4]);
        if let Err(error) = codec::encode(frame, &mut self.buffer) {
            self.buffer.truncate(start);
            return Err(error.into());
        }
        let length = u32::try_from(self.buffer.len() - start - 4)
            .expect("the codec refuses frames above 64 KiB");
        self.buffer[start..start + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// Sends what was queued.
    ///
    /// # Errors
    ///
    /// [`LinkError::Broken`]: give the connection up.
    pub async fn flush(&mut self) -> Result<(), LinkError> {
        let sent = self.stream.write_all(&self.buffer).await;
        self.buffer.clear();
        sent.map_err(|cause| LinkError::Broken(cause.into()))
    }

    /// Sends bytes as they are, length and all: what a peer that speaks something else would send.
    ///
    /// # Errors
    ///
    /// [`LinkError::Broken`]: give the connection up.
    pub async fn send_raw(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.buffer.extend_from_slice(bytes);
        self.flush().await
    }

    /// Ends the stream: nothing more is sent.
    pub fn finish(&mut self) {
        // Fails only if the stream was finished or reset before: then the peer knows already.
        let _ = self.stream.finish();
    }
}

/// The receiving half of a stream of frames.
#[derive(Debug)]
pub struct FrameReader {
    stream: quinn::RecvStream,
    buffer: Vec<u8>,
    filled: usize,
}

/// How much is read from the stream at once: several small frames arrive in one read.
const READ_BYTES: usize = 16 * 1024;

impl FrameReader {
    /// Takes a stream over.
    pub fn new(stream: quinn::RecvStream) -> Self {
        Self { stream, buffer: vec![0; READ_BYTES], filled: 0 }
    }

    /// Gives the stream away, with the bytes that were read of it and not taken.
    pub fn into_stream(mut self) -> (quinn::RecvStream, Vec<u8>) {
        self.buffer.truncate(self.filled);
        (self.stream, self.buffer)
    }

    /// Receives one frame; `None` once the peer has finished the stream.
    ///
    /// Safe to cancel: bytes that were read stay in the reader.
    ///
    /// # Errors
    ///
    /// [`LinkError`]: give the connection up.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LinkError> {
        loop {
            if let Some(frame) = self.take_buffered()? {
                return Ok(Some(frame));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Receives one frame as [`Self::receive`] does, and skips those of kinds that are younger
    /// than this build.
    ///
    /// # Errors
    ///
    /// [`LinkError`]: give the connection up.
    pub async fn receive_known<T: DeserializeOwned + FrameKinds>(
        &mut self,
    ) -> Result<Option<T>, LinkError> {
        loop {
            if let Some(frame) = self.take_known()? {
                return Ok(Some(frame));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Reads what has arrived, or waits for it; `false` once the peer has finished the stream.
    async fn fill(&mut self) -> Result<bool, LinkError> {
        if self.filled == self.buffer.len() {
            // Bounded: a frame's length has been checked against the limit.
            self.buffer.resize(self.buffer.len() + READ_BYTES, 0);
        }
        let read = self.stream.read(&mut self.buffer[self.filled..]).await;
        match read.map_err(|cause| LinkError::Broken(cause.into()))? {
            Some(bytes) => self.filled += bytes,
            None if self.filled == 0 => return Ok(false),
            None => return Err(LinkError::Broken(io::ErrorKind::UnexpectedEof.into())),
        }
        Ok(true)
    }

    /// Returns a frame that has arrived whole, without waiting.
    ///
    /// # Errors
    ///
    /// [`LinkError::Decode`]: give the connection up.
    pub fn take_buffered<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LinkError> {
        let Some(body) = self.whole()? else { return Ok(None) };
        let frame = codec::decode(body)?;
        let length = body.len();
        self.consume(length);
        Ok(Some(frame))
    }

    /// Returns a frame that has arrived whole, without waiting, past those of kinds that are
    /// younger than this build.
    ///
    /// # Errors
    ///
    /// [`LinkError::Decode`]: give the connection up.
    pub fn take_known<T: DeserializeOwned + FrameKinds>(&mut self) -> Result<Option<T>, LinkError> {
        while let Some(body) = self.whole()? {
            let length = body.len();
            let frame = codec::decode_known(body)?;
            self.consume(length);
            if frame.is_some() {
                return Ok(frame);
            }
        }
        Ok(None)
    }

    /// Returns the first frame's bytes, if they are all there.
    fn whole(&self) -> Result<Option<&[u8]>, LinkError> {
        let Some((prefix, rest)) = self.buffer[..self.filled].split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*prefix) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(DecodeError::TooLarge { bytes: length }.into());
        }
        Ok(rest.get(..length))
    }

    /// Forgets the first frame, whose body has so many bytes.
    fn consume(&mut self, length: usize) {
        self.buffer.copy_within(4 + length..self.filled, 0);
        self.filled -= 4 + length;
    }
}
