//! Messages between a step's caller and its part on a node, over the part's standard input and
//! output.
//!
//! A message is a letter, a number, a length and that many bytes; numbers are in big-endian order.
//! Both ends are the same program, usually of the same version. An unknown letter ends the step.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::environment::StepFacts;
use tessera_model::number::clamped;

/// Longest message: an order with its environment and programs, many times over.
const BYTES_MAX: usize = 64 << 20;
/// Letter, number and length.
const HEAD_BYTES: usize = 9;

/// The command of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartOrder {
    /// Settings that all processes share.
    pub facts: StepFacts,
    /// Which node of the step this is; `None` for one that only listens for signals.
    pub node: Option<usize>,
    /// The programs of this node's processes, by their ranks.
    pub programs: Vec<Vec<String>>,
    /// Variables that are exported to them.
    pub environment: BTreeMap<String, String>,
    /// Where they run.
    pub folder: PathBuf,
    /// GPUs that the step takes on this node.
    pub gpus: Option<u32>,
    /// Whether it shares them with other steps.
    pub overlap: bool,
    /// Whether its processes find each other by PMI.
    #[serde(default)]
    pub pmi: bool,
}

/// From the caller to a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPart {
    /// The command; sent first, and once. The part takes its GPUs.
    Order(Box<PartOrder>),
    /// Start the processes: all parts are ready.
    Go,
    /// Input for all processes.
    Input(Vec<u8>),
    /// There is no more input.
    EndOfInput,
    /// Signal all processes.
    Signal(i32),
    /// An answer to the MPI library of a process.
    Answer {
        /// Which process.
        rank: usize,
        /// The bytes that it gets.
        bytes: Vec<u8>,
    },
}

/// From a part to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromPart {
    /// It has its GPUs.
    Ready,
    /// A line for people.
    Note(String),
    /// A process has written.
    Output {
        /// Which one.
        rank: usize,
        /// Whether it was written to standard error.
        is_error: bool,
        /// The bytes that it wrote.
        bytes: Vec<u8>,
    },
    /// All processes have received this many more bytes of the input.
    Taken(usize),
    /// A process has ended, with this wait status.
    Ended {
        /// Which one.
        rank: usize,
        /// As the system reports it.
        status: i32,
    },
    /// A process could not be started.
    NotStarted {
        /// Which one.
        rank: usize,
        /// The reason, for people.
        reason: String,
    },
    /// A signal arrived that the local processes of the step received, too.
    Signalled(i32),
    /// A request of a process's MPI library.
    Request {
        /// Which process.
        rank: usize,
        /// The bytes that it sent.
        bytes: Vec<u8>,
    },
}

/// Bytes that are not messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side speaks another version: install the same version of tessera on all nodes")]
pub struct BadMessage;

fn message(letter: u8, number: usize, bytes: &[u8]) -> Vec<u8> {
    // Both are far below, as is every order that a command line allows.
    let (number, length) = (clamped::<u32>(number), clamped::<u32>(bytes.len()));
    [&[letter], &number.to_be_bytes()[..], &length.to_be_bytes()[..], bytes].concat()
}

impl ToPart {
    /// Encodes the message.
    ///
    /// # Errors
    ///
    /// An order that JSON can't hold.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        Ok(match self {
            Self::Order(order) => message(b'o', 0, &serde_json::to_vec(order)?),
            Self::Go => message(b'g', 0, &[]),
            Self::Input(bytes) => message(b'i', 0, bytes),
            Self::EndOfInput => message(b'e', 0, &[]),
            Self::Signal(number) => message(b's', 0, &number.to_be_bytes()),
            Self::Answer { rank, bytes } => message(b'p', *rank, bytes),
        })
    }

    fn decode((letter, rank, bytes): (u8, usize, Vec<u8>)) -> Result<Self, BadMessage> {
        Ok(match letter {
            b'o' => Self::Order(serde_json::from_slice(&bytes).map_err(|_| BadMessage)?),
            b'g' => Self::Go,
            b'i' => Self::Input(bytes),
            b'e' => Self::EndOfInput,
            b's' => Self::Signal(number(&bytes)?),
            b'p' => Self::Answer { rank, bytes },
            _ => return Err(BadMessage),
        })
    }
}

