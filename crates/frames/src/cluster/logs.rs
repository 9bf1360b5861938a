//! The output of attempts, read over its own stream.

use serde::{Deserialize, Serialize};
use tessera_model::AttemptId;

/// Maximum number of bytes of output in one [`LogReply::Chunk`]: so small that the rest of the
/// frame fits.
pub const LOG_CHUNK_BYTES_MAX: usize = 32 * 1024;

/// First frame on a stream that a controller opens to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogRequest {
    /// Whose output.
    pub attempt: AttemptId,
    /// Which of the two.
    pub stream: LogStream,
    /// The first requested byte.
    pub offset: u64,
    /// Whether to go on as the output grows, until the attempt's end.
    pub follow: bool,
}

/// The output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Answers to a [`LogRequest`], until the stream ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LogReply {
    /// A piece of the output.
    Chunk {
        /// Where it begins.
        offset: u64,
        /// At most [`LOG_CHUNK_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// There is no more, and (when following) there never will be.
    End {
        /// Length of the whole output.
        length: u64,
    },
    /// The node has no such output.
    Unknown {
        /// The reason, as text for people.
        reason: String,
    },
}
