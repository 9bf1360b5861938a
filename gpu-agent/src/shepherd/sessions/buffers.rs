//! What a session keeps of both directions, so that a client that connects again continues where it
//! was. Pure.

use std::collections::VecDeque;

use tessera_frames::cluster::{LogStream, SESSION_CHUNK_BYTES_MAX, SESSION_WINDOW_BYTES};
use tessera_model::number::index;

/// Output that clients may not have yet, and some that they have.
#[derive(Debug, Default)]
pub struct OutputBuffer {
    pieces: VecDeque<OutputPiece>,
    /// The first byte that is kept.
    start: u64,
    /// The position after the last byte.
    end: u64,
    /// The first byte that the client has not confirmed.
    taken: u64,
}

#[derive(Debug)]
struct OutputPiece {
    stream: LogStream,
    offset: u64,
    bytes: Vec<u8>,
}

impl OutputBuffer {
    /// Returns how many bytes may be added before the client has confirmed some.
    pub fn capacity(&self) -> usize {
        index(SESSION_WINDOW_BYTES.saturating_sub(self.end - self.taken))
    }

    /// Returns the number of the byte after the last one.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Returns whether the client has confirmed everything.
    pub const fn is_taken(&self) -> bool {
        self.taken == self.end
    }

    /// Adds what the program wrote; at most [`SESSION_CHUNK_BYTES_MAX`] bytes.
    pub fn push(&mut self, stream: LogStream, bytes: &[u8]) {
        let offset = self.end;
        self.end += bytes.len() as u64;
        match self.pieces.back_mut() {
            // A program that writes byte by byte fills no queue.
            Some(last)
                if last.stream == stream
                    && last.bytes.len() + bytes.len() <= SESSION_CHUNK_BYTES_MAX =>
            {
                last.bytes.extend_from_slice(bytes);
            }
            Some(_) | None => {
                self.pieces.push_back(OutputPiece { stream, offset, bytes: bytes.to_vec() });
            }
        }
        // Only what is confirmed is forgotten; more than the window is never unconfirmed.
        while self.end - self.start > SESSION_WINDOW_BYTES
            && let Some(first) = self.pieces.front()
            && first.offset + first.bytes.len() as u64 <= self.taken
        {
            self.start = first.offset + first.bytes.len() as u64;
            self.pieces.pop_front();
        }
    }

    /// Records a new client that lacks what is after `offset`; returns where its output begins.
    pub fn join(&mut self, offset: Option<u64>) -> u64 {
        self.taken = offset.unwrap_or(self.start).clamp(self.start, self.end);
        self.taken
    }

    /// Records that the client has everything before `total`.
    pub fn confirm(&mut self, total: u64) {
        self.taken = total.clamp(self.taken, self.end);
    }

    /// Returns a piece of one stream that begins at `from`; `None` after the last byte.
    pub fn next(&self, from: u64) -> Option<(LogStream, &[u8])> {
        let at =
            self.pieces.partition_point(|piece| piece.offset + piece.bytes.len() as u64 <= from);
        let piece = self.pieces.get(at)?;
        let skipped = index(from.checked_sub(piece.offset)?);
        Some((piece.stream, piece.bytes.get(skipped..)?))
    }
}

/// Input that the program has not taken yet.
#[derive(Debug, Default)]
pub struct InputBuffer {
    waiting: VecDeque<u8>,
    /// How much has arrived in total.
    received: u64,
    /// How much there is in total, once that is known.
    length: Option<u64>,
}

/// A client that breaks the rules of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("input is missing before byte {0}, or too much is under way")]
pub struct BadInput(u64);

impl InputBuffer {
    /// Returns how much has arrived in total.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Returns how much the program has taken.
    pub fn taken(&self) -> u64 {
        self.received - self.waiting.len() as u64
    }