impl FromPart {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ready => message(b'r', 0, &[]),
            Self::Note(text) => message(b'n', 0, text.as_bytes()),
            Self::Output { rank, is_error: false, bytes } => message(b'1', *rank, bytes),
            Self::Output { rank, is_error: true, bytes } => message(b'2', *rank, bytes),
            Self::Taken(length) => message(b't', *length, &[]),
            Self::Ended { rank, status } => message(b'x', *rank, &status.to_be_bytes()),
            Self::NotStarted { rank, reason } => message(b'f', *rank, reason.as_bytes()),
            Self::Signalled(number) => message(b's', 0, &number.to_be_bytes()),
            Self::Request { rank, bytes } => message(b'p', *rank, bytes),
        }
    }

    fn decode((letter, rank, bytes): (u8, usize, Vec<u8>)) -> Result<Self, BadMessage> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(match letter {
            b'r' => Self::Ready,
            b'n' => Self::Note(text(&bytes)),
            b'1' => Self::Output { rank, is_error: false, bytes },
            b'2' => Self::Output { rank, is_error: true, bytes },
            b't' => Self::Taken(rank),
            b'x' => Self::Ended { rank, status: number(&bytes)? },
            b'f' => Self::NotStarted { rank, reason: text(&bytes) },
            b's' => Self::Signalled(number(&bytes)?),
            b'p' => Self::Request { rank, bytes },
            _ => return Err(BadMessage),
        })
    }
}

fn number(bytes: &[u8]) -> Result<i32, BadMessage> {
    bytes.try_into().map(i32::from_be_bytes).map_err(|_| BadMessage)
}

/// Assembles messages from pieces.
#[derive(Debug, Default)]
pub struct MessageBuffer(Vec<u8>);

impl MessageBuffer {
    /// Adds a piece.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Takes the next message for a part; `None` if none is complete.
    ///
    /// # Errors
    ///
    /// [`BadMessage`].
    pub fn next_to_part(&mut self) -> Result<Option<ToPart>, BadMessage> {
        self.next()?.map(ToPart::decode).transpose()
    }

    /// Takes the next message of a part; `None` if none is complete.
    ///
    /// # Errors
    ///
    /// [`BadMessage`].
    pub fn next_of_part(&mut self) -> Result<Option<FromPart>, BadMessage> {
        self.next()?.map(FromPart::decode).transpose()
    }

    fn next(&mut self) -> Result<Option<(u8, usize, Vec<u8>)>, BadMessage> {
        let Some((head, rest)) = self.0.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [letter, a, b, c, d, length @ ..] = *head;
        let number = u32::from_be_bytes([a, b, c, d]) as usize;
        let length = u32::from_be_bytes(length) as usize;
        if length > BYTES_MAX {
            return Err(BadMessage);
        }
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let taken = (letter, number, bytes.to_vec());
        self.0.drain(..HEAD_BYTES + length);
        Ok(Some(taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_however_they_are_cut() {
        let sent = [
            FromPart::Ready,
            FromPart::Note("busy".to_owned()),
            FromPart::Output { rank: 3, is_error: true, bytes: b"line\n".to_vec() },
            FromPart::Taken(70_000),
            FromPart::Ended { rank: 3, status: 0x0300 },
            FromPart::NotStarted { rank: 1, reason: "no such file".to_owned() },
            FromPart::Signalled(10),
            FromPart::Request { rank: 3, bytes: b"cmd=barrier_in\n".to_vec() },
        ];
        let bytes: Vec<u8> = sent.iter().flat_map(FromPart::encode).collect();
        for size in [1, 7, 100] {
            let mut buffer = MessageBuffer::default();
            let mut received = Vec::new();
            for piece in bytes.chunks(size) {
                buffer.push(piece);
                while let Some(message) = buffer.next_of_part().unwrap() {
                    received.push(message);
                }
            }
            assert_eq!(received, sent);
        }
        let answer = ToPart::Answer { rank: 3, bytes: b"cmd=barrier_out\n".to_vec() };
        let sent =
            [ToPart::Go, ToPart::Input(vec![0, 1]), ToPart::EndOfInput, ToPart::Signal(15), answer];
        let mut buffer = MessageBuffer::default();
        sent.iter().for_each(|message| buffer.push(&message.encode().unwrap()));
        let received = std::iter::from_fn(|| buffer.next_to_part().unwrap());
        assert_eq!(received.collect::<Vec<_>>(), sent);
    }

    #[test]
    fn invalid_messages_are_refused() {
        let mut buffer = MessageBuffer::default();
        buffer.push(b"?00000000");
        assert_eq!(buffer.next_of_part(), Err(BadMessage));
        let mut buffer = MessageBuffer::default();
        buffer.push(&[b'i', 0, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(buffer.next_to_part(), Err(BadMessage));
    }
}