    /// Returns whether the program has taken everything, and there is no more.
    pub fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.length.is_some_and(|length| length <= self.received)
    }

    /// Returns what is written next.
    pub fn front(&self) -> &[u8] {
        self.waiting.as_slices().0
    }

    /// Adds a piece of the input. What arrived before is skipped.
    ///
    /// # Errors
    ///
    /// Something is missing before it, or the client sends more than its window.
    pub fn push(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BadInput> {
        let known = self.received.checked_sub(offset).ok_or(BadInput(offset))?;
        let new = bytes.get(index(known)..).unwrap_or_default();
        if (self.waiting.len() + new.len()) as u64 > SESSION_WINDOW_BYTES {
            return Err(BadInput(offset));
        }
        self.waiting.extend(new);
        self.received += new.len() as u64;
        Ok(())
    }

    /// Records that there is no more input than `length` bytes.
    pub fn end(&mut self, length: u64) {
        self.length.get_or_insert(length);
    }

    /// Records that the program has taken this many more bytes.
    pub fn consume(&mut self, bytes: usize) {
        self.waiting.drain(..bytes.min(self.waiting.len()));
    }

    /// Discards what waits: the program reads no more.
    pub fn discard(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(output: &OutputBuffer, mut from: u64) -> (Vec<u8>, Vec<LogStream>) {
        let (mut bytes, mut streams) = (Vec::new(), Vec::new());
        while let Some((stream, piece)) = output.next(from) {
            bytes.extend_from_slice(piece);
            streams.push(stream);
            from += piece.len() as u64;
        }
        (bytes, streams)
    }

    #[test]
    fn a_client_that_comes_back_gets_exactly_what_it_lacks() {
        let mut output = OutputBuffer::default();
        output.push(LogStream::Stdout, b"one");
        output.push(LogStream::Stderr, b"two");
        output.confirm(2);

        assert_eq!(output.join(Some(4)), 4);
        assert_eq!(all(&output, 4), (b"wo".to_vec(), vec![LogStream::Stderr]));
        // A client that names no byte gets what is kept, also what another has confirmed.
        assert_eq!(output.join(None), 0);
        assert_eq!(all(&output, 0).0, b"onetwo");
    }

    #[test]
    fn a_client_that_reads_nothing_stops_the_program_and_loses_nothing() {
        let mut output = OutputBuffer::default();
        let mut written = 0;
        while output.capacity() > 0 {
            let piece = vec![7; output.capacity().min(SESSION_CHUNK_BYTES_MAX)];
            output.push(LogStream::Stdout, &piece);
            written += piece.len();
        }

        assert_eq!(written as u64, SESSION_WINDOW_BYTES);
        assert_eq!(all(&output, 0).0.len(), written);
        output.confirm(100_000);
        assert_eq!(output.capacity(), 100_000);
    }

    #[test]
    fn confirmed_output_is_forgotten_beyond_what_a_screen_needs() {
        let mut output = OutputBuffer::default();
        for _ in 0..1_000 {
            output.push(LogStream::Stdout, &[1; 1024]);
            output.confirm(output.end());
        }

        let begin = output.join(None);
        let kept = output.end() - begin;
        assert!(kept <= SESSION_WINDOW_BYTES && kept > SESSION_WINDOW_BYTES / 2, "{kept}");
        assert_eq!(all(&output, begin).0.len() as u64, kept);
    }

    #[test]
    fn input_that_comes_twice_is_taken_once_and_a_gap_is_refused() {
        let mut input = InputBuffer::default();
        input.push(0, b"abc").unwrap();
        input.push(1, b"bcde").unwrap();

        assert_eq!(input.front(), b"abcde");
        assert_eq!(input.push(6, b"x"), Err(BadInput(6)));
        input.consume(2);
        assert_eq!((input.taken(), input.received()), (2, 5));
        input.end(5);
        assert!(!input.is_over());
        input.consume(3);
        assert!(input.is_over());
    }

    #[test]
    fn a_client_cannot_fill_the_memory() {
        let mut input = InputBuffer::default();
        let piece = vec![0; index(SESSION_WINDOW_BYTES)];

        input.push(0, &piece).unwrap();
        assert!(input.push(SESSION_WINDOW_BYTES, b"x").is_err());
    }
}
